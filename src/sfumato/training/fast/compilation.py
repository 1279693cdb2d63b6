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
            _warn(f"could not be compiled ({type(error).__name__}; set TORCH_LOGS=inductor to see more)")
            return run
        if not agrees:
            _warn("was compiled to something that does not agree with it")
            return run
        return compiled


def _warn(what: str) -> None:
    warnings.warn(f"the pass {what}; going on without compile=True, which is slower.", stacklevel=8)


def _compiled(run: Pass, batch: Sequence[Any]) -> Pass:
    from torch import _inductor  # heavy, so only when something is compiled
    from torch.fx.experimental.proxy_tensor import make_fx

    names: list[str] = []

    def flat(*parts: Tensor) -> list[Tensor]:
        total, found = run(rows.refilled(batch, parts))
        names[:] = found.sums
        return [total, *found.sums.values(), *([] if found.below is None else [found.below])]

    example = _contiguous(batch)
    with kernels.seen_by_tracers():
        traced = make_fx(flat)(*example)
    held = _made_inputs(traced)
    with torch.no_grad(), torch.autocast(example[0].device.type, enabled=False):
        # What torch.compile calls in the end: its guards take longer than a small program.
        program: Any = _inductor.compile(traced, [*held, *example], options={"freezing": False})

    def compiled(given: Sequence[Any]) -> tuple[Tensor, ClippedSums]:
        parts = _contiguous(given)
        device = parts[0].device.type
        if torch.is_autocast_enabled(device):  # what was cast is in the program, and nothing else may be
            with torch.autocast(device, enabled=False):
                return compiled(given)
        with torch.no_grad():
            total, *found = program(*held, *parts)
        sums = dict(zip(names, found, strict=False))
        return total, ClippedSums(sums, found[len(names)] if len(found) > len(names) else None)

    return compiled


def _made_inputs(traced: Any) -> list[Tensor]:
    """Make inputs of what a traced program holds, and return it: nothing can then be taken for constant.

    It holds parameters and thresholds. They change between calls, in place.
    """
    held: dict[str, Tensor] = {}
    places: dict[str, Any] = {}
    first = next(iter(traced.graph.nodes))
    for node in traced.graph.find_nodes(op="get_attr"):
        if node.target not in places:
            held[node.target] = getattr(traced, node.target)
            delattr(traced, node.target)
            with traced.graph.inserting_before(first):
                places[node.target] = traced.graph.placeholder(f"held_{len(places)}")
        node.replace_all_uses_with(places[node.target])
        traced.graph.erase_node(node)
    traced.recompile()
    return list(held.values())


def _contiguous(batch: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of a batch in the one layout that programs are compiled for."""
    return [part.contiguous() for part in rows.tensors(batch)]


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
