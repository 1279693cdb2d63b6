# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a sharded parameter: it has the shape of the whole and no memory.

For the length of a private pass, `Lent` tensors take the places of sharded parameters in the model. The
first operation that needs the numbers of one asks for them; a view of it (a transpose, a slice) is a stand-in
again. What autograd keeps for the backward pass is the stand-in, so nothing holds the whole parameter between
its use in the forward pass and its use in the backward pass: there it is asked for again.

Guarantee  Every operation of torch on a stand-in is computed with the whole parameter as it is now, wherever
           the operation comes from: the model, a rule of the tape, a transform (vmap), or a backward pass.
Edge cases A conversion to another floating-point type, as autocast makes them, is a stand-in too.
Failure    An operation that would change a stand-in in place is refused: parameters change by noisy updates
           alone. Whatever wants the memory of one (`numpy`, a kernel of its own) raises an error of torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.errors import NotPrivateError

__all__ = ["Lent"]

_aten = torch.ops.aten
# Functions that take type, device and shape of a tensor, and none of its numbers.
_BLANK: Final = frozenset(
    {
        *(_aten.new_zeros, _aten.new_ones, _aten.new_empty, _aten.new_full, _aten.new_empty_strided),
        *(_aten.zeros_like, _aten.ones_like, _aten.empty_like, _aten.full_like),
    }
)
_FLOATS: Final = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


class Lent(Tensor):
    """A tensor whose numbers are asked for when they are used.

    >>> weight = Lent.of(torch.zeros(2, 3), lambda: torch.ones(2, 3), shard=torch.ones(1, 3))
    >>> (torch.ones(1, 3) @ weight.T).tolist()
    [[3.0, 3.0]]
    """

    shard: Tensor  # the part of the parameter that this rank holds, for those who compare contents
    ask: Callable[[], Tensor]
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore  # as torch's own subclasses do

    @staticmethod
    def of(like: Tensor, ask: Callable[[], Tensor], *, shard: Tensor, requires_grad: bool = False) -> "Lent":
        """Return a stand-in of the shape of `like` for the tensor that `ask` returns.

        Args:
            like: A tensor with the shape, the strides and the type; its numbers are not used.
            ask: Returns the tensor. What it returns is laid out as `like` is, from its first number on.
            shard: The part of the parameter that this rank holds.
            requires_grad: Whether gradients are asked for.

        Returns:
            The stand-in.
        """
        made: Any = Tensor._make_wrapper_subclass(  # pyright: ignore  # torch's own way to a subclass
            Lent,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=shard.device,
            requires_grad=requires_grad,
        )
        made.shard, made.ask = shard, ask
        made._is_param = True  # torch takes it for a parameter
        return made

    @property
    def value(self) -> Tensor:
        """The numbers, as they are now."""
        return self.ask().as_strided(self.shape, self.stride(), self.storage_offset())

    @property
    def blank(self) -> Tensor:
        """A tensor of this type, device and shape, with one number in memory."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Return what the stand-in is made of, where contents are compared."""
        return ["shard"], None

    def __repr__(self, **_: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"<a sharded parameter of shape {list(self.shape)}>"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable and any(map(_holds, _changed(func, args, kwargs))):
            raise NotPrivateError(
                f"a sharded parameter is changed in place by {func.overloadpacket.__name__!r} while the "
                "model runs, so it would not be protected by noise. Change parameters between steps only."
            )
        if isinstance(args[0] if args else None, Lent) and (func.is_view or _is_conversion(func, kwargs)):
            return _derived(args[0], func, args[1:], kwargs)
        blank = func.overloadpacket in _BLANK
        return func(*(_plain(a, blank) for a in args), **{k: _plain(v, blank) for k, v in kwargs.items()})


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that a function writes to."""
    named = [(a.name, a.alias_info) for a in func._schema.arguments]
    written = {name for name, alias in named if alias is not None and alias.is_write}
    given = {name: value for (name, _), value in zip(named, args, strict=False)} | dict(kwargs)
    return [value for name, value in given.items() if name in written]


def _holds(value: Any) -> bool:
    """Whether a value is a stand-in, or a list with one in it, as `torch._foreach_mul_` takes them."""
    return any(map(_holds, value)) if isinstance(value, list | tuple) else isinstance(value, Lent)  # pyright: ignore[reportUnknownArgumentType]


def _is_conversion(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function copies a tensor to another floating-point type, and changes nothing else."""
    given = {name for name, value in kwargs.items() if value is not None and value is not False}
    return func is _aten._to_copy.default and given == {"dtype"} and kwargs["dtype"] in _FLOATS


def _derived(source: Lent, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return stand-ins for what a function makes of a stand-in without computing."""
    size = 1 + sum((n - 1) * s for n, s in zip(source.shape, source.stride(), strict=True))
    memory = torch.empty(source.storage_offset() + size, dtype=source.dtype, device="meta")
    made = func(memory.as_strided(source.shape, source.stride(), source.storage_offset()), *args, **kwargs)

    def stand_in(like: Tensor) -> Lent:
        if like.dtype == source.dtype:  # a view of the same memory
            return Lent.of(like, source.ask, shard=source.shard)
        return Lent.of(like, lambda: source.value.to(like.dtype), shard=source.shard)

    return stand_in(made) if isinstance(made, Tensor) else [stand_in(part) for part in made]


def _plain(value: Any, blank: bool) -> Any:
    if isinstance(value, Lent):
        return value.blank if blank else value.value
    if isinstance(value, list | tuple):
        parts = [_plain(part, blank) for part in value]  # pyright: ignore[reportUnknownVariableType]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value
