# SPDX-License-Identifier: Apache-2.0
"""A tape of how a forward pass used its trainable parameters.

For the length of one forward pass each trainable parameter is a `Tracked` tensor. Whatever operation meets
one asks this module for its rule: the rule computes the same output with the plain values, and notes an `Op`
that can turn the gradient of that output into gradients of its parameters, one for each row of the batch.
An operation without a rule is refused (`UnsupportedUseError`), so no use of a parameter goes unseen.

Rows       Which axis of an operation's input counts the rows of the batch is measured, not guessed: `Layout`
           compares two passes with different numbers of rows. Every later pass must fit what was measured.
Autograd   The gradients are asked for at the outputs' edges of the graph, so in-place operations that follow
           are handled as autograd handles them, and the gradients of parameters are never computed.
Values     An input that is changed in place after it was noted is refused, as autograd would refuse it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sfumato.errors import UnsupportedUseError
from sfumato.training.rows import Grouping

__all__ = [
    "UNBATCHED",
    "Batching",
    "Layout",
    "LayoutChangedError",
    "Memory",
    "NotPassedError",
    "Op",
    "Tape",
    "Tracked",
    "autocast",
    "name_of",
    "norm_dtype",
    "plain",
    "product",
    "rule",
    "squared_norm",
    "unsupported",
    "weighted_sum",
]

Rule = Callable[..., Any]
Seen = tuple[str, torch.Size]  # a parameter, and the shape of what it was used on
_RULES: Final[dict[Any, Rule]] = {}
_LONG: Final = 1 << 19  # numbers that a CPU adds up one after another in float32 without much rounding


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register what to do when one of `functions` meets a tracked parameter.

    The rule is called with the tape, then with the arguments of the function itself.
    """

    def register(handler: Rule) -> Rule:
        _RULES.update(dict.fromkeys(functions, handler))
        return handler

    return register


class Tracked(Tensor):
    """A parameter during a recorded forward pass. It can be used only where a rule knows how."""

    parameter_name: str
    parameter: Tensor
    tape: "Tape"

    @staticmethod
    def of(parameter: Tensor, name: str) -> "Tracked":
        """Return a stand-in for a parameter; it needs a tape before it is used."""
        tracked = parameter.detach().as_subclass(Tracked)
        tracked.parameter_name, tracked.parameter = name, parameter
        return tracked

    @property
    def stale(self) -> bool:
        """Whether the parameter has moved to another device, type or shape since."""
        now = self.parameter
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage]
            return self.shape != now.shape or self.dtype != now.dtype or self.device != now.device

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = _RULES.get(func)
        if handler is not None:
            return _first(args, kwargs).tape.handle(handler, func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage] - what torch's own docs use
            result = func(*args, **kwargs)
        if _holds_tensor(result):  # a size, a dtype or a device may be asked for; a value may not get away
            raise _first(args, kwargs).tape.refuse(args, kwargs, func)
        return result


def unsupported(name: str, func: Any) -> UnsupportedUseError:
    """Return the error for a use of a parameter that has no rule."""
    called = getattr(func, "__name__", str(func))
    return UnsupportedUseError(
        f"parameter {name!r} is used by {called!r}, for which there is no book-keeping rule. Use "
        "engine='functional', which takes any operation, or apply the parameter through a layer of torch.nn."
    )


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tracked:
    stack = [*args, *kwargs.values()]
    for value in stack:
        if isinstance(value, Tracked):
            return value
        if isinstance(value, list | tuple):
            stack.extend(value)  # pyright: ignore[reportUnknownArgumentType] - any nesting
    raise TypeError("no tracked parameter among the arguments")


