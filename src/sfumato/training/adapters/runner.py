# SPDX-License-Identifier: Apache-2.0
"""Run calls of a private module and its criterion on the rows of a batch.

Guarantee  `isolated` runs a call while each row is alone and every use of a parameter is recorded on a tape.
           `plainly` runs it on the whole batch without gradients: the result is only shown to the user, and
           no gradient is ever computed from it. Both leave module and criterion as they were, or raise
           `NotPrivateError` (`integrity.release_barrier`).
Failure    What cannot run in isolation raises `UnsupportedUseError`. No message quotes a row: an error of the
           module or the criterion is raised as it is only if rows of zeros raise it as well.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from sfumato.errors import UnsupportedUseError
from sfumato.training.data.rows import Grouping
from sfumato.training.engine import parameter_values
from sfumato.training.engine.functional import needs_autograd
from sfumato.training.engine.step.failure_guard import QUOTES_NO_ROW, guarded
from sfumato.training.engine.tape.operation import Memory
from sfumato.training.engine.tape.tape import Tape, Tracked
from sfumato.training.integrity.release_barrier import Barrier
from sfumato.training.isolation.isolated_rows import Isolated, cannot_run
from sfumato.training.models import batch_norm

__all__ = ["Autocast", "Runner"]

T = TypeVar("T")


class Autocast:
    """The state of autocast when a call was made, to be had again for the same call."""

    def __init__(self, device: torch.device) -> None:
        kind = device.type
        self._settings = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def again(self) -> torch.autocast:
        """Return a context with that state."""
        device, dtype, enabled = self._settings
        return torch.autocast(device, dtype, enabled)


class _Watched(nn.Module):
    """Both that must keep nothing of rows."""

    def __init__(self, module: nn.Module, criterion: Any) -> None:
        super().__init__()
        self.module = module
        self.criterion = criterion


class Runner:
    """Runs calls of one module and its criterion."""

    def __init__(self, module: nn.Module, criterion: Any) -> None:
        self.may_release = True  # whether operations may let go of their inputs on the way (`tape`)
        self.isolates = True  # whether everything so far could run in isolation
        self._own_tensors = False  # whether the module writes rows into tensors that it makes
        self._module = module
        self._places = parameter_values.find(module)
        self._tracked = {name: Tracked.of(p, name) for name, p in self._places.parameters.items()}
        self._barrier = Barrier(_Watched(module, criterion))
        self._may_mix = any(hasattr(part, "running_mean") for part in module.modules())

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """What is trained."""
        return self._places.parameters

    @property
    def device(self) -> torch.device:
        """The device of the first parameter that is trained."""
        return next(iter(self._places.parameters.values())).device

    def isolated(
        self, rows: int, memory: Memory, work: Callable[[Isolated], T], settle: Callable[[], object]
    ) -> tuple[T, Tape]:
        """Do work on isolated rows; return what it returns, and the tape of it.

        `settle` does the same on synthetic rows, to fill caches that depend on shapes alone.
        """
        self._refuse_mixing()
        return self._barrier.run(lambda: self._recorded(rows, memory, work), settle)

    def plainly(
        self, work: Callable[[], T], *, settle: Callable[[], object], zeros: Callable[[], object]
    ) -> T:
        """Do work on the rows of a batch, without gradients. `zeros` does the same on rows of zeros."""
        self._refuse_mixing()
        with torch.no_grad(), parameter_values.as_written():
            return guarded(
                lambda: self._barrier.run(work, settle, thorough=True),
                on_zeros=zeros,
                parts="the module or the criterion",
            )

    def _refuse_mixing(self) -> None:
        if self._may_mix:  # it depends on the mode, which may have changed
            batch_norm.refuse_mixing(self._module)

    def _recorded(self, rows: int, memory: Memory, work: Callable[[Isolated], T]) -> tuple[T, Tape]:
        try:
            return self._attempted(rows, memory, work)
        except QUOTES_NO_ROW:
            raise
        except Exception as error:
            refused = cannot_run(error)
        # Outside the handler: the message of torch may quote a value, and must not be chained.
        if self._own_tensors:
            raise refused
        self._own_tensors = True
        try:
            return self._recorded(rows, memory, work)
        except UnsupportedUseError:
            self._own_tensors = False
            raise

    def _attempted(self, rows: int, memory: Memory, work: Callable[[Isolated], T]) -> tuple[T, Tape]:
        if needs_autograd(self._module.modules()):
            raise UnsupportedUseError(
                "a module has a hook on its gradients, which has to see each row alone."
            )
        isolated = Isolated(rows, own_tensors=self._own_tensors)
        tape = Tape(Grouping(units=rows), isolated, memory, may_release=self.may_release)
        self._put(tape)
        try:
            with torch.enable_grad(), self._places.swapped(self._tracked), isolated:
                found = work(isolated)
            if tape.refused is not None:  # operators take a TypeError for "try the other way round"
                raise tape.refused
            return found, tape
        except Exception:
            if tape.refused is not None:
                raise tape.refused from None
            raise
        finally:
            for tracked in self._tracked.values():
                del tracked.tape  # it holds the activations of this batch

    def _put(self, tape: Tape) -> None:
        for name, tracked in self._tracked.items():
            if tracked.stale:
                self._tracked[name] = tracked = Tracked.of(tracked.parameter, name)
            tracked.tape = tape
