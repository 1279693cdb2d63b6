# SPDX-License-Identifier: Apache-2.0
"""Bugs of runs as a whole: interrupted, copied, on several ranks, scheduled, and their source of noise."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato import Budget, Ledger
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.audit.mechanisms.ledger_records import check_marked, check_one_result
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import InvalidParameterError
from sfumato.ledger import charge
from sfumato.ledger.account import Account
from sfumato.mechanisms import Gaussian, random
from sfumato.mechanisms.random import FastGenerator, Generator
from sfumato.testing import seeded
from sfumato.training import (
    Clipping,
    DpSgd,
    NoisyStep,
    PoissonSampling,
    PrivateGradients,
    Trainer,
    distributed,
)
from sfumato.training.data.units import Units
from sfumato.training.engine.losses import Loss
from sfumato.training.payment import Payment
from sfumato.training.privacy import clipping, clipping_styles
from sfumato.training.rank_agreement import Agreement
from sfumato.training.record.run_ownership import RunOwnership

from .catalogue import CONFIDENCE, Planted, leaks

__all__ = ["BUGS"]

WIDTH = 4
LONG = 1000.0


def itself(model: nn.Module, rows: Tensor) -> Tensor:
    """Return a loss whose gradient at each row is that row."""
    return model(rows)[:, 0]


def blank() -> nn.Linear:
    model = nn.Linear(WIDTH, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def private_gradients(generator: Generator, *, loss: Loss = itself) -> PrivateGradients:
    return PrivateGradients(
        blank(),
        loss,
        clip_norm=1.0,
        noise_multiplier=2.0,
        expected_batch_size=1.0,
        generator=generator,
    )


def trainer(folder: Path, account: Account | None, generator: Generator | None = None) -> Trainer:
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(4.0, 4)],
        relation=Relation.ADD_REMOVE,
    )
    return Trainer(
        blank(),
        (torch.ones(8, WIDTH),),
        mechanism=mechanism,
        loss=itself,
        public_size=8,
        learning_rate=0.1,
        account=account,
        purpose="audit",
        privacy_unit="row",
        folder=folder,
        checkpoint_every=1,
        progress=False,
        generator=generator,
    )


def on_account(check: Callable[[Path, Account], object]) -> bool:
    """Run a check in a folder of its own, with an account: does it show a leak?"""
    with tempfile.TemporaryDirectory() as name:
        budget = Budget(epsilon=100.0, delta=1e-5)
        account = Ledger(Path(name) / "ledger.db").open("data", privacy_unit="row", budget=budget)
        return leaks(lambda: check(Path(name), account))


# --- one charge, one model --------------------------------------------------------------------------------


def copies_are_counted(seed: int) -> bool:
    """Interrupt a run, copy its folder, and go on in both: how many models are there for one charge?"""

    def check(folder: Path, account: Account) -> object:
        interrupted = trainer(folder / "a", account)
        save = interrupted._save

        def stop(session: Any) -> None:
            save(session)
            if session.step == 1 + seed % 2:
                raise KeyboardInterrupt

        interrupted._save = stop
        with pytest.raises(KeyboardInterrupt):
            interrupted.fit()
        shutil.copytree(folder / "a", folder / "b")

        def finish(name: str) -> object:
            return trainer(folder / name, account).fit(resume=True).model.state_dict()["weight"].tolist()

        return check_one_result([lambda: finish("a"), lambda: finish("b")], account)

    return on_account(check)


def go_on_wherever_a_checkpoint_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Payment, "resume", lambda self, number, *, finished: None)  # "it was paid for already"
    patch.setattr(RunOwnership, "find", lambda self, state: state)


# --- ranks ------------------------------------------------------------------------------------------------


def ranks_replayed(seed: int) -> bool:
    """Take a step on two ranks that hold the same people in another order: is one of them there twice?"""
    orders = [[0, 1, 2, 3], [1, 0, 3, 2]]  # so person 0 is number 0 of one rank, and number 1 of the other

    def release(lengths: list[float], generator: Generator) -> np.ndarray:
        people = torch.tensor(lengths)[:, None] * torch.eye(WIDTH)
        units = [Units((people[order],)) for order in orders]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "size", lambda: 2)
            patch.setattr(distributed, "first_decides", lambda decide: decide())
            agreements = [Agreement(one) for one in units]
            agreements[1]._key = agreements[0]._key
            told: list[bytes] = []
            patch.setattr(
                distributed, "alike", lambda compute: not told.append(compute()) and told[0] == told[-1]
            )
            for agreement in agreements:
                agreement.require_rows()
        private = private_gradients(generator)
        for rank, one in enumerate(units):
            private.accumulate(*one.take(torch.arange(4)[rank::2]).rows)
        private.finish()
        (parameter,) = private.parameters.values()
        return parameter.grad.numpy().ravel().copy()

    def check() -> object:
        try:
            return check_sensitivity(
                release, [LONG, 1, 1, 1], [0, 1, 1, 1], sensitivity=1.0, generator=seeded(seed)
            )
        except InvalidParameterError:  # refused, so nothing was released
            return None

    return leaks(check)


def trust_that_ranks_hold_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "require_rows", lambda self: None)


# --- thresholds -------------------------------------------------------------------------------------------

TINY = 5e-25  # a factor: squares of such norms vanish in float32


def looking(model: nn.Module, rows: Tensor) -> Tensor:
    """Look at a value, which the fast engine cannot do: it would round norms up."""
    return itself(model, rows) if bool((rows >= 0).all()) else -itself(model, rows)


def tiny_threshold_replayed(seed: int) -> bool:
    """Take a step whose schedule has a tiny factor: does a row move the sum by more than the bound?"""

    def release(rows: list[list[float]], generator: Generator) -> np.ndarray:
        private = private_gradients(generator, loss=looking)
        private.scale_clipping(TINY)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it goes on row by row
            private.backward(torch.tensor(rows).reshape(-1, WIDTH))
        (parameter,) = private.parameters.values()
        return (parameter.grad / private.bound).numpy().ravel().copy()

    def check() -> object:
        try:
            return check_sensitivity(release, [[5e-24] * WIDTH], [], sensitivity=1.0, generator=seeded(seed))
        except InvalidParameterError:  # refused, so nothing was released
            return None

    return leaks(check)


def forget_the_floor(patch: pytest.MonkeyPatch) -> None:
    for module in (clipping, clipping_styles):
        patch.setattr(module, "check_threshold", lambda **thresholds: None)


# --- the source of noise ----------------------------------------------------------------------------------


def training_is_marked(seed: int) -> bool:
    def check(folder: Path, account: Account) -> object:
        number = iter(range(10))
        return check_marked(
            lambda one, generator: trainer(folder / str(next(number)), one, generator).fit(), account
        )

    return on_account(check)


def mark_seeds_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charge, "for_study", lambda generator: generator is not None and generator.seeded)


_NOISY = Gaussian(stddev=16.0, sensitivity=1.0, relation=Relation.ADD_REMOVE)


def in_child(work: Callable[[], float]) -> float:
    """Fork, and return what `work` returns in the child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are idle
        child = os.fork()
    if child == 0:
        os.write(write, np.float64(work()).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    found = np.frombuffer(os.read(read, 8))
    os.close(read), os.close(write)
    return float(found[0])


def forks_told_apart(seed: int) -> bool:
    """Release two sums in two forked processes, and subtract: the same noise would be gone."""

    def run(value: float, generator: Generator) -> float:
        source = FastGenerator()
        first = in_child(lambda: value + random_normal(source))
        return abs(first - in_child(lambda: random_normal(source)))

    promised = price(_NOISY.event(), delta=1e-3, relation=Relation.ADD_REMOVE).guarantee()
    return audit_mechanism(
        run, 1.0, 0.0, trials=40, confidence=CONFIDENCE, claim=promised, generator=seeded(seed)
    ).refuted


def random_normal(source: FastGenerator) -> float:
    drawn = torch.empty(1, dtype=torch.float64)
    return float(drawn.normal_(0.0, _NOISY.stddev, generator=source.torch))


def forget_forks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(random, "process_token", lambda: (0, 0))


BUGS = (
    Planted(
        name="two-models-for-one-charge",
        bug="a run that was interrupted goes on under its charge in every copy of its folder",
        found_by="records",
        plant=go_on_wherever_a_checkpoint_is,
        audit=copies_are_counted,
    ),
    Planted(
        name="ranks-with-different-rows",
        bug="ranks hold the same people in another order, and one of them is in two shares of a batch",
        found_by="replay on neighbors",
        plant=trust_that_ranks_hold_the_same,
        audit=ranks_replayed,
    ),
    Planted(
        name="threshold-below-the-floor",
        bug="a schedule takes the clip norm to where squares of norms vanish, and nothing is clipped",
        found_by="replay on neighbors",
        plant=forget_the_floor,
        audit=tiny_threshold_replayed,
    ),
    Planted(
        name="insecure-noise-not-marked",
        bug="a release is marked as for study where its noise was seeded, and not where it can be computed",
        found_by="records",
        plant=mark_seeds_alone,
        audit=training_is_marked,
    ),
    Planted(
        name="noise-repeated-in-forks",
        bug="two forked processes go on with one stream of noise",
        found_by="event search",
        plant=forget_forks,
        audit=forks_told_apart,
    ),
)
