# SPDX-License-Identifier: Apache-2.0
"""Run a model on all rows of a batch at once, while it sees one row at a time.

Guarantee  Inside `Isolated` the model and the loss get tensors of one row, shape [1, ...]. The axis that
           counts the rows of the batch is hidden by torch's vmap: no operation can name, sort, index, add up or
           normalize along it. What the model computes for a row depends on that row, on parameters, on
           other tensors that all rows share, and on random draws; never on another row.
           No value of a row can leave: `item`, `bool`, `tolist`, `numpy` and `nonzero` raise, and a printed
           row shows its shape only. So what runs, and what is refused, does not depend on values.
Edge cases One row is a batch like any other. No rows: there is nothing to isolate; do not enter.
           A single random number (`torch.rand([])`, which decides whether a layer is dropped) is drawn once
           for all rows. All other draws are independent for each row, as in an ordinary batch.
Failure    What cannot run in this way raises, mostly `RuntimeError`. The caller falls back to the reference,
           which runs rows one by one. A function that brings a vmap rule of its own is refused, because such
           a rule sees all rows.
Source     torch.func.vmap. Its level is entered and left by hand, with private functions of torch, because
           `tape` computes on the whole batch in between: docs/decisions/0008.
Not here   Trust in torch's vmap rules (or its loop over rows, where an operation has none); a tensor that the
           model keeps for the next pass (`barrier` looks for these); trainable parameters (`tape`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.predispatch import lazy_load_decompositions
from torch.overrides import TorchFunctionMode

from sfumato.errors import UnsupportedUseError

__all__ = ["Discreet", "Isolated", "cannot_run", "is_row", "rows_first", "steps_first"]

_functorch: Final[Any] = torch._C._functorch  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - see Source
_lock: Final = Lock()
_isolations: Final[list[None]] = []  # those at work, on all threads


def is_row(value: object) -> bool:
    """Whether a value is a tensor of isolated rows. None may be alive after the pass that made it."""
    return isinstance(value, Tensor) and bool(_functorch.is_batchedtensor(value))


def cannot_run(error: Exception) -> UnsupportedUseError:
    """Return the error for a model that failed while rows were isolated, without what it said."""
    return UnsupportedUseError(
        "the model or the loss does something that cannot be done for all rows at once while each is kept "
        f"apart ({type(error).__name__}): it looks at values (item, nonzero, an index by a mask, packed "
        "sequences, numpy), computes gradients itself, is checkpointed, has a hook on a tensor, or changes a "
        "tensor in place that all rows share."
    )


def steps_first(x: Tensor, *, batch_first: bool = False) -> Tensor:
    """Return the sequences of all rows, [rows, T, n, ...] or [rows, n, T, ...], as [T, rows * n, ...]."""
    return x.flatten(0, 1).transpose(0, 1) if batch_first else x.movedim(1, 0).flatten(1, 2)


def rows_first(y: Tensor, rows: int, *, batch_first: bool = False) -> Tensor:
    """Undo `steps_first`."""
    y = y.unflatten(1, (rows, -1))  # [T, rows, n, ...]
    return y.movedim(0, 2) if batch_first else y.movedim(1, 0)


class Isolated:
    """A context in which rows are isolated.

    With `own_tensors`, each row gets tensors of its own from `torch.zeros` and its kin, so that a model may
    write rows into them in place. They take memory, so it is not the default.

    >>> with Isolated(3) as rows:
    ...     row = rows.split(torch.tensor([1.0, 2.0, 3.0]))
    ...     shape, total = row.shape, rows.join(row.sum())
    >>> shape, total
    (torch.Size([1]), tensor([1., 2., 3.]))
    """

    def __init__(self, count: int, *, own_tensors: bool = False) -> None:
        self.count = count
        self.own_tensors = own_tensors
        self._level = 0
        self._mode = _Adapters(self)

    def __enter__(self) -> "Isolated":
        _load()
        _set_flags(entering=True)
        self._level = _functorch._vmap_increment_nesting(self.count, "different")
        self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(None, None, None)
        _functorch._vmap_decrement_nesting()
        _set_flags(entering=False)

    def split(self, x: Tensor) -> Tensor:
        """Return [rows, ...] as the tensor of one row, [1, ...]."""
        return self.block(x.unsqueeze(1))

    def block(self, x: Tensor) -> Tensor:
        """Return [rows, ...] as the tensor of one of them, [...]."""
        return _functorch._add_batch_dim(x, 0, self._level)

    def join(self, x: Tensor) -> Tensor:
        """Return the tensor of one row, [...], as [rows, ...]; a shared value is not copied."""
        return _functorch._remove_batch_dim(x, self._level, self.count, 0)

    @property
    def is_current(self) -> bool:
        """Whether the code that is running sees rows of this level, and of no other inside or around it."""
        return _functorch.maybe_current_level() == self._level

    def on_batch(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do trusted work outside of the isolation; each tensor it returns is [rows, ...].

        The arguments stay rows: the work calls `join` on them.
        """
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            found = work(*args, **kwargs)
        finally:
            _functorch.push_dynamic_layer_stack(layer)
        return self._rows(found)

    def once(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do trusted work outside of the isolation whose result all rows share."""
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            return work(*args, **kwargs)
        finally:
            _functorch.push_dynamic_layer_stack(layer)

    def _rows(self, found: Any) -> Any:
        if isinstance(found, Tensor):
            return _functorch._add_batch_dim(found, 0, self._level)
        if isinstance(found, tuple | list):
            return tuple(self._rows(part) for part in found)  # pyright: ignore[reportUnknownVariableType]
        return found

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of torch on rows: by its adapter, or as vmap does."""
        adapter = _ADAPTERS.get(function)
        return function(*args, **kwargs) if adapter is None else adapter(self, function, *args, **kwargs)


@cache
def _load() -> None:
    """Load the decompositions that vmap needs, once a process, as torch.func.vmap does."""
    lazy_load_decompositions()


def _set_flags(*, entering: bool) -> None:
    """Set two flags of torch for the length of all isolations of the process, on whatever threads.

    vmap warns where it loops over rows, which is no mistake of the user's. A model that asks whether it is
    being compiled skips shortcuts that look at values, such as "is the whole mask true?".
    """
    with _lock:
        if entering:
            _isolations.append(None)
        else:
            _isolations.pop()
        _functorch._set_vmap_fallback_warning_enabled(not _isolations)
        torch.compiler._is_compiling_flag = bool(_isolations)  # pyright: ignore[reportPrivateUsage]


class Discreet(TorchFunctionMode):
    """Sees every call of a function of torch: values of rows are not printed, own vmap rules are refused."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        guard = _GUARDS.get(func)
        if guard is not None:
            return guard(func, *args, **(kwargs or {}))
        return func(*args, **kwargs) if kwargs else func(*args)


class _Adapters(TorchFunctionMode):
    """Sees every call of a function of torch while rows are isolated."""

    def __init__(self, rows: Isolated) -> None:
        super().__init__()
        self._rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        adapter = _ADAPTERS.get(func)
        if adapter is not None and self._rows.is_current:
            return adapter(self._rows, func, *args, **(kwargs or {}))
        guard = _GUARDS.get(func)
        if guard is not None:
            return guard(func, *args, **(kwargs or {}))
        return func(*args, **kwargs) if kwargs else func(*args)


def _draw(rows: Isolated, function: Any, *size: Any, **options: Any) -> Tensor:
    """Draw a single number once for all rows."""
    single = not options.get("size", size) or size in (([],), ((),), (torch.Size(),))
    work = rows.once if single and "generator" not in options else _called
    return work(function, *size, **options)


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _made(rows: Isolated, function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Make a tensor for all rows, or one for each of them."""
    if not rows.own_tensors or (args and is_row(args[0])):
        return function(*args, **kwargs)

    def work() -> Tensor:
        one = function(*args, **kwargs)
        return one.expand(rows.count, *one.shape).contiguous()

    return rows.on_batch(work)


def _set(rows: Isolated, function: Any, x: Tensor, index: Any, value: Any) -> None:
    """Put a number where a mask is true: vmap knows this under another name."""
    number = isinstance(value, int | float) or (isinstance(value, Tensor) and not value.dim())
    if number and is_row(index) and index.dtype is torch.bool and index.dim() <= x.dim():
        x.masked_fill_(index.reshape(*index.shape, *[1] * (x.dim() - index.dim())), value)
    else:
        function(x, index, value)


def _described(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> str:
    """Print a row without its values."""
    hidden = isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x)
    return f"<a row of shape {list(x.shape)}>" if hidden else function(x, *args, **kwargs)


def _custom(function: Any, custom: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse functions that come with a rule for batches of their own."""
    if custom.vmap is not torch.autograd.Function.vmap:
        raise UnsupportedUseError(
            f"the function {custom.__name__!r} has a vmap rule of its own, which sees all rows of a batch "
            "and may mix them. Use generate_vmap_rule=True, or engine='functional'."
        )
    return function(custom, *args, **kwargs)


def _attention(
    rows: Isolated,
    function: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Attend within each row, with the kernels that an ordinary batch would have."""
    given = (query, key, value, attn_mask)
    if any(type(x) not in (Tensor, type(None)) for x in given) or not any(is_row(x) for x in given):
        return function(*given, *args, **kwargs)

    def work() -> Tensor:
        q, k, v = (rows.join(x) for x in (query, key, value))
        mask = None if attn_mask is None else _mask(rows, attn_mask, query.dim())
        if q.dim() <= 4 or not q.dim() == k.dim() == v.dim():
            return function(q, k, v, mask, *args, **kwargs)
        inner = q.dim() - 4  # axes between the rows and the heads: kernels know one batch axis
        q, k, v = (x.flatten(0, inner) for x in (q, k, v))
        if mask is not None and mask.dim() == inner + 4:
            mask = mask.expand(rows.count, *query.shape[:inner], *mask.shape[-3:]).flatten(0, inner)
        y = function(q, k, v, mask, *args, **kwargs)
        return y.unflatten(0, (rows.count, *query.shape[:inner]))

    return rows.on_batch(work)


def _cross_entropy(
    rows: Isolated,
    function: Any,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Take the losses of all rows in one kernel, where they are not added up."""
    plain = type(input) is type(target) is Tensor and is_row(input) and input.dim() > 1 and not is_row(weight)
    if not plain or target.dim() != input.dim() - 1 or kwargs.get("reduction") != "none":
        return function(input, target, weight, *args, **kwargs)

    def work() -> Tensor:
        x, y = (rows.join(t).flatten(0, 1) for t in (input, target))
        return function(x, y, weight, *args, **kwargs).unflatten(0, (rows.count, -1))

    return rows.on_batch(work)


def _recurrent(rows: Isolated, function: Any, input: Tensor, hx: Any, weights: Any, *options: Any) -> Any:
    """Run a recurrent layer whose weights are frozen: vmap has no rule for it."""
    states = hx if isinstance(hx, tuple | list) else (hx,)
    plain = isinstance(weights, list | tuple) and not any(is_row(w) for w in weights)  # pyright: ignore[reportUnknownVariableType]
    if not plain or not options or any(type(w) not in (Tensor, nn.Parameter) for w in weights):
        return function(input, hx, weights, *options)

    def work() -> tuple[Tensor, ...]:
        x = steps_first(rows.join(input), batch_first=options[-1])
        each = tuple(steps_first(rows.join(state)).contiguous() for state in states)
        given = each if isinstance(hx, tuple | list) else each[0]
        outputs, *lasts = function(x, given, weights, *options[:-1], False)
        outputs = rows_first(outputs, rows.count, batch_first=options[-1])
        return outputs, *(rows_first(last, rows.count) for last in lasts)

    return rows.on_batch(work)


def _cell(rows: Isolated, function: Any, input: Tensor, hx: Any, *weights: Any) -> Any:
    """Run one step of a recurrence whose weights are frozen."""
    states = hx if isinstance(hx, tuple | list) else (hx,)
    if any(type(w) not in (Tensor, nn.Parameter, type(None)) or is_row(w) for w in weights):
        return function(input, hx, *weights)

    def work() -> Any:
        x, *each = (rows.join(t).reshape(-1, t.shape[-1]) for t in (input, *states))
        found = function(x, each if isinstance(hx, tuple | list) else each[0], *weights)
        parts = found if isinstance(found, tuple) else (found,)
        joined = [y.reshape(rows.count, *states[0].shape) for y in parts]
        return tuple(joined) if isinstance(found, tuple) else joined[0]

    return rows.on_batch(work)


def _mask(rows: Isolated, mask: Tensor, rank: int) -> Tensor:
    """Return a mask that broadcasts to scores with the rows before `rank` axes."""
    if not is_row(mask):
        return mask if mask.dim() < rank else mask[None]
    joined = rows.join(mask)
    return joined.reshape(rows.count, *[1] * (rank - mask.dim()), *mask.shape)


_ADAPTERS: Final[dict[Any, Callable[..., Any]]] = {
    torch.rand: _draw,
    torch.randn: _draw,
    F.scaled_dot_product_attention: _attention,
    F.cross_entropy: _cross_entropy,
    Tensor.__setitem__: _set,
}
_ADAPTERS |= dict.fromkeys((torch.zeros, torch.ones, torch.full, torch.empty), _made)
_ADAPTERS |= dict.fromkeys((Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty), _made)
_ADAPTERS |= dict.fromkeys((torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like), _made)
_ADAPTERS |= dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent)
_ADAPTERS |= dict.fromkeys((torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell), _cell)
_GUARDS: Final[dict[Any, Callable[..., Any]]] = {
    Tensor.__repr__: _described,
    Tensor.__format__: _described,
    custom_function_call: _custom,
}
