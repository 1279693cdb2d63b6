# SPDX-License-Identifier: Apache-2.0
"""Compiled passes: forward, backward, norms, clipping and sums as one program, by `torch.compile`.

A pass is traced once for each shape: the operations of the engine itself are traced, with the parameters as
they are at each call. A model must do the same operations whatever the values. Torch keeps what it compiled
in files (`TORCHINDUCTOR_CACHE_DIR`), where the next process finds it.

Guarantee  A compiled pass is used only if it agrees with the original pass on synthetic rows. A pass that
           draws (dropout) draws different numbers once compiled, so only the size of its norms can agree.
           Programs and the files of torch hold no row: only synthetic ones are seen while tracing. They hold
           no weight either: parameters and buffers are inputs of the program.
Failure    A pass that cannot be traced or compiled, or that does not agree, runs as it is, and the reason is
           told in one line. Messages of the compiler are not repeated: they may quote values.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.errors import SfumatoError
from sfumato.training.data import rows
from sfumato.training.fast import agreement, kernels, program_layout
from sfumato.training.fast.pass_cache import Pass
from sfumato.training.fast.precision import whole_floats
from sfumato.training.privacy.clipping import ClippedSums
from sfumato.training.random_state import RandomState, same_draws

__all__ = ["Compiling", "no_compiler", "reason_of"]

_CHANNELS_LAST = ("cuda",)  # devices whose convolutions are faster so
_CAPABILITY = (7, 0)  # of a GPU that Triton has code for


def _warn(what: str) -> None:
    warnings.warn(f"{what}; going on without compile=True, which is slower.", stacklevel=8)


class Compiling:
    """Records passes as compiled programs; `tell` gets the reason why one could not be made."""

    def __init__(self, tell: Callable[[str], None] = _warn) -> None:
        self._tell = tell

    def takes(self, batch: Sequence[Any]) -> bool:
        """Whether a batch can be compiled for: any can."""
        return True

    def record(self, run: Pass, batch: Sequence[Any]) -> Pass:
        """Return a compiled version of a pass; the pass itself, if there is none."""
        devices = [t.device for t in rows.tensors(batch)]
        with same_draws(devices):
            before = RandomState(devices)
            with whole_floats(devices[0]):  # so that rounding hides less
                wanted = agreement.on_the_side(run(batch))
            agree = agreement.agrees if before.same_as(RandomState(devices)) else agreement.are_alike
        try:
            with same_draws(devices):
                compiled = _compiled(run, batch)
                with whole_floats(devices[0]):
                    agrees = agree(compiled(batch), wanted)
        except (torch.OutOfMemoryError, MemoryError, SfumatoError):
            raise
        except Exception as error:  # whatever a compiler raises
            self._tell(f"the pass could not be compiled ({reason_of(error)})")
            return run
        if not agrees:
            self._tell("the pass was compiled to something that does not agree with it")
            return run
        return compiled


def no_compiler(device: torch.device) -> str | None:
    """Return why nothing can be compiled for a device; None if nothing speaks against it.

    >>> no_compiler(torch.device("cpu")) is None
    True
    """
    if device.type != "cuda":
        return None
    if not kernels.installed():
        return "not compiled, because Triton is not installed"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "not compiled, because Triton has no code for this GPU"
    return None


def reason_of(error: BaseException) -> str:
    """Return why something could not be compiled, without the message: it may quote values.

    >>> reason_of(PermissionError(13, "nobody may write here"))
    'PermissionError: files cannot be written; set TORCHINDUCTOR_CACHE_DIR to a folder with room'
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return f"{type(error).__name__}; set TORCH_LOGS=dynamo to see more"
    kind = type(cause).__name__
    return f"{kind}: files cannot be written; set TORCHINDUCTOR_CACHE_DIR to a folder with room"


def _compiled(run: Pass, batch: Sequence[Any]) -> Pass:
    from torch import _guards, _inductor  # heavy, so only when something is compiled
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    names: list[str] = []

    def flat(*parts: Tensor) -> list[Tensor]:
        total, found = run(rows.refilled(batch, parts))
        names[:] = found.sums
        return [total, *found.sums.values(), *([] if found.below is None else [found.below])]

    example = _contiguous(batch)
    with kernels.seen_by_tracers():
        traced = make_fx(flat)(*example)
    held = _made_inputs(traced)
    options: dict[str, Any] = {"freezing": False}
    if example[0].device.type in _CHANNELS_LAST and program_layout.with_channels_last(traced):
        options["force_layout_optimization"] = True
    # Without a context of its own the program would not be kept in files.
    context = _guards.TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    autocast = torch.autocast(example[0].device.type, enabled=False)
    with torch.no_grad(), autocast, _guards.tracing(context):
        # What torch.compile calls in the end: its guards take longer than a small program.
        program: Any = _inductor.compile(traced, [*held, *example], options=options)

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
                places[node.target].meta = dict(node.meta)
        node.replace_all_uses_with(places[node.target])
        traced.graph.erase_node(node)
    traced.recompile()
    return list(held.values())


def _contiguous(batch: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of a batch in the one layout that programs are compiled for."""
    return [part.contiguous() for part in rows.tensors(batch)]
