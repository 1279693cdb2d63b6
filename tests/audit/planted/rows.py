# SPDX-License-Identifier: Apache-2.0
"""Bugs of attribution: whose row it is. Each is attacked with models that sort, route and mix rows."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import SfumatoError, UnsupportedModelError
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded
from sfumato.training import PassSettings, PrivateGradients
from sfumato.training.data.augmentation import Augmenter
from sfumato.training.data.units import Units
from sfumato.training.engine import rehearsal
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.rules.linear import LinearOp
from sfumato.training.engine.tape.tape import Tape
from sfumato.training.isolation import isolated_rows, vmap_substitutes
from sfumato.training.isolation.isolated_rows import Isolated

from .catalogue import Planted, leaks

__all__ = ["BUGS"]

SLACK = 1.01  # float32 rounding
ROWS = 24


class Model(nn.Module):
    """A model of two layers, with something done to the rows in between."""

    def __init__(self, do: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.do = do

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.do(self, x))


def _sorted(model: nn.Module, x: Tensor) -> Tensor:
    order = x.sum(1).argsort()
    return model.first(x[order])[order.argsort()].tanh()


def _weakly_mixed(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x + 0.05 * x.sum(0)).tanh()


def _centered(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x).tanh() - model.first(x).tanh().mean(0)


def _gathered(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x[x.sum(1).topk(len(x)).indices]).tanh()


def _apart(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x).tanh()


def _two_ways(model: nn.Module, x: Tensor) -> Tensor:
    """Send each row to one of two branches by its own values, as a mixture of experts does."""
    first = x.sum(1) > 0
    h = x.new_zeros(len(x), 6)
    h[first], h[~first] = model.first(x[first]).tanh(), model.first(-x[~first]).relu()
    return h


def _penalized(model: nn.Module, x: Tensor) -> Tensor:
    """Learn from the slope as well, while training."""
    if not model.training:
        return model.first(x).tanh()
    x = x.detach().requires_grad_()
    h = model.first(x).tanh()
    (slope,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    return h + slope.sum(1, keepdim=True)


class _Halved(torch.autograd.Function):
    """A function of the user's own, of a kind that has no rule for rows."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return 0.5 * x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return 0.5 * grad @ weight, 0.5 * grad.T @ x


def _by_own_function(model: nn.Module, x: Tensor) -> Tensor:
    return _Halved.apply(x, model.first.weight) if model.training else model.first(x)


def _standardized(model: nn.Module, x: Tensor) -> Tensor:
    h = model.first(x)
    return h / h.std(0)


MODELS = (_apart, _sorted, _weakly_mixed, _centered, _gathered, _two_ways, _penalized, _by_own_function)


def rows(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.3, 3.0])[torch.randint(2, (ROWS, 1), generator=generator)]
    return scale * torch.randn(ROWS, 4, generator=generator)


def moved_too_far(do: Callable[[nn.Module, Tensor], Tensor], seed: int, *, check: bool = True) -> bool:
    """Take a step on neighbors with the same noise: does one row move what is released by too much?"""

    def release(x: Tensor, generator: Generator) -> np.ndarray:
        model = Model(do)
        private = PrivateGradients(
            model,
            _loss,
            clip_norm=1.0,
            noise_multiplier=1.0,
            expected_batch_size=1.0,
            passes=PassSettings(check=check),
            generator=generator,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private.backward(x)
        return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()

    x = rows(seed)
    large = 30 * torch.ones(1, 4)
    pairs = ((x, x[1:]), (torch.cat([x, large]), x), (torch.cat([x, -large]), x))
    return any(
        leaks(lambda pair=pair: check_sensitivity(release, *pair, sensitivity=SLACK, generator=seeded(seed)))
        for pair in pairs
    )


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), (x.sum(1) > 0).long(), reduction="none")


def any_model(seed: int) -> bool:
    """Train each model with default settings: is one that is right refused, or does a row move too far?"""
    try:
        return any(moved_too_far(do, seed) for do in MODELS)
    except UnsupportedModelError:
        return True


def any_model_unchecked(seed: int) -> bool:
    return any(moved_too_far(do, seed, check=False) for do in MODELS)


def standardized(seed: int) -> bool:
    """Train a model that has no gradient on a row alone: it is refused, or does a row move too far?"""
    try:
        return moved_too_far(_standardized, seed)
    except UnsupportedModelError:  # refused, so nothing is released
        return False


def run_the_plain_batch(patch: pytest.MonkeyPatch) -> None:
    """Show a model all rows, as an ordinary pass does, and take row i of every operation for row i."""
    patch.setattr(Isolated, "split", lambda self, x: x)
    patch.setattr(Isolated, "join", lambda self, x: x)
    patch.setattr(Isolated, "_rows", lambda self, found: found)
    patch.setattr(isolated_rows, "is_row", lambda value: False)
    patch.setattr("sfumato.training.engine.book_keeping.checked", lambda losses, rows: losses[None])


