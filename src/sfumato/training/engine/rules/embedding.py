# SPDX-License-Identifier: Apache-2.0
"""Embeddings: rows of a table [words, features] looked up by tokens, one by one or in bags.

A unit's gradient adds the output gradient of each of its tokens to that token's row of the table; no unit
needs the whole table. Its norm must add up equal tokens of the unit first: they are found by sorting. A table
that is the output layer too (tied weights, as in GPT-2) has an inner product with a linear map, for which the
columns of the unit's own tokens are enough.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.errors import NotPrivateError, UnsupportedUseError
from sfumato.training.engine.rules.linear import APART, LinearOp, mass, precise_bmm, slack
from sfumato.training.engine.tape.operation import Op, norm_dtype, squared_norm, weighted_sum
from sfumato.training.engine.tape.tape import NoRuleError, Tape, name_of, plain, rule
from sfumato.training.isolation.isolated_rows import is_row

__all__ = ["BagOp", "EmbeddingOp"]


class _TableOp(Op):
    """A use of a table [words, features]: a list of tokens, each with a unit and a gradient."""

    slots = ("weight",)

    def __init__(self, tokens: Tensor, shape: torch.Size, names: dict[str, str | None], tape: Tape) -> None:
        super().__init__(names, tape)
        self.tokens = tokens
        self.shape = shape

    def uses(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens [n], their units [n], and what each adds to its row of the table [n, features]."""
        raise NotImplementedError

    def squared_norm(self, slot: str) -> Tensor:
        tokens, owners, values = self.uses()
        first = _first_equal(tokens + owners * self.shape[0])
        values = torch.zeros_like(values).index_add_(0, first, values)
        norms = squared_norm(values)
        return norms.new_zeros(self.grouping.units).index_add_(0, owners, norms)

    def per_unit(self, slot: str) -> Tensor:
        tokens, owners, values = self.uses()
        tables = values.new_zeros(self.grouping.units * self.shape[0], self.shape[1])
        tables.index_add_(0, tokens + owners * self.shape[0], values)
        return tables.reshape(self.grouping.units, *self.shape)

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        tokens, owners, values = self.uses()
        scaled = values * weights.to(values.dtype)[owners, None]
        return values.new_zeros(self.shape).index_add_(0, tokens, scaled)


def _first_equal(keys: Tensor) -> Tensor:
    """Return for each place one place that stands for all those with the same key.

    >>> _first_equal(torch.tensor([7, 3, 7, 3, 5])).tolist()
    [0, 1, 0, 1, 4]
    """
    ordered, order = keys.sort(stable=True)
    place = torch.arange(1, len(keys), device=keys.device)
    start = F.pad(torch.where(ordered[1:] == ordered[:-1], 0, place), (1, 0)).cummax(0).values
    return torch.empty_like(order).scatter_(0, order, order[start])


class EmbeddingOp(_TableOp):
    """A use of a table by tokens [rows, ...], or by the same tokens [...] for all rows if `shared`."""

    def __init__(
        self,
        tokens: Tensor,
        shape: torch.Size,
        names: dict[str, str | None],
        tape: Tape,
        *,
        padding_idx: int | None,
        shared: bool,
    ) -> None:
        super().__init__(tokens, shape, names, tape)
        self.padding_idx = padding_idx
        self.shared = shared

    def saved(self) -> Sequence[Tensor]:
        return (self.tokens,)

    def operands(self) -> tuple[Tensor, Tensor]:
        """Return each unit's tokens [units, t] and their gradients [units, t, features]."""
        units, rows = self.grouping.units, self.grouping.rows
        tokens = self.tokens.expand(rows, *self.tokens.shape) if self.shared else self.tokens
        tokens, values = tokens.reshape(units, -1), self.grad.reshape(units, -1, self.shape[1])
        if self.padding_idx is not None:
            values = values * (tokens != self.padding_idx)[..., None]
        return tokens, values.to(norm_dtype(values))

    def uses(self) -> tuple[Tensor, Tensor, Tensor]:
        tokens, values = self.operands()
        owners = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(tokens)
        return tokens.flatten(), owners.flatten(), values.flatten(0, 1)

    def squared_norm(self, slot: str) -> Tensor:
        tokens, values = self.operands()
        if tokens.shape[1] == 1:
            return squared_norm(values)
        # The weighted sum adds the gradients of one token in another order: they may cancel otherwise.
        apart = (APART * torch.finfo(values.dtype).eps) ** 2 * tokens.shape[1]
        return super().squared_norm(slot) + apart * squared_norm(values)

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        if not self.shared:
            return super().weighted_sum(slot, weights)
        tokens, values = self.operands()
        scaled = weighted_sum(values, weights)
        return values.new_zeros(self.shape).index_add_(0, tokens[0], scaled)

    def inner(self, slot: str, other: Op, other_slot: str) -> Tensor:
        if isinstance(other, EmbeddingOp):
            (tokens, values), (others, theirs) = self.operands(), other.operands()
            equal = tokens[:, :, None] == others[:, None, :]
            products = precise_bmm(values, theirs.transpose(1, 2)) * equal
            return products.sum((1, 2)) + slack(values) * _lengths(values) * _lengths(theirs)
        found = self.inner_with(slot, other, other_slot)
        return super().inner(slot, other, other_slot) if found is None else found

    def inner_with(self, slot: str, other: Op, other_slot: str) -> Tensor | None:
        if not isinstance(other, LinearOp) or other_slot != "weight" or other.transposed:
            return None
        tokens, values = self.operands()
        x, grad = other.operands()  # [units, s, features], [units, s, words]
        picked = grad.gather(2, tokens[:, None, :].expand(-1, grad.shape[1], -1))  # [units, s, t]
        scores = precise_bmm(x.to(values.dtype), values.transpose(1, 2))
        found = torch.linalg.vecdot(picked.to(values.dtype).flatten(1), scores.flatten(1))
        return found + slack(values) * mass(x, grad) * _lengths(values)


