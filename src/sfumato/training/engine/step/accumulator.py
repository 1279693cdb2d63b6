# SPDX-License-Identifier: Apache-2.0
"""The sums of one step, side by side in memory.

All parameters of one device and type share one flat tensor, so that noise, division and sums over ranks take
one operation each, however many parameters there are. Sums are float32, or float64 for float64 parameters.
Of a parameter that is sharded over ranks, each rank has the sum of its own shard.

Guarantee  `noisy_totals` adds noise once to the sums over all ranks: by rank 0 to its share of sums that all
           ranks hold; by each rank to its own shards, of which no other rank holds any (`shard_noise`).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sfumato.training import distributed
from sfumato.training.distributed import is_sharded
from sfumato.training.privacy.noise import NoiseSource
from sfumato.training.sharding.layout import local, sharded_like
from sfumato.training.sharding.shard_noise import pieces_of_all_ranks
from sfumato.training.sharding.sharded_model import ShardedModel, WholeModel

__all__ = ["Sums", "noisy_totals"]

# What torch's own optimizers use: one launch for many tensors.
_copy_: Callable[..., None] = torch._foreach_copy_  # pyright: ignore
_add_: Callable[..., None] = torch._foreach_add_  # pyright: ignore


class Sums:
    """A running sum for each parameter."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._flat: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._views: dict[str, Tensor] = {}
        self._filled: set[str] = set()
        self._shown: dict[str, Tensor] = {}  # what `.grad` was set to, while it is a view of the sums

    @property
    def begun(self) -> bool:
        """Whether anything was added since `clear`."""
        return bool(self._filled)

    def add_(self, sums: Mapping[str, Tensor]) -> None:
        """Add to the sums of the parameters that are named."""
        self.hide()
        self._allocate()
        fresh = [name for name in sums if name not in self._filled]
        more = [name for name in sums if name in self._filled]
        if fresh:
            _copy_([self._views[n] for n in fresh], [sums[n] for n in fresh])
        if more:
            views = [self._views[n] for n in more]
            _add_(views, [sums[n].to(v.dtype) for n, v in zip(more, views, strict=True)])
        self._filled.update(fresh)

    def flat(self) -> list[Tensor]:
        """Return the sums as they lie in memory; what is done to these is done to all of them."""
        self.hide()
        if not self._filled:
            self._allocate()
        for name, view in self._views.items():
            if name not in self._filled:
                view.zero_()
        self._filled = set(self._views)
        return list(self._flat.values())

    def by_name(self) -> dict[str, Tensor]:
        """Return the sum of each parameter, after `flat`."""
        return self._views

    def clear(self) -> None:
        """Start anew."""
        self._filled = set()

    def hide(self) -> None:
        """Take the sums out of every `.grad` before they are overwritten: none may be seen without noise."""
        for name, shown in self._shown.items():
            if self._parameters[name].grad is shown:
                self._parameters[name].grad = None
        self._shown = {}

    def drop(self) -> None:
        """Set every `.grad` to None."""
        self._shown = {}
        for parameter in self._parameters.values():
            parameter.grad = None

    def to_grad(self) -> None:
        """Set every parameter's `.grad` to its sum; the next step overwrites it."""
        for name, parameter in self._parameters.items():
            view = self._views[name].to(parameter.dtype)
            parameter.grad = sharded_like(parameter, view) if is_sharded(parameter) else view
            self._shown[name] = parameter.grad

    def released(self) -> dict[str, Tensor]:
        """Return what `to_grad` set every `.grad` to, before it was rounded to the parameter's type.

        A gradient that is not its rounded sum, because something changed it, is returned as it is.
        """
        held = {name: p.grad for name, p in self._parameters.items()}
        return {name: self._unrounded(name, grad) for name, grad in held.items() if grad is not None}

    def _unrounded(self, name: str, gradient: Tensor) -> Tensor:
        view = self._views.get(name)
        if view is None or gradient is view or gradient.shape != view.shape:
            return gradient
        return view if torch.equal(gradient, view.to(gradient.dtype)) else gradient

    def _allocate(self) -> None:
        if all(name in self._views and _fits(self._views[name], p) for name, p in self._parameters.items()):
            return
        self._filled = set()
        self._flat, self._views = {}, {}
        own = {name: local(p) for name, p in self._parameters.items()}
        kinds = {name: (p.device, _dtype(p)) for name, p in own.items()}
        for kind in dict.fromkeys(kinds.values()):
            named = {name: p for name, p in own.items() if kinds[name] == kind}
            flat = torch.empty(sum(p.numel() for p in named.values()), device=kind[0], dtype=kind[1])
            parts = flat.split([p.numel() for p in named.values()])
            self._views |= {n: part.view(p.shape) for (n, p), part in zip(named.items(), parts, strict=True)}
            self._flat[kind] = flat


def _dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def _fits(view: Tensor, parameter: Tensor) -> bool:
    own = local(parameter) if is_sharded(parameter) else parameter  # `detach` takes its time
    return view.shape == own.shape and view.device == own.device and view.dtype == _dtype(own)


def noisy_totals(
    sums: Sums, sharding: ShardedModel | WholeModel, noise: NoiseSource, *, stddev: float | None, step: int
) -> list[Tensor]:
    """Return the sums over all ranks with their noise, or this rank's shards of them. All ranks must ask.

    `stddev`: the standard deviation of the noise; None if the sums have theirs.
    """
    sharding.serve()  # others may still have rows
    flat = sums.flat()
    if not isinstance(sharding, ShardedModel):
        if stddev is not None and distributed.is_first():  # before shares are added up: noise is added once
            noise.add_(flat, stddev=stddev, step=step)
        distributed.add_up_(flat)
    elif stddev is not None:
        pieces = pieces_of_all_ranks(sharding.trainable, sums.by_name()) if noise.generator.seeded else flat
        noise.add_(pieces, stddev=stddev, step=step)
    return flat