def compare_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave rows without a gradient of their own out of the self-check, and go on when none is left."""
    run_the_plain_batch(patch)
    right = rehearsal.rehearse_any
    patch.setattr(
        "sfumato.training.engine.passes.rehearse_any",
        lambda made, run, *, done: right(made, run, done=lambda: True),
    )


def check_private_rows(patch: pytest.MonkeyPatch) -> None:
    """Rehearse with the rows of the first batch that has any."""
    right = Passes.settle

    def settle(self: Passes, batch: Any, made_up: Any = None) -> None:
        if len(batch[1]):
            right(self, batch, made_up)

    patch.setattr(Passes, "settle", settle)
    patch.setattr("sfumato.training.engine.passes.synthetic", lambda batch: iter([batch]))


def stops_by_rows(seed: int) -> bool:
    """Step over rows without a gradient, over others, and over none: does the run stop for some of them?"""

    def stops(x: Tensor) -> bool:
        model = Model(MODELS[0])
        private = PrivateGradients(
            model, _loss, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1.0, generator=seeded(seed)
        )
        try:
            private.backward(x)
        except SfumatoError:
            return True
        return False

    x = rows(seed)
    return len({stops(x), stops(x * torch.nan), stops(x[:0])}) > 1


def trust_torchs_rules(patch: pytest.MonkeyPatch) -> None:
    """Leave a look-up in a table of each row's own to torch's vmap rule."""
    patch.delitem(isolated_rows._GUARDS, F.embedding)


class OwnTable(nn.Module):
    """Looks up a word (the fifth number of a row) in a table made of the row; the sixth is a factor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        table = self.layer(x[:, :4])[0][:, None]
        return F.embedding(x[:, 4].long(), table)[:, 0] * x[:, 5]


def other_tables(seed: int) -> bool:
    """Add a row whose word is in the table of the next one: does the next one's gradient turn around?"""

    def release(x: Tensor, generator: Generator) -> np.ndarray:
        model = OwnTable()
        private = PrivateGradients(
            model, lambda model, x: model(x), clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1.0,
            generator=generator,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private.backward(x)
        return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()

    x = torch.cat([rows(seed)[:3], torch.ones(3, 2)], 1)
    hostile = torch.tensor([[1.0, 1, 1, 1, 5, -1e4]])  # the word 1 of the next row
    pair = torch.cat([hostile, x]), x
    return leaks(lambda: check_sensitivity(release, *pair, sensitivity=SLACK, generator=seeded(seed)))


def rows_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Note the inputs of operations in another order than their gradients."""
    right = LinearOp.__init__
    patch.setattr(LinearOp, "__init__", lambda self, x, *a, **o: right(self, x.roll(1, 0), *a, **o))


def an_adapter_that_mixes(patch: pytest.MonkeyPatch) -> None:
    """Take losses of all rows in one kernel, and divide them by the largest."""
    right = vmap_substitutes._cross_entropy

    def scaled(rows, function, input, target, *args, **kwargs):
        losses = right(rows, function, input, target, *args, **kwargs)
        return rows.on_batch(lambda: 0.5 * rows.join(losses) / rows.join(losses).max())

    patch.setitem(isolated_rows._ADAPTERS, F.cross_entropy, scaled)


def inputs_that_mix(patch: pytest.MonkeyPatch) -> None:
    """Give rules an input that is centered over the batch."""
    right = Tape.rows
    patch.setattr(Tape, "rows", lambda self, x: right(self, x) - right(self, x).mean(0))


def augment_all_at_once(patch: pytest.MonkeyPatch) -> None:
    """Show an augmentation the rows of all units."""
    patch.setattr(
        Augmenter, "__call__", lambda self, batch, *, rows_per_unit, seed: self._changed(batch, seed)
    )


def mixed_views(seed: int) -> bool:
    """Mix the rows at even places: does the row of another unit show in a unit's?"""

    def mixup(batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        x = batch[0].clone()
        x[::2] = (x[::2] + x[::2].flip(0)) / 2
        return (x, *batch[1:])

    def release(x: Tensor, generator: Generator) -> np.ndarray:
        return Units((x,), augment=mixup, views=2).take(torch.arange(4), generator).rows[0][:2].numpy()

    x = rows(seed)[:4]
    other = torch.cat([x[:3], 100 * torch.ones(1, 4)])
    return leaks(lambda: check_sensitivity(release, x, other, sensitivity=1e-3, generator=seeded(seed)))


BUGS = (
    Planted(
        name="a-check-that-compares-nothing",
        bug="rows that are not finite alone are left out of the self-check, which may then look at none",
        found_by="replay on neighbors",
        plant=compare_nothing,
        audit=standardized,
    ),
    Planted(
        name="a-check-on-private-rows",
        bug="a model is rehearsed with the rows of the first batch that has any, and not with synthetic ones",
        found_by="replay on neighbors",
        plant=check_private_rows,
        audit=stops_by_rows,
    ),
    Planted(
        name="a-word-in-another-rows-table",
        bug="a look-up in a table of each row's own reads the next row's, if a word is out of range",
        found_by="replay on neighbors",
        plant=trust_torchs_rules,
        audit=other_tables,
    ),
    Planted(
        name="rows-believed-to-stay-in-place",
        bug="a model sees the whole batch, and row i of every operation is taken for row i of the data",
        found_by="replay on neighbors",
        plant=run_the_plain_batch,
        audit=any_model,
        unchecked=any_model_unchecked,
    ),
    Planted(
        name="rows-out-of-order",
        bug="an operation pairs the input of one row with the gradient of another",
        found_by="self-check",
        plant=rows_out_of_order,
        audit=any_model,
        unchecked=any_model_unchecked,
    ),
    Planted(
        name="a-fast-path-that-mixes-rows",
        bug="a function that is computed for all rows at once divides them by the largest",
        found_by="self-check",
        plant=an_adapter_that_mixes,
        audit=any_model,
        unchecked=any_model_unchecked,
    ),
    Planted(
        name="inputs-centered-over-the-batch",
        bug="rules get inputs that depend on all rows",
        found_by="self-check",
        plant=inputs_that_mix,
        audit=any_model,
        unchecked=any_model_unchecked,
    ),
    Planted(
        name="views-mixed-across-units",
        bug="an augmentation sees the rows of all units, and mixes them",
        found_by="replay on neighbors",
        plant=augment_all_at_once,
        audit=mixed_views,
    ),
)
