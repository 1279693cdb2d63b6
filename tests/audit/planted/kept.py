# SPDX-License-Identifier: Apache-2.0
"""Bugs of the release barrier: what a model may keep of the rows that it has seen."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import NotPrivateError
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded
from sfumato.training import PrivateGradients
from sfumato.training.integrity import comparison, model_tensors, release_barrier
from sfumato.training.integrity.model_references import Snapshot

from .catalogue import Planted, leaks

__all__ = ["BUGS"]

NOTHING = 1e-3  # how far a row may move what no noise protects: by rounding
PAIR = ([1, 2], [1, 2, 5])  # tokens of a data set and of its neighbor


class Keeping(nn.Module):
    """Looks tokens up, and does something besides."""

    def __init__(self, do: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.table, self.do, self.last = nn.Embedding(8, 4), do, None
        self.scale = nn.Parameter(torch.ones(4))
        nn.init.constant_(self.table.weight, 3.0)
        self.center = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.table(tokens)
        with torch.no_grad():
            self.do(self, found.detach() * (tokens[:, None] + 1))
        return found * self.scale


def bounded() -> nn.Module:
    model = Keeping(lambda m, h: None)
    model.table.max_norm = 1.0
    model.table.requires_grad_(False)
    return model


def unwrapped(kept: Tensor | None) -> Tensor | None:
    """Return what vmap wrapped: the rows are all there."""
    while kept is not None and model_tensors.is_wrapped(kept):
        kept = torch._C._functorch.get_unwrapped(kept)
    return None if kept is None else kept.reshape(-1, 4)


def keeping(do: Callable[[nn.Module, Tensor], object]) -> Callable[[], nn.Module]:
    return lambda: Keeping(do)


def keep_center(m: nn.Module, h: Tensor) -> None:
    m.center.data.copy_(h.mean(0))


def count_rows(m: nn.Module, h: Tensor) -> None:
    m.seen += int(bool(h.isfinite().all()))  # which looks at values, so that rows are run one by one


def move_average(m: nn.Module, h: Tensor) -> None:
    m.average.lerp_(h.mean(0), 0.5)


def keep_last(m: nn.Module, h: Tensor) -> None:
    m.last = h.clone()


def kept_replayed(
    seed: int, model: Callable[[], nn.Module], read: Callable[[nn.Module], Tensor | None]
) -> bool:
    """Take a step on neighbors, with default settings: does what the model keeps tell them apart?"""

    def release(tokens: list[int], generator: Generator) -> np.ndarray:
        trained = model()
        private = PrivateGradients(
            trained,
            lambda m, x: m(x).sum(1),
            clip_norm=1.0,
            noise_multiplier=1.0,
            expected_batch_size=2.0,
            generator=generator,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it goes on row by row
            private.backward(torch.tensor(tokens))
        kept = read(trained)
        return np.zeros(4) if kept is None else kept.detach().double().sum(0).reshape(-1).numpy()

    def refused_or_released(tokens: list[int], generator: Generator) -> np.ndarray:
        try:
            return release(tokens, generator)
        except NotPrivateError:
            return np.zeros(4)  # and nothing leaves

    return leaks(
        lambda: check_sensitivity(refused_or_released, *PAIR, sensitivity=NOTHING, generator=seeded(seed))
    )


def forgetting(patch: pytest.MonkeyPatch, forgotten: Callable[[Tensor], bool]) -> None:
    """Let a snapshot leave some tensors out."""
    original = Snapshot.__init__

    def init(self, model, **settings):
        original(self, model, **settings)
        self.tensors = [(name, tensor) for name, tensor in self.tensors if not forgotten(tensor)]

    patch.setattr(Snapshot, "__init__", init)


def forget_parameters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(release_barrier, "refuse_rewriting", lambda model: None)
    forgetting(patch, lambda tensor: isinstance(tensor, nn.Parameter))  # "those are noised"


def forget_frozen_parameters(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, lambda tensor: isinstance(tensor, nn.Parameter) and not tensor.requires_grad)


def forget_whole_numbers(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, lambda tensor: not tensor.is_floating_point())


def leave_the_barrier_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(release_barrier.Barrier, "run", lambda self, work, settle=None, **_: work())
    patch.setattr(release_barrier.Barrier, "guarding", lambda self, *, thorough=None: nullcontext())
    patch.setattr(release_barrier.Barrier, "forgetting", lambda self: nullcontext())


def forget_attributes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshot, "changes", lambda self, which=None: [])
    patch.setattr(Snapshot, "put_back", lambda self, which=None: None)
    patch.setattr(comparison.Watch, "unchanged", lambda self: True)
    patch.setattr(comparison, "_refuse_left", lambda snapshot: None)
    forgetting(patch, model_tensors.is_wrapped)


BUGS = (
    Planted(
        name="table-renormalized-when-read",
        bug="parameters are not compared: a table with max_norm shows which tokens it met",
        found_by="replay on neighbors",
        plant=forget_parameters,
        audit=lambda seed: kept_replayed(seed, bounded, lambda m: m.table.weight.T),
    ),
    Planted(
        name="state-in-a-frozen-parameter",
        bug="frozen parameters are taken for constants, and are not compared",
        found_by="replay on neighbors",
        plant=forget_frozen_parameters,
        audit=lambda seed: kept_replayed(seed, keeping(keep_center), lambda m: m.center[None]),
    ),
    Planted(
        name="rows-counted-in-a-buffer",
        bug="buffers of whole numbers are taken for counters of steps, and are not compared",
        found_by="replay on neighbors",
        plant=forget_whole_numbers,
        audit=lambda seed: kept_replayed(seed, keeping(count_rows), lambda m: m.seen.expand(1, 4)),
    ),
    Planted(
        name="running-average-in-a-buffer",
        bug="the barrier is left open while the rows of a step run",
        found_by="replay on neighbors",
        plant=leave_the_barrier_open,
        audit=lambda seed: kept_replayed(seed, keeping(move_average), lambda m: m.average[None]),
    ),
    Planted(
        name="activations-kept-in-an-attribute",
        bug="attributes that are neither parameters nor buffers are not compared",
        found_by="replay on neighbors",
        plant=forget_attributes,
        audit=lambda seed: kept_replayed(seed, keeping(keep_last), lambda m: unwrapped(m.last)),
    ),
)