def _holds_tensor(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return any(_holds_tensor(part) for part in result)  # pyright: ignore[reportUnknownVariableType]
    return isinstance(result, Tensor)


def plain(value: Any) -> Any:
    """Return the parameter that a tracked one stands for; anything else as it is.

    It requires grad, so every output of a rule has an edge at which its gradient can be asked for. Its own
    gradient never is.
    """
    return value.parameter if isinstance(value, Tracked) else value


def name_of(value: Any) -> str | None:
    """Return the name of a tracked parameter, None for anything else."""
    return value.parameter_name if isinstance(value, Tracked) else None


def autocast(x: Tensor) -> Tensor:
    """Return `x` in the type that autocast would compute with, so that it is cast and kept once."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(device))
    return x


@dataclass(frozen=True, slots=True)
class Batching:
    """Where an input keeps its rows: on `axis`, `factor` entries for each, example after example."""

    axis: int
    factor: int = 1

    def rows_first(self, x: Tensor, rows: int) -> Tensor:
        """Return `x` as [rows, ...]."""
        if self.axis:
            x = x.movedim(self.axis, 0)
        return x if self.factor == 1 else x.unflatten(0, (rows, self.factor))


UNBATCHED: Final = Batching(-1)


class Memory:
    """How many bytes of per-unit gradients one pass may keep between taking norms and adding up."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def admits(self, size: int) -> bool:
        """Whether `size` bytes are left."""
        return size <= self.left

    def take(self, size: int) -> bool:
        """Take `size` bytes, if they are left."""
        taken = self.admits(size)
        self.left -= size if taken else 0
        return taken


class Op:
    """One use of parameters by one operation. Subclasses know how to read gradients off it.

    `names` maps the operation's own slots ("weight", "bias") to parameter names; only trainable ones are in.
    `grad` is the gradient of the output, rows first, once the backward pass is done.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Mapping[str, str | None], tape: "Tape") -> None:
        self.names = {slot: name for slot, name in names.items() if name is not None}
        self.grouping = tape.grouping
        self.memory = tape.memory
        self.grad: Tensor
        self._kept: dict[str, Tensor] = {}

    def saved(self) -> Sequence[Tensor]:
        """Return the tensors that must stay as they were when they were noted."""
        raise NotImplementedError

    def receive(self, grad: Tensor, rows_first: Callable[[Tensor], Tensor]) -> None:
        """Take the gradient of the output; `rows_first` brings it to [rows, ...]."""
        self.grad = rows_first(grad)

    def release(self) -> None:
        """Compute the gradients of all slots now, keep them whatever the limit, and drop everything else."""
        for slot in self.names:
            if slot not in self._kept:
                self._kept[slot] = self.per_unit(slot)
        del self.grad

    def squared_norm(self, slot: str) -> Tensor:
        """Return the squared norm of each unit's gradient: [units]."""
        return squared_norm(self.gradient(slot))

    def per_unit(self, slot: str) -> Tensor:
        """Compute each unit's gradient: [units, *shape]."""
        raise NotImplementedError

    def gradient(self, slot: str) -> Tensor:
        """Return each unit's gradient, [units, *shape], kept for a second use if memory allows."""
        found = self._kept.get(slot)
        if found is None:
            found = self.per_unit(slot)
            if self.memory.take(found.numel() * found.element_size()):
                self._kept[slot] = found
        return found

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        """Return the sum of all units' gradients, each times its weight [units]: [*shape]."""
        return weighted_sum(self.gradient(slot), weights)

    def is_kept(self, slot: str) -> bool:
        """Whether the units' gradients are at hand, so that their weighted sum costs next to nothing."""
        return slot in self._kept

    def inner(self, slot: str, other: "Op", other_slot: str) -> Tensor:
        """Return, for each unit, the inner product with another use of the same parameter: [units]."""
        found = other.inner_with(other_slot, self, slot)
        if found is not None:
            return found
        units = self.grouping.units
        mine, theirs = (g.reshape(units, -1) for g in (self.gradient(slot), other.gradient(other_slot)))
        return torch.linalg.vecdot(mine.to(norm_dtype(mine)), theirs.to(norm_dtype(theirs)))

    def inner_with(self, slot: str, other: "Op", other_slot: str) -> Tensor | None:
        """Return `inner` where this kind of operation knows a cheap way to it with that kind, else None."""
        return None


def norm_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which norms of `x` are summed: float64 stays, anything coarser becomes float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def squared_norm(per_unit: Tensor) -> Tensor:
    """Return the squared norm of each first-axis entry: [units, ...] to [units]."""
    flat = _flat(per_unit)
    if flat.shape[1] > _LONG and not flat.is_cuda:  # its norm on a CPU would be too small by up to 1e-2
        flat = flat.to(norm_dtype(flat))
        return torch.linalg.vecdot(flat, flat)
    return torch.linalg.vector_norm(flat, dim=1, dtype=norm_dtype(flat)).square_()


def _flat(per_unit: Tensor) -> Tensor:
    return per_unit if per_unit.dim() == 2 else per_unit.reshape(per_unit.shape[0], prod(per_unit.shape[1:]))


def weighted_sum(per_unit: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of all first-axis entries, each times its weight: [units, ...] to [...]."""
    flat = _flat(per_unit)
    return product(weights.to(flat.dtype)[None], flat).reshape(per_unit.shape[1:])


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, in float32 at least.

    A sum over a batch must not be rounded to a coarser type: bfloat16 rounds it by 2^-9 of its size, so that
    one unit more could move a sum of a thousand by more than its bound.
    """
    device = left.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return product(left, right)
    right = right.to(left.dtype)
    if left.dtype == norm_dtype(left):
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


class Layout:
    """Where each operation of a model keeps its rows, measured by passes of two and of three rows."""

    SIZES: ClassVar = (2, 3)

    def __init__(self, two: Sequence[Seen], three: Sequence[Seen]) -> None:
        if [name for name, _ in two] != [name for name, _ in three]:
            raise UnsupportedUseError(
                "the model uses its parameters in another order for batches of another size, so its uses "
                "cannot be matched with examples. Use engine='functional'."
            )
        self.names = [name for name, _ in two]
        self.batchings = [_batching(name, a, b) for (name, a), (_, b) in zip(two, three, strict=True)]
        self._shapes = [shape for _, shape in two]

    @property
    def has_shared(self) -> bool:
        """Whether a parameter meets something that all rows share, of which each row is then given a copy."""
        return UNBATCHED in self.batchings

    def at(self, place: int, name: str, shape: torch.Size, rows: int) -> Batching:
        """Return where the input of the operation at a place keeps its rows, if it is as it was measured."""
        if place >= len(self.names) or self.names[place] != name:
            raise LayoutChangedError
        where, measured = self.batchings[place], self._shapes[place]
        if where is UNBATCHED:
            return _shared(measured, shape, rows)
        if len(shape) != len(measured) or shape[where.axis] != rows * where.factor:
            raise LayoutChangedError
        return where


def _shared(measured: torch.Size, shape: torch.Size, rows: int) -> Batching:
    """Return where the rows are in what all rows shared when measured: copies may have been made since."""
    widened = len(shape) == len(measured) + 1 or (len(shape) == len(measured) > 1 and measured[0] == 1)
    if widened and shape[0] == rows:
        return Batching(0)
    if len(shape) != len(measured):
        raise LayoutChangedError
    return UNBATCHED


def _batching(name: str, two: torch.Size, three: torch.Size) -> Batching:
    if two == three:
        return UNBATCHED
    axes = [axis for axis, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
    if len(two) == len(three) and len(axes) == 1:
        (axis,) = axes
        factor = two[axis] // 2
        if two[axis] == 2 * factor and three[axis] == 3 * factor and (factor == 1 or axis == 0):
            return Batching(axis, factor)
    raise UnsupportedUseError(
        f"the input of the operation that uses parameter {name!r} does not keep one row an example: its "
        f"shape is {list(two)} for two examples and {list(three)} for three. An operation that mixes "
        "examples has no per-example gradient; if it does not mix them, use engine='functional'."
    )


class Tape:
    """What one forward pass did with its parameters, in order."""

    def __init__(
        self,
        grouping: Grouping,
        layout: Layout | None = None,
        memory: Memory | None = None,
        *,
        may_release: bool = True,
    ) -> None:
        self.grouping = grouping
        self.layout = layout
        self.memory = memory or Memory(0)
        self.seen: list[Seen] = []
        self.ops: list[Op] = []  # filled by `backward`
        self.may_release = may_release
        self._noted: list[_Noted] = []
        self._inside: set[Any] = set()  # functions whose rules are at work
        self.refused: UnsupportedUseError | None = (
            None  # why a use has no rule: operators swallow a TypeError
        )

    def handle(self, handler: Rule, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Let a rule do what a function was called for.

        A rule that calls the function itself with a tracked parameter has found one where it does not look
        for one: as the input of a layer.
        """
        if func in self._inside:
            raise self.refuse(args, kwargs, func)
        self._inside.add(func)
        try:
            return handler(self, *args, **kwargs)
        except UnsupportedUseError as error:
            self.refused = error
            raise
        finally:
            self._inside.discard(func)

    def refuse(self, args: Sequence[Any], kwargs: Mapping[str, Any], func: Any) -> UnsupportedUseError:
        """Return the error for a use without a rule."""
        self.refused = unsupported(_first(args, kwargs).parameter_name, func)
        return self.refused

    def batching(self, name: str, x: Tensor) -> Batching:
        """Return where the input of the operation that is now recorded keeps its rows."""
        place = len(self.seen)
        self.seen.append((name, x.shape))
        if self.layout is None:
            return UNBATCHED  # being measured: nothing is noted, and nothing is expanded
        return self.layout.at(place, name, x.shape, self.grouping.rows)

    def expanded(self, output: Tensor, batching: Batching) -> tuple[Tensor, Batching]:
        """Give each row a copy of an output that all rows share, so that its gradient is had row by row."""
        if self.layout is None or batching is not UNBATCHED:
            return output, batching
        shape = output.shape[1:] if output.dim() > 1 and output.shape[0] == 1 else output.shape
        return output.expand(self.grouping.rows, *shape), Batching(0)

    def note(self, op: Op, output: Tensor, batching: Batching, *, at_once: bool = False) -> Tensor:
        """Note an operation and return its output.

        With `at_once` the op reads its gradients off during the backward pass, and lets go of the rest: for
        operations with few parameters and large inputs. It asks for an input that requires grad, without
        which autograd would not come by.
        """
        if self.layout is None or not output.requires_grad:  # under no_grad nothing flows back to it
            return output
        if output._is_view():  # an in-place operation on a view would cut the edge that is noted here
            output = torch.ops.aten._unsafe_view(output, output.shape)
        noted = _Noted(op, batching, [t._version for t in op.saved()])
        if at_once and self.may_release:
            output.register_hook(partial(self._at_once, noted))
        else:
            noted.edge = get_gradient_edge(output)
        self._noted.append(noted)
        return output

    def _at_once(self, noted: "_Noted", grad: Tensor) -> None:
        noted.check()
        self._receive(noted, grad)
        noted.op.release()

    def _receive(self, noted: "_Noted", grad: Tensor) -> None:
        rows = self.grouping.rows
        noted.op.receive(grad, lambda g: noted.batching.rows_first(g, rows))
        noted.received = True

    def backward(self, losses: Tensor) -> None:
        """Give every operation the gradient of its output under the sum of `losses`."""
        waiting = [noted for noted in self._noted if noted.edge is not None]
        for noted in waiting:
            noted.check()
        edges = [noted.edge for noted in waiting if losses.requires_grad]
        found = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()  # type: ignore[arg-type]
        grads = found or [None] * len(waiting)
        for noted, grad in zip(waiting, grads, strict=True):
            if grad is not None:  # an unused output moves no loss
                self._receive(noted, grad)
        if any(noted.edge is None and not noted.received for noted in self._noted):
            raise NotPassedError
        self.ops = [noted.op for noted in self._noted if noted.received]
        self._noted = []


@dataclass(slots=True)
class _Noted:
    """An operation on the tape, with the place in the graph where its gradient will be."""

    op: Op
    batching: Batching
    versions: list[int]
    edge: GradientEdge | None = None
    received: bool = False

    def check(self) -> None:
        if self.versions != [t._version for t in self.op.saved()]:
            raise UnsupportedUseError(
                f"the input of the operation that uses {sorted(self.op.names.values())} was changed in place "
                "afterwards, so its gradient cannot be computed. Use the out-of-place operation."
            )


class NotPassedError(Exception):
    """The backward pass did not come by an operation that wanted to see its gradient on the way."""


class LayoutChangedError(Exception):
    """The model used its parameters in another order than when its layout was measured."""
