# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention: linear maps around an attention that has no parameters.

Guarantee  The output is that of torch's own `multi_head_attention_forward`, for all its options. Attention
           along the axis that counts the rows of the batch would mix examples, and is refused.
Packed     Query, key and value maps may be rows of one weight. Maps of different inputs are then different
           uses of disjoint rows: their squared norms add, and their inner product is zero.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.errors import UnsupportedUseError
from sfumato.training.rules.elementwise import CopyOp
from sfumato.training.rules.linear import LinearOp
from sfumato.training.tape import (
    Batching,
    Op,
    Tape,
    Tracked,
    autocast,
    name_of,
    norm_dtype,
    plain,
    rule,
)

__all__ = ["Part", "RowsOp"]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a parameter, from `start` on; all of them by default."""

    parameter: Tensor | None
    start: int = 0
    stop: int | None = None

    @property
    def rows(self) -> slice:
        """Which rows they are."""
        return slice(self.start, self.stop)

    def values(self) -> Tensor | None:
        """Return their values, as an ordinary tensor."""
        return None if self.parameter is None else plain(self.parameter)[self.rows]


class RowsOp(Op):
    """A linear map whose weight and bias are some rows of larger parameters."""

    slots = ("weight", "bias")

    def __init__(self, whole: LinearOp, parts: Mapping[str, Part], tape: Tape) -> None:
        super().__init__(whole.names, tape)
        self._whole = whole  # the same map, as if its rows were all there is
        self._shapes = {slot: parts[slot].parameter.shape for slot in whole.names}  # type: ignore[union-attr]
        self._rows = {slot: parts[slot].rows for slot in whole.names}

    def saved(self) -> Sequence[Tensor]:
        return self._whole.saved()

    def receive(self, grad: Tensor, rows_first: Callable[[Tensor], Tensor]) -> None:
        self._whole.receive(grad, rows_first)

    def squared_norm(self, slot: str) -> Tensor:
        return self._whole.squared_norm(slot)

    def per_unit(self, slot: str) -> Tensor:
        found = self._whole.gradient(slot)
        total = found.new_zeros((self.grouping.units, *self._shapes[slot]))
        total[:, self._rows[slot]] = found
        return total

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        found = self._whole.weighted_sum(slot, weights)
        total = found.new_zeros(self._shapes[slot])
        total[self._rows[slot]] = found
        return total

    def inner(self, slot: str, other: Op, other_slot: str) -> Tensor:
        if isinstance(other, RowsOp):
            mine, theirs = self._rows[slot], other._rows[other_slot]
            if mine == theirs:
                return self._whole.inner(slot, other._whole, other_slot)
            if mine.start >= theirs.stop or theirs.start >= mine.stop:
                x = self._whole.x
                return x.new_zeros(self.grouping.units, dtype=norm_dtype(x))
        return super().inner(slot, other, other_slot)


def _projected(tape: Tape, x: Tensor, weight: Part, bias: Part) -> Tensor:
    """Return x W^T + b for rows of a weight and of a bias, noted for those that are trainable."""
    x = autocast(x)
    y = F.linear(x, weight.values(), bias.values())  # type: ignore[arg-type]  # a weight is always there
    names = {"weight": name_of(weight.parameter), "bias": name_of(bias.parameter)}
    name = next((n for n in names.values() if n is not None), None)
    if name is None:
        return y
    where = tape.batching(name, x)
    if tape.layout is None:
        return y
    whole = LinearOp(where.rows_first(x.detach(), tape.grouping.rows), names, tape)
    return tape.note(RowsOp(whole, {"weight": weight, "bias": bias}, tape), y, where)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The inputs, batch first: [N, L, E], [N, S, K], [N, S, V]; one object where they were one object."""

    query: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor) -> "_Sources":
        # A layer with batch_first=True has just moved the batch to the second axis: nothing is copied here.
        q = query.transpose(0, 1).contiguous()
        k = q if key is query else key.transpose(0, 1).contiguous()
        v = q if value is query else k if value is key else value.transpose(0, 1).contiguous()
        return _Sources(q, k, v)


