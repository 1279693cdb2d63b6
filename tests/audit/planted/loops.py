# SPDX-License-Identifier: Apache-2.0
"""Bugs of `make_private`: what it would let a loop of the user's own do."""

import contextlib
import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import SfumatoError
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded
from sfumato.training import LoopSettings, PrivateParts, SpentPrivacy, make_private
from sfumato.training.adapters import calls
from sfumato.training.adapters import criterion as criteria
from sfumato.training.adapters.calls import BatchCalls
from sfumato.training.adapters.data_loader import PoissonLoader
from sfumato.training.adapters.handed_out import HandedOut, Output
from sfumato.training.adapters.module_forward import CopiedForward
from sfumato.training.adapters.optimizer_copies import _Mark

from .catalogue import CONFIDENCE, Planted, leaks
from .gradients import DELTA, NOISE, WIDTH, ahead, blank

__all__ = ["BUGS"]

TOKENS = 200
PRESENT = 3  # rows beside the one that comes or goes
Loop = Callable[[PrivateParts], None]
Row = tuple[list[float], float]  # features, and a number that belongs to the row


def own(out: Tensor, number: Tensor) -> Tensor:
    """Return a loss whose gradient at each row is that row."""
    return out[:, 0]


def parts_of(
    data: TensorDataset,
    generator: Generator,
    *,
    criterion: object = own,
    rate: float = 1.0,
    noise: float = NOISE,
) -> PrivateParts:
    """Return a private loop in which a step moves the weights by the noisy sum itself."""
    model = blank()
    size = 4 * rate
    return make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=size),
        criterion=criterion,  # type: ignore[arg-type]
        data_loader=DataLoader(data, batch_size=4),
        settings=LoopSettings(expected_batch_size=size),
        public_size=4,
        noise_multiplier=noise,
        max_grad_norm=1.0,
        generator=generator,
    )


def data_of(rows: list[Row]) -> TensorDataset:
    features, numbers = zip(*rows, strict=True)
    return TensorDataset(torch.tensor(features), torch.tensor(numbers))


def weights_after(loop: Loop, parts: PrivateParts) -> np.ndarray:
    """Run a loop; what is refused releases nothing."""
    with contextlib.suppress(SfumatoError):
        loop(parts)
    return parts.module.weight.detach().numpy().ravel().copy()


def plainly(parts: PrivateParts) -> None:
    for x, number in parts.data_loader:
        parts.criterion(parts.module(x), number).backward()
        parts.optimizer.step()


ALIKE: list[Row] = [(ahead(1000.0), 1.0)] * PRESENT
MORE: list[Row] = [*ALIKE, (ahead(1000.0), -1000.0)]


def replayed(seed: int, *, loop: Loop = plainly, criterion: object = own) -> bool:
    """Run a loop on neighbors with the same noise: does one row move the weights by too much?"""

    def release(rows: list[Row], generator: Generator) -> np.ndarray:
        return weights_after(loop, parts_of(data_of(rows), generator, criterion=criterion))

    return leaks(lambda: check_sensitivity(release, ALIKE, MORE, sensitivity=1.0, generator=seeded(seed)))


# --- what a criterion sees --------------------------------------------------------------------------------


def weighed_by_all(out: Tensor, number: Tensor) -> Tensor:
    return out[:, 0] * number.sum()


def criterion_sees_the_batch(patch: pytest.MonkeyPatch) -> None:
    def _losses_of(self, call, isolated):
        return isolated.once(call.run, self._criterion, Tensor.detach, lambda output: output.shown)

    patch.setattr(BatchCalls, "_losses_of", _losses_of)


def averaged(out: Tensor, mask: Tensor) -> Tensor:
    return (out[:, :, 0] * mask).sum() / mask.sum()


def tokens_replayed(seed: int) -> bool:
    def release(rows: list[int], generator: Generator) -> np.ndarray:
        mask = (torch.arange(TOKENS) < torch.tensor(rows)[:, None]).float()
        data = TensorDataset(torch.tensor(ahead(1.0)).expand(len(rows), TOKENS, WIDTH), mask)
        return weights_after(plainly, parts_of(data, generator, criterion=averaged))

    return leaks(
        lambda: check_sensitivity(
            release, [1] * PRESENT, [*[1] * PRESENT, TOKENS], sensitivity=1.0, generator=seeded(seed)
        )
    )


def one_number_for_the_batch(patch: pytest.MonkeyPatch) -> None:
    def _losses_of(self, call, isolated):
        run = partial(call.run, self._criterion, Tensor.detach, lambda output: output.shown)
        return isolated.once(run).expand(self.rows)  # "the loss of each row is the mean"

    patch.setattr(BatchCalls, "_losses_of", _losses_of)
    patch.setattr(calls, "checked", lambda losses, rows: losses.reshape(rows))


# --- what a loop does outside of it -----------------------------------------------------------------------


def scaling(parts: PrivateParts) -> None:
    for x, number in parts.data_loader:
        (parts.criterion(parts.module(x), number) * number.sum()).backward()
        parts.optimizer.step()


def scaled_losses_accepted(patch: pytest.MonkeyPatch) -> None:
    def backward(ctx, grad):
        with torch.enable_grad():
            ctx.call.losses = ctx.call.losses * grad
        ctx.call.taken = True
        return None, None, None, None

    patch.setattr(criteria._Loss, "backward", staticmethod(backward))


