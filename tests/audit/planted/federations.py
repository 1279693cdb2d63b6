# SPDX-License-Identifier: Apache-2.0
"""Bugs of federated runs: cohorts, weights of clients, the server's optimizer, and shares of noise."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato import Budget, Ledger
from sfumato.audit.mechanisms.ledger_records import check_one_result
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.audit.runs.canaries import Canaries
from sfumato.federated import AssignedRows, LocalTraining, federate
from sfumato.federated.secure_sum.encoding import client_generator, decode, encode
from sfumato.federated.secure_sum.simulated import SimulatedSums, round_seed, split_sum
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded
from sfumato.training import PrivateGradients, Trainer
from sfumato.training.data import rows as row_trees
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import ContributionPasses
from sfumato.training.loop import TrainingLoop
from sfumato.training.privacy.batch_draws import subset
from sfumato.training.privacy.clipping import ClippedSums, Clipper

from .catalogue import CONFIDENCE, Planted, leaks
from .fresh import _keep_raw, _raw_of
from .steps import sampled_by

__all__ = ["BUGS"]

WIDTH = 3
LOCAL = LocalTraining(batch_size=2, learning_rate=0.2)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 2))


def held(clients: int, rows_each: int = 2) -> AssignedRows:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(clients * rows_each, WIDTH, generator=draws)
    owner = torch.arange(len(x)) % clients
    return AssignedRows((x, (x.sum(1) > 0).long()), owner, clients=clients)


def audited(seed: int, *, clients: int = 20, rate: float = 1.0, rounds: int = 4, **more: Any) -> bool:
    """Take a federated run with canary clients, and return whether they refute what it claims."""
    run = federate(
        network(),
        held(clients),
        rounds=rounds,
        expected_cohort_size=rate * clients,
        local=LOCAL,
        noise_multiplier=2.0,
        delta=1e-5,
        evaluate_every=rounds,
        progress=False,
        generator=seeded(seed),
        audit=Canaries(count=200, confidence=CONFIDENCE),
        **more,
    )
    return run.audit.refuted


def all_clients(seed: int) -> bool:
    return audited(seed)


def half_of_the_clients(seed: int) -> bool:
    return audited(seed, clients=4, rate=0.5, rounds=24)


def shares_of_noise(seed: int) -> bool:
    return audited(seed, noise="skellam")


# --- cohorts and clients ----------------------------------------------------------------------------------

BIG = 3  # the client that is there or not, with most rows


def replayed(seed: int) -> bool:
    """Take one round with and without a client of many rows: does it move the model by too much?"""

    def release(with_client: bool, generator: Generator) -> Any:
        draws = torch.Generator().manual_seed(1)
        x = 5 * torch.randn(60, WIDTH, generator=draws)
        owner = torch.where(torch.arange(60) < 20, torch.arange(60) % 10, BIG)
        owner = owner if with_client else torch.where(owner == BIG, -1, owner)
        run = federate(
            network(),
            AssignedRows((x, (x.sum(1) > 0).long()), owner, clients=10),
            rounds=1,
            expected_cohort_size=10,
            local=LocalTraining(batch_size=2, learning_rate=2.0),
            clip_norm=0.5,
            noise_multiplier=20.0,
            delta=1e-5,
            progress=False,
            generator=generator,
        )
        return torch.cat([p.detach().flatten() for p in run.model.parameters()]).numpy()

    return leaks(lambda: check_sensitivity(release, True, False, sensitivity=0.05, generator=seeded(seed)))


def weigh_by_rows(patch: pytest.MonkeyPatch) -> None:
    original = ContributionPasses._clipped

    def clipped(self: Any, batch: Any) -> ClippedSums:
        counts = [len(self._contributor._rows.rows(int(client))[0]) for client in batch[1]]
        mean = sum(counts) / len(counts)
        parts = [original(self, row_trees.take(batch, slice(i, i + 1))) for i in range(len(counts))]
        total: dict[str, Tensor] = {}
        for count, part in zip(counts, parts, strict=True):
            for name, value in part.sums.items():
                total[name] = total.get(name, 0) + value * (count / mean)
        return ClippedSums(total)

    patch.setattr(ContributionPasses, "_clipped", clipped)


def divide_by_who_answered(patch: pytest.MonkeyPatch) -> None:
    given, noised, answered = ContributionPasses._given, PrivateGradients._noised, []

    def counted(self, batch, units):
        found = given(self, batch, units)
        flat = torch.cat([value.flatten(1) for value in found.values()], 1)
        answered[:] = [int((flat != 0).any(1).sum())]
        return found

    def divided(self, noise_multiplier):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "expected_batch_size", max(1, *answered))
            noised(self, noise_multiplier)

    patch.setattr(ContributionPasses, "_given", counted)
    patch.setattr(PrivateGradients, "_noised", divided)


def one_client_twice(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        def batch(step):
            drawn = subset(size, round(rate * size), stream.fork("batch", step))
            again = drawn[step % len(drawn)]  # it answered late, and was asked once more
            return np.sort(np.append(drawn, [again, drawn[0]]))

        return batch

    sampled_by(patch, made)


def cohorts_of_one_size(patch: pytest.MonkeyPatch) -> None:
    def made(size, rate, stream):
        return lambda step: subset(size, round(rate * size), stream.fork("batch", step))

    sampled_by(patch, made)


def clip_each_tensor(patch: pytest.MonkeyPatch) -> None:
    given = ContributionPasses._given

    def clipped(self, batch, units):
        found = given(self, batch, units)
        for name, value in found.items():
            norms = value.flatten(1).norm(dim=1).clamp(min=1.0)
            found[name] = value / norms.view(-1, *[1] * (value.dim() - 1))
        return found

    patch.setattr(ContributionPasses, "_given", clipped)
    patch.setattr(Clipper, "_weights", lambda self, norms, thresholds: torch.ones_like(norms))


def raw_momentum(patch: pytest.MonkeyPatch) -> None:
    """Let the server remember sums of updates without noise, and move the model along them."""
    _keep_raw(patch)
    original = TrainingLoop.take_step

    def take_step(self: Any) -> None:
        original(self)
        memory = self.__dict__.setdefault("memory", {})
        for parameter, raw in _raw_of(self):
            kept = memory.setdefault(id(parameter), torch.zeros_like(raw))
            kept.mul_(0.9).add_(raw)
            with torch.no_grad():
                parameter.sub_(0.9 * kept)

    patch.setattr(TrainingLoop, "take_step", take_step)


def only_contributors_add_noise(patch: pytest.MonkeyPatch) -> None:
    def noisy_sum(self, model, batch, *, step, noise_multiplier):
        mechanism = self._mechanism.scaled(noise_multiplier)
        seed, total = round_seed(self._generator, step), np.zeros(mechanism.size, np.int64)
        for number, update in enumerate(self._updates(model, batch, step)):
            own = client_generator(self._generator, number, seed)
            total += encode(update, mechanism, seed=seed, generator=own)
        return split_sum(decode(total, mechanism, seed=seed), parameter_values.find(model).parameters)

    patch.setattr(SimulatedSums, "noisy_sum", noisy_sum)


# --- a server that dies -----------------------------------------------------------------------------------


def shown_before_and_after(seed: int) -> bool:
    """Interrupt a run when a round was shown, resume it, and compare what is shown of that round."""
    with tempfile.TemporaryDirectory() as name:
        budget = Budget(epsilon=100.0, delta=1e-5)
        account = Ledger(Path(name) / "ledger.db").open("data", privacy_unit="client", budget=budget)
        shown: list[Any] = []

        def look(model: nn.Module, step: int) -> None:
            if step == 1 + seed % 2:
                shown.append([p.tolist() for p in model.parameters()])
                if len(shown) == 1:
                    raise KeyboardInterrupt

        def run(*, resume: bool) -> None:
            federate(
                network(),
                held(4),
                rounds=3,
                expected_cohort_size=4,
                local=LOCAL,
                noise_multiplier=2.0,
                evaluate_every=1,
                on_evaluation=look,
                checkpoint_every=1,
                folder=Path(name) / "run",
                account=account,
                purpose="audit",
                progress=False,
                resume=resume,
            )

        with pytest.raises(KeyboardInterrupt):
            run(resume=False)
        run(resume=True)
        return leaks(lambda: check_one_result([lambda each=each: each for each in shown], account))


def show_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    def after(self, loop, bar):
        if self._reports.due(loop):
            self._reports.make(loop, bar)
        self._save(loop)
        if loop.step == self.mechanism.steps:
            self._settle(loop)

    patch.setattr(Trainer, "_after_step", after)


BUGS = (
    Planted(
        name="clients-weighed-by-their-rows",
        bug="clipped updates are weighed by how many rows their client has, with the noise of equal weights",
        found_by="replay on neighbors",
        plant=weigh_by_rows,
        audit=replayed,
    ),
    Planted(
        name="divided-by-who-answered",
        bug="sum and noise of a round are divided by how many clients answered",
        found_by="replay on neighbors",
        plant=divide_by_who_answered,
        audit=replayed,
    ),
    Planted(
        name="a-client-twice-in-a-cohort",
        bug="a client that was asked again counts twice in its cohort",
        found_by="canaries",
        plant=one_client_twice,
        audit=all_clients,
    ),
    Planted(
        name="cohorts-of-one-size",
        bug="cohorts are drawn with a fixed size, and priced as Poisson samples",
        found_by="canaries",
        plant=cohorts_of_one_size,
        audit=half_of_the_clients,
    ),
    Planted(
        name="updates-clipped-tensor-by-tensor",
        bug="each tensor of an update is clipped at the whole clip norm",
        found_by="canaries",
        plant=clip_each_tensor,
        audit=all_clients,
    ),
    Planted(
        name="server-remembers-raw-updates",
        bug="the momentum of the server is taken of sums of updates before they get noise",
        found_by="canaries",
        plant=raw_momentum,
        audit=all_clients,
    ),
    Planted(
        name="only-contributors-add-noise",
        bug="of a sum of clients' shares of noise, those of clients that do not contribute are missing",
        found_by="canaries",
        plant=only_contributors_add_noise,
        audit=shares_of_noise,
    ),
    Planted(
        name="round-shown-before-it-is-kept",
        bug="a round is shown before its checkpoint, and a server that died draws it again with other noise",
        found_by="records",
        plant=show_before_it_is_kept,
        audit=shown_before_and_after,
    ),
)
