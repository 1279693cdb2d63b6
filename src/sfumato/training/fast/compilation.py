# SPDX-License-Identifier: Apache-2.0
"""Compiled passes: forward, backward, norms, clipping and sums as one program, by `torch.compile`.

A pass is traced once for each shape: the operations of the engine itself are traced, with the parameters as
they are at each call. A model must do the same operations whatever the values.

Guarantee  A compiled pass is used only if it agrees with the original pass on the current batch. A pass that
           draws (dropout) draws different numbers once compiled, so only the size of its norms can agree.
Failure    A pass that cannot be traced or compiled, or that does not agree, runs as it is, with a warning.
           Messages of the compiler are not repeated: they may quote values.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.errors import SfumatoError
from sfumato.training.data import rows
from sfumato.training.fast import kernels
from sfumato.training.fast.pass_cache import Pass
from sfumato.training.privacy.clipping import ClippedSums
from sfumato.training.random_state import RandomState, same_draws

__all__ = ["Compiling"]

_AGREE: Final = {False: 1e-3, True: 3e-2}  # relative difference of sums; True: in bfloat16
_SIZE: Final = 4.0  # times that the squared norms of two draws may differ by


class Compiling:
    """Records passes as compiled programs."""

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether a batch can be compiled for: any can."""
        return True

    def record(self, run: Pass, batch: Sequence[Any]) -> Pass:
        """Return a compiled version of a pass; the pass itself, with a warning, if there is none."""
        devices = [t.device for t in rows.tensors(batch)]
        with same_draws(devices):
            before = RandomState(devices)
            wanted = run(batch)  # also measures what must not be measured while tracing
            agree = _agree if before.same_as(RandomState(devices)) else _alike
        try:
            with same_draws(devices):
                compiled = _compiled(run, batch)
                agrees = agree(compiled(batch), wanted)
        except (torch.OutOfMemoryError, MemoryError, SfumatoError):
            raise
        except Exception as error:  # whatever a compiler raises
            _warn(f"could not be compiled ({type(error).__name__}; set TORCH_LOGS=dynamo to see more)")
            return run
        if not agrees:
            _warn("was compiled to something that does not agree with it")
            return run
        return compiled


def _warn(what: str) -> None:
    warnings.warn(f"the pass {what}; going on without compile=True, which is slower.", stacklevel=8)


def _compiled(run: Pass, batch: Sequence[Any]) -> Pass:
    from torch.fx.experimental.proxy_tensor import make_fx  # heavy, so only when something is compiled

    def flat(*parts: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        total, found = run(rows.refilled(batch, parts))
        return total, found.sums, found.below

    with kernels.seen_by_tracers():
        traced = make_fx(flat)(*rows.tensors(batch))
    program = torch.compile(traced, dynamic=False)

    def compiled(given: Sequence[Any]) -> tuple[Tensor, ClippedSums]:
        parts = list(rows.tensors(given))
        device = parts[0].device.type
        if torch.is_autocast_enabled(device):  # what was cast is in the program, and nothing else may be
            with torch.autocast(device, enabled=False):
                return compiled(given)
        with torch.no_grad():
            total, sums, below = program(*parts)
        return total, ClippedSums(sums, below)

    return compiled


def _alike(got: tuple[Tensor, ClippedSums], wanted: tuple[Tensor, ClippedSums]) -> bool:
    """Whether the total norms of two draws are of one size."""
    one, other = float(got[0]), float(wanted[0])
    return other / _SIZE <= one <= other * _SIZE or not (math.isfinite(one) or math.isfinite(other))


def _agree(got: tuple[Tensor, ClippedSums], wanted: tuple[Tensor, ClippedSums]) -> bool:
    """Whether totals and sums are the same up to rounding, relative to the largest of the sums."""
    tolerance = _AGREE[torch.is_autocast_enabled(wanted[0].device.type)]
    if not bool(wanted[0].isfinite()):
        return not bool(got[0].isfinite())
    if not torch.allclose(got[0], wanted[0], rtol=tolerance):
        return False
    sums = wanted[1].sums
    scale = max(float(total.double().norm()) for total in sums.values())
    apart = [float((got[1].sums[name].double() - total.double()).norm()) for name, total in sums.items()]
    return max(apart) <= tolerance * scale
