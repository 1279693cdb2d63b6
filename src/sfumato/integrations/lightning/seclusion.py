# SPDX-License-Identifier: Apache-2.0
"""What a `LightningModule` can reach of Lightning while private rows go through its `training_step`.

Guarantee  In `entered`, `self.trainer` is a stand-in that has public numbers only (steps, epochs), and
           `self.log`, `self.log_dict` and `self.print` drop what they are given: it is computed from private
           rows. So nothing of a row reaches a metric, a logger, a progress bar or the state of a trainer.
           What `training_step` prints, warns of or logs otherwise is not shown (`silence`).
Failure    Anything else of the trainer raises, by name. Both happen on synthetic rows first, before a run is
           paid for.
"""

import inspect
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError
from sfumato.training.data.readable_rows import BATCH, READABLE

__all__ = ["RowLoss", "Seclusion"]

_FIXED: Final = {
    **{"training": True, "is_global_zero": True, "world_size": 1, "num_devices": 1, "num_nodes": 1},
    **{"global_rank": 0, "local_rank": 0, "node_rank": 0},
    **{"validating": False, "testing": False, "predicting": False, "evaluating": False},
    **{"sanity_checking": False, "barebones": False, "fast_dev_run": False},
}
_PUBLIC: Final = frozenset(
    {"global_step", "current_epoch", "max_epochs", "min_epochs", "max_steps", "min_steps"}
    | {"num_training_batches", "estimated_stepping_batches", "is_last_batch"}
)
_DROPPED: Final = ("log", "log_dict", "print")


def _stand_in(trainer: Trainer) -> Any:
    """Return the trainer that a module sees in `training_step`. No attribute of it leads to the real one."""

    class StandIn:
        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            if name in _FIXED:
                return _FIXED[name]
            if name in _PUBLIC:
                return getattr(trainer, name)
            if name.startswith("__"):
                raise AttributeError(name)
            raise InvalidParameterError(
                f"training_step uses self.trainer.{name}. While private rows go through a module, it sees "
                "numbers of steps and epochs alone: a logger, an optimizer or a metric would keep something "
                "of the rows. Take it out of training_step; validation_step and on_train_epoch_end may use "
                "it."
            )

        def __setattr__(self, name: str, value: Any) -> None:
            raise InvalidParameterError(
                f"training_step sets trainer.{name}, which may hold something of a row."
            )

    return StandIn()


def _dropping(note: Callable[[str], None]) -> Callable[..., None]:
    """Return what takes the place of a method that shows values, and shows nothing."""

    def drop(*args: Any, **options: Any) -> None:
        named = args[0] if args else options.get("name", options.get("dictionary"))
        for name in named if isinstance(named, Mapping) else (named,):  # pyright: ignore[reportUnknownVariableType]
            if isinstance(name, str):
                note(name)

    return drop


class Seclusion:
    """Switches a module between what it sees in `training_step` and what it sees elsewhere."""

    def __init__(self, module: LightningModule, trainer: Trainer) -> None:
        self._modules = [part for part in module.modules() if isinstance(part, LightningModule)]
        self._trainers = [vars(part)["_trainer"] for part in self._modules]
        self._stand_in, self._dropped = _stand_in(trainer), _dropping(self._note)
        self._logged: set[str] | None = set()  # by synthetic rows; None once private rows may be at work
        self._inside = False
        self.batch_idx = 0

    def _note(self, name: str) -> None:
        if self._logged is not None:
            self._logged.add(name)

    @contextmanager
    def entered(self) -> Generator[None]:
        """Show the module public numbers alone."""
        with self._as(True):
            yield

    @contextmanager
    def left(self) -> Generator[None]:
        """Show the module its trainer again, inside of `entered`."""
        with self._as(False):
            yield

    @contextmanager
    def _as(self, inside: bool) -> Generator[None]:
        before = self._inside
        self._put(inside)
        try:
            yield
        finally:
            self._put(before)

    def _put(self, inside: bool) -> None:
        if inside == self._inside:
            return
        for part, trainer in zip(self._modules, self._trainers, strict=True):
            own = vars(part)
            own["_trainer"] = self._stand_in if inside else trainer
            for name in _DROPPED:
                if inside:
                    own[name] = self._dropped
                else:
                    own.pop(name, None)
        self._inside = inside

    def close_rehearsal(self) -> frozenset[str]:
        """Return the names that synthetic rows logged; those of private rows are not kept."""
        logged, self._logged = self._logged, None
        if logged:
            warnings.warn(
                f"training_step logs {sorted(logged)}. These are computed from private rows, so they are not "
                "logged and not shown. Log what you need in validation_step.",
                stacklevel=2,
            )
        return frozenset(logged or ())


class RowLoss:
    """`training_step` as a loss: one number for one row."""

    def __init__(self, module: LightningModule, seclusion: Seclusion) -> None:
        self._seclusion = seclusion
        self._indexed = _takes_index(module)

    def __call__(self, module: nn.Module, rows: Mapping[str, Any]) -> Tensor:
        """Return the loss that `training_step` computes of a batch of one row, as a tensor of one entry.

        Args:
            module: The Lightning module.
            rows: The batch under its key.

        Returns:
            The loss, of shape [1].

        Raises:
            InvalidParameterError: If `training_step` returns something else.
        """
        found = self._step(module, rows[BATCH])
        loss: Any = found.get("loss") if isinstance(found, Mapping) else found  # pyright: ignore[reportUnknownMemberType]
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise InvalidParameterError(
                "training_step must return the loss of its batch, one number, or a dict with it under "
                "'loss'. Each batch is a step, so none can be skipped by returning None."
            )
        readable = rows.get(READABLE)
        return loss.reshape(1) if readable is None else loss.reshape(1) * readable.to(loss.dtype)

    def _step(self, module: nn.Module, batch: Any) -> Any:
        step: Callable[..., Any] = module.training_step  # pyright: ignore[reportAssignmentType] - a LightningModule's
        return ordinary(lambda: step(batch, self._seclusion.batch_idx) if self._indexed else step(batch))


def _takes_index(module: LightningModule) -> bool:
    """Return whether `training_step` gets the number of the batch: as Lightning decides it."""
    parameters = inspect.signature(module.training_step).parameters
    if "dataloader_iter" in parameters:
        raise InvalidParameterError(
            "training_step takes dataloader_iter, so it would draw batches itself. Let it take a batch."
        )
    return len(parameters) > 1
