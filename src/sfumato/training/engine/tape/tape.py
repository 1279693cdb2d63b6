# SPDX-License-Identifier: Apache-2.0
"""A tape: the record of how a forward pass used its trainable parameters.

For the length of one forward pass each trainable parameter is a `Tracked` tensor, and rows are isolated
(`isolation`). Every operation on a tracked parameter is given to its rule. The rule computes
the output of all rows with the plain values, and records an `Op` that turns the gradient of that output into
gradients of its parameters, one for each row of the batch.

Guarantee  Row i of what an operation records belongs to row i of the batch: rules get their inputs from
           `Tape.rows`, which vmap keeps apart, and there is no other access to a row. Every use of a
           parameter is recorded.
Edge cases An operation without a rule, or that its rule does not support, gets a copy of the parameter for
           each row. The copies share memory; the gradient of the copy is the gradient of each row, of the
           size of the parameter. So any operation that vmap can run is recorded.
Failure    A parameter that is changed in place by the pass is refused, and so is an input that is changed in
           place after it was noted, as autograd would refuse it.
Not here   Gradients of parameters as autograd knows them: they are computed at the outputs' edges of the
           graph only, and the sum over rows is never computed without clipping.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sfumato.errors import NotPrivateError, UnsupportedUseError
from sfumato.training.data.rows import Grouping
from sfumato.training.engine.tape.operation import Memory, Op
from sfumato.training.isolation.isolated_rows import Discreet, Isolated, is_row
from sfumato.training.sharding.lent import Lent

__all__ = ["CopyOp", "NoRuleError", "NotPassedError", "Tape", "Tracked", "name_of", "plain", "rule"]

Rule = Callable[..., Any]
_RULES: Final[dict[Any, Rule]] = {}
# Functions that ask for a fact of a parameter, or for its value without a gradient. Values of parameters are
# public: they are initial values, or noisy ones.
_QUESTIONS: Final = frozenset(
    [
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "get_device",
        "is_contiguous",
        "type",
        "__len__",
        "__hash__",
        "storage_offset",
        "data_ptr",
        "item",
        "tolist",
        "numpy",
        "__float__",
        "__int__",
        "__bool__",
        "__repr__",
        "__format__",
        "is_inference",
        "is_set_to",
    ]
)
_SAME: Final = frozenset(
    {"to", "float", "double", "half", "bfloat16", "type_as", "contiguous", "cpu", "cuda"}
)

_IN_PLACE: Final = frozenset(
    [
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
        "__imatmul__",
        "__setitem__",
        "__set__",
        "__delete__",
    ]
)
_VALUES: Final = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]  # a value without a gradient


class NoRuleError(Exception):
    """A rule does not take a use of its function: the use is recorded by copies of the parameter."""


class NotPassedError(Exception):
    """The backward pass did not come by an operation that wanted to see its gradient on the way."""


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register what to do when one of `functions` meets a tracked parameter.

    The rule is called with the tape, then with the arguments of the function itself, outside of the
    isolation. It gets rows by `Tape.rows` and returns tensors whose first axis counts the rows.
    """

    def register(handler: Rule) -> Rule:
        _RULES.update(dict.fromkeys(functions, handler))
        return handler

    return register


class Tracked(Tensor):
    """A parameter during a recorded forward pass."""

    parameter_name: str
    parameter: Tensor
    tape: "Tape"

    @staticmethod
    def of(parameter: Tensor, name: str) -> "Tracked":
        """Return a stand-in for a parameter; it needs a tape before it is used."""
        value = parameter.blank if isinstance(parameter, Lent) else parameter.detach()
        tracked = value.as_subclass(Tracked)
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
        return next(_tracked(args, kwargs)).tape.use(func, args, kwargs)


def _tracked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tracked]:
    stack = [*args, *kwargs.values()]
    for value in stack:
        if isinstance(value, Tracked):
            yield value
        elif isinstance(value, list | tuple):
            stack.extend(value)  # pyright: ignore[reportUnknownArgumentType] - any nesting