def deriving(parts: PrivateParts) -> None:
    for x, number in parts.data_loader:
        parts.criterion(parts.module(x) * number.sum(), number).backward()
        parts.optimizer.step()


def derived_outputs_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HandedOut, "give", lambda self, output: output.shown)
    patch.setattr(
        HandedOut,
        "find",
        lambda self, tensor: Output(tensor, tensor.unsqueeze(1)) if tensor.requires_grad else None,
    )


def copying(parts: PrivateParts) -> None:
    """Train a copy, and put what it learned into the module that the claim is about."""
    module, optimizer = copy.deepcopy((parts.module, parts.optimizer))
    for x, _ in parts.data_loader:
        module(x).sum().backward()
        optimizer.step()
        parts.module.load_state_dict(module.state_dict())
        return


def copies_train(patch: pytest.MonkeyPatch) -> None:
    def plain(self, *args, **kwargs):
        return type(self.module).forward(self.module, *args, **kwargs)

    patch.setattr(CopiedForward, "__call__", plain)
    patch.setattr(_Mark, "is_of", lambda self, optimizer: True)


# --- steps and their price --------------------------------------------------------------------------------


def some(rows: int) -> TensorDataset:
    return data_of([(ahead(1000.0), 1.0)] * rows)


def steps_replayed(seed: int) -> bool:
    """Count the steps of a few epochs, on neighbors of which samples are often empty."""

    def release(rows: int, generator: Generator) -> np.ndarray:
        parts = parts_of(some(rows), generator, rate=0.25)
        for _ in range(5):
            plainly(parts)
        return np.array([float(parts.privacy.steps)])

    return leaks(lambda: check_sensitivity(release, 1, 2, sensitivity=0.5, generator=seeded(seed)))


def loader_drops_empty_batches(patch: pytest.MonkeyPatch) -> None:
    def __iter__(self):
        loop = self._watcher.begin()
        self._blank.prepare(self.dataset)
        for batch in super(PoissonLoader, self).__iter__():
            if len(batch[0]):  # there is nothing to learn from the others
                self._watcher.hand_over(loop, 0, batch)
                yield batch
        self._watcher.end(loop)

    patch.setattr(PoissonLoader, "__iter__", __iter__)


def edited_claim_told_apart(seed: int) -> bool:
    """Train with little noise, then set much of it, and ask what that cost."""

    def parts(rows: int, generator: Generator) -> PrivateParts:
        made = parts_of(some(rows), generator, noise=1.2)
        plainly(made)
        return made

    def run(rows: int, generator: Generator) -> float:
        return float(parts(rows, generator).module.weight.detach().sum())

    privacy = parts(2, seeded(0)).privacy
    with contextlib.suppress(AttributeError):
        privacy.noise_multiplier = 1000.0
    return audit_mechanism(
        run,
        2,
        1,
        trials=400,
        confidence=CONFIDENCE,
        claim=privacy.guarantee(DELTA),
        generator=seeded(seed),
    ).refuted


def claims_can_be_edited(patch: pytest.MonkeyPatch) -> None:
    def event(self):
        taken = [(self.step.event(self.noise_multiplier), self.steps)]  # "the noise of this run"
        return self.sampling.event(taken, relation=Relation.ADD_REMOVE)

    patch.setattr(SpentPrivacy, "__setattr__", object.__setattr__)
    patch.setattr(SpentPrivacy, "event", event)


BUGS = (
    Planted(
        name="criterion-sees-the-batch",
        bug="the criterion of a loop runs on the whole batch, where it may weigh each row by all rows",
        found_by="replay on neighbors",
        plant=criterion_sees_the_batch,
        audit=lambda seed: replayed(seed, criterion=weighed_by_all),
    ),
    Planted(
        name="tokens-averaged-over-the-batch",
        bug="a loss that averages over all tokens of a batch is taken for one of single rows",
        found_by="replay on neighbors",
        plant=one_number_for_the_batch,
        audit=tokens_replayed,
    ),
    Planted(
        name="loss-scaled-by-the-batch",
        bug="a loop may multiply its loss by a number that was computed from the batch",
        found_by="replay on neighbors",
        plant=scaled_losses_accepted,
        audit=lambda seed: replayed(seed, loop=scaling),
    ),
    Planted(
        name="outputs-mixed-before-the-criterion",
        bug="a loop may compute with the outputs of all rows before the criterion sees them",
        found_by="replay on neighbors",
        plant=derived_outputs_accepted,
        audit=lambda seed: replayed(seed, loop=deriving),
    ),
    Planted(
        name="copy-trains-without-noise",
        bug="a deep copy of a private module and optimizer trains like any other, and costs nothing",
        found_by="replay on neighbors",
        plant=copies_train,
        audit=lambda seed: replayed(seed, loop=copying),
    ),
    Planted(
        name="loader-drops-empty-batches",
        bug="a batch without rows is not handed to the loop: the number of steps tells who was sampled",
        found_by="replay on neighbors",
        plant=loader_drops_empty_batches,
        audit=steps_replayed,
    ),
    Planted(
        name="claim-edited-afterwards",
        bug="the noise multiplier of a finished run can be set, and prices the steps that were taken",
        found_by="event search",
        plant=claims_can_be_edited,
        audit=edited_claim_told_apart,
    ),
)
