# SPDX-License-Identifier: Apache-2.0
"""Substitutes for functions of torch that vmap has no rule for, or a slow one, while rows are isolated.

Guarantee  Each returns for every row what the function of torch returns for that row alone. They compute on
           the whole batch, so a mistake here could mix rows: keep them few and short.
Edge cases Arguments that a substitute does not support are left to vmap.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.training.isolation.isolated_rows import Isolated, adapter, is_row

__all__ = ["rows_first", "steps_first"]


def steps_first(x: Tensor, *, batch_first: bool = False) -> Tensor:
    """Return the sequences of all rows, [rows, T, n, ...] or [rows, n, T, ...], as [T, rows * n, ...]."""
    return x.flatten(0, 1).transpose(0, 1) if batch_first else x.movedim(1, 0).flatten(1, 2)


def rows_first(y: Tensor, rows: int, *, batch_first: bool = False) -> Tensor:
    """Undo `steps_first`."""
    y = y.unflatten(1, (rows, -1))  # [T, rows, n, ...]
    return y.movedim(0, 2) if batch_first else y.movedim(1, 0)


@adapter(torch.rand, torch.randn)
def _draw(rows: Isolated, function: Any, *size: Any, **options: Any) -> Tensor:
    """Draw a single number once for all rows."""
    single = not options.get("size", size) or size in (([],), ((),), (torch.Size(),))
    work = rows.once if single else _called
    return work(function, *size, **options)


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@adapter(
    *(torch.zeros, torch.ones, torch.full, torch.empty),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty),
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like),
)
def _made(rows: Isolated, function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Make a tensor for all rows, or one for each of them."""
    if not rows.own_tensors or (args and is_row(args[0])):
        return function(*args, **kwargs)

    def work() -> Tensor:
        one = function(*args, **kwargs)
        return one.expand(rows.count, *one.shape).contiguous()

    return rows.on_batch(work)


@adapter(Tensor.__setitem__)
def _set(rows: Isolated, function: Any, x: Tensor, index: Any, value: Any) -> None:
    """Put a number where a mask is true: vmap knows this under another name."""
    number = isinstance(value, int | float) or (isinstance(value, Tensor) and not value.dim())
    if number and is_row(index) and index.dtype is torch.bool and index.dim() <= x.dim():
        x.masked_fill_(index.reshape(*index.shape, *[1] * (x.dim() - index.dim())), value)
    else:
        function(x, index, value)


@adapter(F.scaled_dot_product_attention)
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
    plain = all(type(x) in (Tensor, type(None)) for x in given) and any(is_row(x) for x in given)
    # With fewer axes in one of them, its rows would be lined up with the heads of another.
    alike = query.dim() == key.dim() == value.dim() >= (0 if attn_mask is None else attn_mask.dim())
    if not plain or not alike:
        return function(*given, *args, **kwargs)

    def work() -> Tensor:
        q, k, v = (rows.join(x) for x in (query, key, value))
        mask = None if attn_mask is None else _mask(rows, attn_mask, query.dim())
        if q.dim() <= 4:
            return function(q, k, v, mask, *args, **kwargs)
        inner = q.dim() - 4  # axes between the rows and the heads: kernels know one batch axis
        q, k, v = (x.flatten(0, inner) for x in (q, k, v))
        if mask is not None and mask.dim() == inner + 4:
            mask = mask.expand(rows.count, *query.shape[:inner], *mask.shape[-3:]).flatten(0, inner)
        y = function(q, k, v, mask, *args, **kwargs)
        return y.unflatten(0, (rows.count, *query.shape[:inner]))

    return rows.on_batch(work)


def _mask(rows: Isolated, mask: Tensor, rank: int) -> Tensor:
    """Return a mask that broadcasts to scores with the rows before `rank` axes."""
    if not is_row(mask):
        return mask if mask.dim() < rank else mask[None]
    joined = rows.join(mask)
    return joined.reshape(rows.count, *[1] * (rank - mask.dim()), *mask.shape)


@adapter(F.cross_entropy)
def _cross_entropy(
    rows: Isolated,
    function: Any,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Take the losses of all rows in one kernel, if they are not added up."""
    plain = type(input) is type(target) is Tensor and is_row(input) and input.dim() > 1 and not is_row(weight)
    if not plain or target.dim() != input.dim() - 1 or kwargs.get("reduction") != "none":
        return function(input, target, weight, *args, **kwargs)

    def work() -> Tensor:
        x, y = (rows.join(t).flatten(0, 1) for t in (input, target))
        return function(x, y, weight, *args, **kwargs).unflatten(0, (rows.count, -1))

    return rows.on_batch(work)


@adapter(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _recurrent(rows: Isolated, function: Any, input: Tensor, hx: Any, weights: Any, *options: Any) -> Any:
    """Run a recurrent layer whose weights are frozen: vmap has no rule for it."""
    states = hx if isinstance(hx, tuple | list) else (hx,)
    plain = isinstance(weights, list | tuple) and not any(is_row(w) for w in weights)  # pyright: ignore[reportUnknownVariableType]
    given = (input, *states, *weights) if plain else ()
    if not options or not given or any(type(w) not in (Tensor, nn.Parameter) for w in given):
        return function(input, hx, weights, *options)

    def work() -> tuple[Tensor, ...]:
        x = steps_first(rows.join(input), batch_first=options[-1])
        each = tuple(steps_first(rows.join(state)).contiguous() for state in states)
        start = each if isinstance(hx, tuple | list) else each[0]
        outputs, *lasts = function(x, start, weights, *options[:-1], False)
        outputs = rows_first(outputs, rows.count, batch_first=options[-1])
        return outputs, *(rows_first(last, rows.count) for last in lasts)

    return rows.on_batch(work)


@adapter(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def _cell(rows: Isolated, function: Any, input: Tensor, hx: Any, *weights: Any) -> Any:
    """Run one step of a recurrence whose weights are frozen."""
    states = hx if isinstance(hx, tuple | list) else (hx,)
    given = (input, *states, *weights)
    if any(type(w) not in (Tensor, nn.Parameter, type(None)) for w in given) or any(map(is_row, weights)):
        return function(input, hx, *weights)

    def work() -> Any:
        x, *each = (rows.join(t).reshape(-1, t.shape[-1]) for t in (input, *states))
        found = function(x, each if isinstance(hx, tuple | list) else each[0], *weights)
        parts = found if isinstance(found, tuple) else (found,)
        joined = [y.reshape(rows.count, *states[0].shape) for y in parts]
        return tuple(joined) if isinstance(found, tuple) else joined[0]

    return rows.on_batch(work)
