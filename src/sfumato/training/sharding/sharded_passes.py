# SPDX-License-Identifier: Apache-2.0
"""Passes over private rows of a model whose parameters are sharded over ranks.

Guarantee  They are the passes of `passes`, with the whole values of parameters lent unit by unit. Clipped
           sums leave only after a pass was accepted: one that is thrown away, because the model kept
           something or failed on a row, has given nothing to the other ranks. From the first sum that
           leaves on, failing ends the run (`sharding.sharded_model`).
Failure    Engines that hold the whole gradient of a row, and recorded passes, are refused.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.self_check import refuse_other_routes, self_check
from sfumato.training.engine.step.settings import Engines, PassSettings
from sfumato.training.privacy.clipping import ClippedSums, Clipper, CoordinateClipping
from sfumato.training.privacy.gradient_pass import GradientPass
from sfumato.training.sharding.shard_noise import require_own_streams
from sfumato.training.sharding.sharded_model import ShardedModel

__all__ = ["ShardedPasses"]


class ShardedPasses(Passes):
    """The passes of a sharded model."""

    def __init__(
        self, model: Any, loss: Any, clipper: Clipper, *, sharding: ShardedModel, **rest: Any
    ) -> None:
        _refuse(clipper, rest["settings"], rest["projections"])
        require_own_streams(rest["generator"])
        rest["settings"] = replace(rest["settings"], engine=Engines.BOOK_KEEPING)
        self._sharding = sharding
        with sharding.lent():
            super().__init__(model, loss, clipper, **rest)

    def run(self, batch: Sequence[Any], per_unit: int, add: Callable[[ClippedSums], None]) -> None:
        """Clip a batch in pieces that fit in memory, and `add` the sums of each."""
        with self._sharding.lent():
            super().run(batch, per_unit, add)

    def settle(self, batch: Sequence[Any], made_up: Iterable[Sequence[Any]] | None = None) -> None:
        """Rehearse with synthetic rows in the shape of a batch's, unless that was done."""
        with self._sharding.lent():
            super().settle(batch, made_up)

    def rehearse(self, batch: Sequence[Any]) -> bool:
        """Run and check synthetic rows; return whether all gradients are finite."""
        with self._sharding.lent():
            return super().rehearse(batch)

    def try_synthetic(self, batch: Sequence[Any]) -> None:
        """Run synthetic rows in the shape of a batch's: an error on these quotes no private row."""
        self.rehearse(self._rehearsed.example(batch))

    def taken(self, batch: Sequence[Any], per_unit: int, recorded: GradientPass) -> ClippedSums:
        """Refuse: a pass that was made outside has not seen whole parameters."""
        raise UnsupportedUseError("recorded passes are not known for sharded models.")

    def alone(self, batch: Sequence[Any]) -> dict[str, Tensor]:
        """Refuse: the gradient of one row does not fit on a rank."""
        raise UnsupportedUseError("the gradient of a single row of a sharded model is held by no rank.")

    def _pass(self, batch: Sequence[Any], per_unit: int) -> GradientPass:
        try:
            return self._engine.run(batch, per_unit=per_unit)
        except UnsupportedUseError as error:
            reason = str(error)
        raise UnsupportedUseError(
            f"{reason} Parameters that fully_shard has cut are trained by the book-keeping engine alone: "
            "change the model, or train it without fully_shard."
        )

    def _sums_of(self, run: GradientPass) -> ClippedSums | Tensor:
        parted = self._sharding.in_parts(run)
        found = super()._sums_of(parted)
        return found if isinstance(found, Tensor) else replace(found, waiting=parted.waiting)

    def _check(self, batch: Sequence[Any], *, shows: bool) -> None:
        with self._barrier.undoing():
            refuse_other_routes(self._model, self._loss, batch)
        ways = {"parts": self._sharding.parts, "doubled": self._sharding.doubled}
        check = partial(self_check, self._engine, self._model, self._loss, batch, **ways)
        self._unchecked = not self._barred(check, batch)


def _refuse(clipper: Clipper, settings: PassSettings, projections: int | None) -> None:
    """Raise if passes are asked for that need the whole gradient of a row, or cannot ask for parameters."""
    asked = {
        "engine='functional'": settings.engine is Engines.FUNCTIONAL,
        "projections": projections is not None,
        "CoordinateClipping": isinstance(clipper.clipping, CoordinateClipping),
        "compile": settings.compile,
        "cuda_graphs": settings.cuda_graphs,
    }
    refused = [name for name, given in asked.items() if given]
    if refused:
        raise InvalidParameterError(
            f"{refused} cannot be used with parameters that fully_shard has cut: gradients of rows would "
            "have to be held whole, or whole parameters while a pass is replayed. Leave it out, or train the "
            "model without fully_shard."
        )