def plain(value: Any) -> Any:
    """Return the parameter that a tracked one stands for; anything else as it is, but never a row.

    A parameter requires grad, so every output of a rule has an edge at which its gradient can be computed.
    Its own gradient never is.
    """
    if isinstance(value, Tracked):
        return value.parameter
    if is_row(value):  # each row has a value of its own, which rules for shared ones do not know
        raise NoRuleError
    return value


def name_of(value: Any) -> str | None:
    """Return the name of a tracked parameter, None for anything else."""
    return value.parameter_name if isinstance(value, Tracked) else None


class CopyOp(Op):
    """A parameter of which each row has a copy: the output is [rows, *shape]."""

    slots = ("value",)

    def __init__(self, parameter: Tracked, tape: "Tape") -> None:
        super().__init__({"value": parameter.parameter_name}, tape)
        self.shape = parameter.parameter.shape

    def saved(self) -> Sequence[Tensor]:
        return ()

    def per_unit(self, slot: str) -> Tensor:
        return self.grouping.summed(self.grad).reshape(self.grouping.units, *self.shape)


class Tape:
    """What one forward pass did with its parameters, in order."""

    def __init__(
        self,
        grouping: Grouping,
        isolated: Isolated,
        memory: Memory | None = None,
        *,
        may_release: bool = True,
    ) -> None:
        self.grouping = grouping
        self.memory = memory or Memory(0)
        self.ops: list[Op] = []  # filled by `backward`
        self.may_release = may_release
        self.refused: UnsupportedUseError | NotPrivateError | None = None  # operators swallow a TypeError
        self._isolated = isolated
        self._noted: list[_Noted] = []
        self._copies: dict[tuple[str, bool], Tensor] = {}

    # --- what the model calls ----------------------------------------------------------------------------

    def use(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do what a function was called for, with a tracked parameter among its arguments."""
        handler = _RULES.get(func)
        if handler is None and (found := self._asked(func, args, kwargs)) is not NotImplemented:
            return found
        if not self._isolated.is_current:
            raise self._refuse(
                UnsupportedUseError(
                    f"parameter {next(_tracked(args, kwargs)).parameter_name!r} is used inside of a "
                    "transform of torch.func, or after its pass. Use engine='functional'."
                )
            )
        if handler is None:
            return self._without_rule(func, args, kwargs)
        place = len(self._noted)
        try:
            return self._isolated.on_batch(handler, self, *args, **kwargs)
        except NoRuleError:
            del self._noted[place:]  # whatever the rule had noted before it gave up
            return self._with_copies(func, args, kwargs)
        except (UnsupportedUseError, NotPrivateError) as error:
            raise self._refuse(error) from None

    def _refuse(self, error: Any) -> Any:
        self.refused = error
        return error

    def _asked(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a fact of a parameter, its value without a gradient, or itself; else NotImplemented."""
        if func in _VALUES:
            return args[0].parameter.detach()
        name = getattr(func, "__name__", "")
        if not (name == "__get__" or name in _QUESTIONS or name in _SAME):
            return NotImplemented
        own = args[0].parameter if isinstance(args[0], Tracked) else None
        asked = (own, *args[1:]) if isinstance(own, Lent) else args  # its stand-in has no numbers
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage] - what torch's own docs use
            found = func(*asked, **kwargs)
        if not isinstance(found, Tensor):
            return found
        same = own is not None and found.dtype == own.dtype and found.device == own.device
        return args[0] if same and name in _SAME else NotImplemented

    def _without_rule(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if _changes(name) and args and isinstance(args[0], Tracked):
            raise self._refuse(
                NotPrivateError(
                    f"parameter {args[0].parameter_name!r} is changed in place by {name!r} while the model "
                    "runs, so it would not be protected by noise. Change parameters between steps only."
                )
            )
        return self._with_copies(func, args, kwargs)

    def _with_copies(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Give each row a copy of every tracked parameter, and let vmap run the function."""
        args, kwargs = self._replaced(list(args)), self._replaced(dict(kwargs))
        return self._isolated.call(func, args, kwargs)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tracked):
            return self._copy(value)
        if isinstance(value, dict):
            return {key: self._replaced(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            parts = [self._replaced(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
            return tuple(parts) if isinstance(value, tuple) else parts
        return value

    def _copy(self, parameter: Tracked) -> Tensor:
        # One copy a pass, so that many uses have one gradient; without grad it is another.
        key = parameter.parameter_name, torch.is_grad_enabled()
        if key not in self._copies:
            self._copies[key] = self._isolated.on_batch(self.copies, parameter)
        return self._copies[key]

    # --- what rules call ---------------------------------------------------------------------------------

    def rows(self, x: Tensor) -> Tensor:
        """Return the rows of an input as [rows, ...]; a view without memory if all rows share it."""
        if isinstance(x, Tracked):  # a parameter where a rule looks for an input
            raise NoRuleError
        return self._isolated.join(x)

    def copies(self, parameter: Tracked) -> Tensor:
        """Return a noted copy of a parameter for each row: [rows, *shape]."""
        value = parameter.parameter
        return self.note(CopyOp(parameter, self), value.expand(self.grouping.rows, *value.shape))

    def note(
        self,
        op: Op,
        output: Tensor,
        *,
        at_once: bool = False,
        rows_first: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Note an operation and return its output, whose gradient `rows_first` arranges for the operation.

        With `at_once` the op reads its gradients off during the backward pass, and lets go of the rest: for
        operations with few parameters and large inputs. It asks for an input that requires grad, without
        which autograd would not come by.
        """
        if not (torch.is_grad_enabled() and output.requires_grad):  # nothing flows back to it
            return output
        if output._is_view():  # an in-place operation on a view would cut the edge that is noted here
            output = torch.ops.aten._unsafe_view(output, output.shape)
        noted = _Noted(op, [t._version for t in op.saved()], rows_first)
        if at_once and self.may_release:
            output.register_hook(partial(_at_once, noted))
        else:
            noted.edge = get_gradient_edge(output)
        self._noted.append(noted)
        return output

    # --- the backward pass -------------------------------------------------------------------------------

    def take_over(self, other: "Tape") -> None:
        """Take over what another tape noted of a call on the same rows, before the backward pass of both."""
        self._noted += other._noted

    def backward(self, losses: Tensor) -> None:
        """Give every operation the gradient of its output under the sum of `losses`."""
        waiting = [noted for noted in self._noted if noted.edge is not None]
        for noted in waiting:
            noted.check()
        edges = [noted.edge for noted in waiting if losses.requires_grad]
        with Discreet() as mode:  # a function of the user's may have a backward of its own, in Python
            found = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()  # type: ignore[arg-type]
        mode.refuse_routes()
        grads = found or [None] * len(waiting)
        for noted, grad in zip(waiting, grads, strict=True):
            if grad is not None:  # an unused output moves no loss
                noted.receive(grad)
        if any(noted.edge is None and not noted.received for noted in self._noted):
            raise NotPassedError
        self.ops = [noted.op for noted in self._noted if noted.received]
        self._noted, self._copies = [], {}


def _changes(name: str) -> bool:
    """Whether a function of this name changes its first argument in place."""
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")


@dataclass(slots=True)
class _Noted:
    """An operation on the tape, with the place in the graph where its gradient will be."""

    op: Op
    versions: list[int]
    rows_first: Callable[[Tensor], Tensor] | None
    edge: GradientEdge | None = None
    received: bool = False

    def check(self) -> None:
        if self.versions != [t._version for t in self.op.saved()]:
            raise UnsupportedUseError(
                f"the input of the operation that uses {sorted(self.op.names.values())} was changed in place "
                "afterwards, so its gradient cannot be computed. Use the out-of-place operation."
            )

    def receive(self, grad: Tensor) -> None:
        self.op.receive(grad if self.rows_first is None else self.rows_first(grad))
        self.received = True


def _at_once(noted: _Noted, grad: Tensor) -> None:
    noted.check()
    noted.receive(grad)
    noted.op.release()