def _lengths(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=2).sum(1)


class BagOp(_TableOp):
    """A use of a table by sums of its rows.

    `bags` [n] is the sum that each token is in, `scales` [n] its factor.
    """

    def __init__(
        self,
        tokens: Tensor,
        bags: Tensor,
        scales: Tensor,
        shape: torch.Size,
        names: dict[str, str | None],
        tape: Tape,
    ) -> None:
        super().__init__(tokens, shape, names, tape)
        self.bags = bags
        self.scales = scales

    def saved(self) -> Sequence[Tensor]:
        return (self.tokens, self.scales)

    def uses(self) -> tuple[Tensor, Tensor, Tensor]:
        grad = self.grad.reshape(-1, self.shape[1])
        per_unit = len(grad) // max(self.grouping.units, 1)
        values = grad.to(norm_dtype(grad))[self.bags] * self.scales.to(norm_dtype(grad))[:, None]
        return self.tokens, self.bags // max(per_unit, 1), values


def _refuse(name: str, *, max_norm: float | None, scale_grad_by_freq: bool, sparse: bool) -> None:
    if max_norm is not None:
        raise NotPrivateError(
            f"the embedding that uses parameter {name!r} has max_norm set: it changes the rows of the table "
            "that examples look up, and so shows which they were. Leave max_norm out."
        )
    reasons = {
        "scale_grad_by_freq": "it divides a gradient by counts over the whole batch",
        "sparse": "with noise every row of the table changes, so the gradient is dense",
    }
    given = {"scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    for option, reason in reasons.items():
        if given[option]:
            raise UnsupportedUseError(
                f"the embedding that uses parameter {name!r} has {option} set, which cannot be trained "
                f"privately: {reason}. Leave {option} at its default."
            )


def _padding(padding_idx: int | None, words: int) -> int | None:
    return padding_idx + words if padding_idx is not None and padding_idx < 0 else padding_idx


@rule(F.embedding)
def _embedding(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    name = name_of(weight)
    if name is None:
        raise NoRuleError
    _refuse(name, max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    shared = not is_row(input)
    tokens = input if shared else tape.rows(input)
    y = F.embedding(tokens, plain(weight), padding_idx)
    padding = _padding(padding_idx, weight.shape[0])
    op = EmbeddingOp(tokens, weight.shape, {"weight": name}, tape, padding_idx=padding, shared=shared)
    return tape.note(op, y.expand(tape.grouping.rows, *y.shape) if shared else y)


@rule(F.embedding_bag)
def _embedding_bag(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    name = name_of(weight)
    if name is None or name_of(per_sample_weights) is not None or mode == "max":
        raise NoRuleError
    _refuse(name, max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    if offsets is not None and include_last_offset:
        offsets = offsets[:-1]
    shape = (tape.grouping.rows, -1, weight.shape[1])
    tokens, bags, count = _bags(tape.rows(input), None if offsets is None else tape.rows(offsets))
    kept = tokens != (-1 if padding_idx is None else _padding(padding_idx, weight.shape[0]))
    scales = kept.to(plain(weight).dtype)
    if mode == "mean":
        scales = scales / scales.new_zeros(count).index_add_(0, bags, scales)[bags].clamp(min=1)
    elif per_sample_weights is not None:
        given = tape.rows(per_sample_weights)
        if given.requires_grad:  # a gradient flows on through them
            raise NoRuleError
        scales = scales * given.flatten()
    options: Any = {"mode": "sum", "include_last_offset": False}
    starts = torch.searchsorted(bags, torch.arange(count, device=bags.device))
    y = F.embedding_bag(tokens, plain(weight), starts, per_sample_weights=scales, **options)
    y = tape.note(BagOp(tokens, bags, scales, weight.shape, {"weight": name}, tape), y)
    return y.reshape(shape)


def _bags(input: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Return all tokens [n], the bag of each, and how many bags there are, from [rows, ...]."""
    if offsets is None:  # [rows, bags, tokens]
        count = input.shape[0] * input.shape[1]
        bags = torch.arange(count, device=input.device).repeat_interleave(input.shape[2])
        return input.flatten(), bags, count
    rows, length = input.shape  # [rows, tokens], offsets [rows, bags]
    place = torch.arange(length, device=input.device).expand(rows, length).contiguous()
    within = torch.searchsorted(offsets.to(place.dtype).contiguous(), place, right=True) - 1
    within = within.clamp(min=0)  # before the first offset, where torch fails: not a bag of the row before
    first = torch.arange(rows, device=input.device)[:, None] * offsets.shape[1]
    return input.flatten(), (within + first).flatten(), rows * offsets.shape[1]