def _packed(
    tape: Tape, sources: _Sources, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    size = weight.shape[1]
    if sources.query is sources.key is sources.value:
        q, k, v = F.linear(sources.query, weight, bias).chunk(3, -1)
        return q, k, v

    def rows(first: int, last: int) -> tuple[Part, Part]:
        return tuple(Part(p, first * size, last * size) for p in (weight, bias))  # type: ignore[return-value]

    q = _projected(tape, sources.query, *rows(0, 1))
    if sources.key is sources.value:
        k, v = _projected(tape, sources.key, *rows(1, 3)).chunk(2, -1)
        return q, k, v
    return q, _projected(tape, sources.key, *rows(1, 2)), _projected(tape, sources.value, *rows(2, 3))


def _separate(
    tape: Tape, sources: _Sources, weights: Sequence[Tensor | None], bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    size = sources.query.shape[-1]
    q, k, v = (
        _projected(tape, x, Part(w, 0, size), Part(bias, i * size, (i + 1) * size))
        for i, (x, w) in enumerate(zip((sources.query, sources.key, sources.value), weights, strict=True))
    )
    return q, k, v


def _longer(tape: Tape, x: Tensor, bias: Tensor, where: Batching) -> Tensor:
    """Add one step to [N, S, E], the same for all: a parameter, or zeros."""
    step = plain(bias).reshape(1, 1, 1, -1)
    if isinstance(bias, Tracked) and tape.layout is not None:
        rows = tape.grouping.rows
        step = tape.note(CopyOp(bias, tape), step.expand(rows, -1, -1, -1), Batching(0))
        step = step.expand(-1, where.factor, -1, -1).flatten(0, 1)
    else:
        step = step[0].expand(x.shape[0], -1, -1)
    return torch.cat([x, step.to(x.dtype)], 1)


def _steps(
    bias_k: Tensor | None, bias_v: Tensor | None, zeros_like: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is added to keys and values, as a last step of theirs."""
    if bias_k is not None and bias_v is not None:
        yield bias_k, bias_v
    if zeros_like is not None:
        zeros = zeros_like.new_zeros(zeros_like.shape[-1])
        yield zeros, zeros


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask as numbers to add to the scores."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _mask(
    attention: Tensor | None, padding: Tensor | None, shape: tuple[int, int, int], extra: int
) -> Tensor | None:
    """Return both masks as one that broadcasts to the scores [N, heads, L, S + extra]."""
    batch, heads, source = shape
    if attention is not None:
        attention = attention if attention.dim() == 2 else attention.view(batch, heads, -1, source)
        attention = F.pad(attention, (0, extra))
    if padding is None:
        return attention
    padding = F.pad(padding, (0, extra))[:, None, None, :]
    return padding if attention is None else attention + padding


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the attention's output and its weights: [N, heads, L, E / heads], [N, heads, L, S]."""
    scores = (q * math.sqrt(1 / q.shape[-1])) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = F.dropout(scores.softmax(-1), dropout)
    return weights @ v, weights


def _check_axes(tape: Tape, parameters: Sequence[Tensor | None], sources: _Sources) -> Batching:
    """Return where the rows are, if attention is within them."""
    name = next(p.parameter_name for p in parameters if isinstance(p, Tracked))
    places = {tape.batching(name, x) for x in (sources.query, sources.key, sources.value)}
    where = places.pop()
    if tape.layout is not None and (places or where.axis != 0):
        raise UnsupportedUseError(
            f"the attention that uses {name!r} does not keep one row an example on its batch axis, so it "
            "would mix examples. Build the layer with batch_first=True if the batch comes first, and repeat "
            "for each example what all of them share."
        )
    return where


@rule(F.multi_head_attention_forward)
def _attention(
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    if query.dim() != 3 or static_k is not None or static_v is not None:
        raise UnsupportedUseError(
            "attention needs a batch: inputs of three axes, with the examples on one of them, and no static "
            "key or value. Add the batch axis, or use engine='functional'."
        )
    if is_causal and attn_mask is None:
        raise UnsupportedUseError("is_causal=True is a hint about attn_mask: pass the causal mask too.")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else ()
    sources = _Sources.of(query, key, value)
    owned = (in_proj_weight, in_proj_bias, bias_k, bias_v, out_proj_weight, out_proj_bias, *separate)
    where = _check_axes(tape, owned, sources)
    if separate:
        q, k, v = _separate(tape, sources, separate, in_proj_bias)
    else:
        q, k, v = _packed(tape, sources, in_proj_weight, in_proj_bias)  # type: ignore[arg-type]
    source = k.shape[1]
    for k_step, v_step in _steps(bias_k, bias_v, k if add_zero_attn else None):
        k, v = _longer(tape, k, k_step, where), _longer(tape, v, v_step, where)
    causal = is_causal and key_padding_mask is None and not need_weights  # torch then drops the mask itself
    attention = None if causal else _additive(attn_mask, q.dtype)
    padding = _additive(key_padding_mask, q.dtype)
    mask = _mask(attention, padding, (q.shape[0], num_heads, source), k.shape[1] - source)
    q, k, v = (
        x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v)
    )  # [N, heads, L, E / heads]
    dropout = dropout_p if training else 0.0
    if need_weights:
        y, weights = _attend(q, k, v, mask, dropout)
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        y, weights = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal), None
    y = F.linear(y.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return y.transpose(0, 1), weights
