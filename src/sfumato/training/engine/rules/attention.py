# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention: linear maps around an attention that has no parameters.

Guarantee  The output is that of torch's own `multi_head_attention_forward` on each row, for all its options.
Edge cases Query, key and value maps may be rows of one weight. Maps of different inputs are then different
           uses of disjoint rows: their squared norms add, and their inner product is zero.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.errors import UnsupportedUseError
from sfumato.training.engine.rules.linear import LinearOp, linear
from sfumato.training.engine.tape.operation import Op, autocast, norm_dtype
from sfumato.training.engine.tape.tape import NoRuleError, Tape, Tracked, name_of, plain, rule
from sfumato.training.isolation.isolated_rows import is_row

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

    def receive(self, grad: Tensor) -> None:
        super().receive(grad)
        self._whole.receive(grad)

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
    if not any(names.values()):
        return y
    return tape.note(RowsOp(LinearOp(x.detach(), names, tape), {"weight": weight, "bias": bias}, tape), y)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The inputs of all rows: [N, L, E], [N, S, K], [N, S, V]; one object if they were one object."""

    query: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def of(tape: Tape, query: Tensor, key: Tensor, value: Tensor) -> "_Sources":
        # A layer with batch_first=True has just moved the batch to the second axis: nothing is copied here.
        def batch_first(x: Tensor) -> Tensor:
            return tape.rows(x).movedim(2, 1).flatten(0, 1).contiguous()

        q = batch_first(query)
        k = q if key is query else batch_first(key)
        v = q if value is query else k if value is key else batch_first(value)
        return _Sources(q, k, v)


def _packed(
    tape: Tape, sources: _Sources, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    size = weight.shape[1]
    if sources.query is sources.key is sources.value:
        q, k, v = linear(tape, sources.query, weight, bias).chunk(3, -1)
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


def _longer(tape: Tape, x: Tensor, bias: Tensor) -> Tensor:
    """Add one step to [N, S, E], the same for all: a parameter, or zeros."""
    if isinstance(bias, Tracked):
        rows = tape.grouping.rows
        step = tape.copies(bias).reshape(rows, 1, 1, -1).expand(-1, x.shape[0] // rows, -1, -1).flatten(0, 1)
    else:
        step = plain(bias).reshape(1, 1, -1).expand(x.shape[0], -1, -1)
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


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers to add to the scores."""
    if mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _mask(
    tape: Tape,
    attention: Tensor | None,
    padding: Tensor | None,
    heads: int,
    extra: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return both masks as one that broadcasts to the scores [N, heads, L, S + extra]."""
    parts: list[Tensor] = []
    if attention is not None and attention.dim() == 2:
        parts.append(tape.rows(attention)[:, None] if is_row(attention) else attention)
    elif attention is not None:  # [n * heads, L, S] for each row
        parts.append(tape.rows(attention).flatten(0, 1).unflatten(0, (-1, heads)))
    if padding is not None:  # [n, S] for each row
        parts.append(tape.rows(padding).flatten(0, 1)[:, None, None, :])
    masks = [F.pad(_additive(part, dtype), (0, extra)) for part in parts]
    return None if not masks else sum(masks[1:], start=masks[0])


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the attention's output and its weights: [N, heads, L, E / heads], [N, heads, L, S]."""
    scores = (q * math.sqrt(1 / q.shape[-1])) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = F.dropout(scores.softmax(-1), dropout)
    return weights @ v, weights


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
        raise NoRuleError
    if is_causal and attn_mask is None:
        raise UnsupportedUseError("is_causal=True is a hint about attn_mask: pass the causal mask too.")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else ()
    count = query.shape[1]
    sources = _Sources.of(tape, query, key, value)
    if separate:
        q, k, v = _separate(tape, sources, separate, in_proj_bias)
    else:
        q, k, v = _packed(tape, sources, in_proj_weight, in_proj_bias)  # type: ignore[arg-type]
    source = k.shape[1]
    for k_step, v_step in _steps(bias_k, bias_v, k if add_zero_attn else None):
        k, v = _longer(tape, k, k_step), _longer(tape, v, v_step)
    causal = is_causal and key_padding_mask is None and not need_weights  # torch then drops the mask itself
    attention = None if causal else attn_mask
    mask = _mask(tape, attention, key_padding_mask, num_heads, k.shape[1] - source, q.dtype)
    q, k, v = (
        x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v)
    )  # [N, heads, L, E / heads]
    dropout = dropout_p if training else 0.0
    if need_weights:
        y, weights = _attend(q, k, v, mask, dropout)
        weights = (weights.mean(1) if average_attn_weights else weights).unflatten(0, (-1, count))
    else:
        y, weights = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal), None
    y = linear(tape, y.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return y.unflatten(0, (-1, count)).transpose(1, 2), weights
