# SPDX-License-Identifier: Apache-2.0
"""The public format of a row: which tensors the model gets, of which shapes and types.

A collator pads the rows of a batch to the longest of them, so the shape of a row would depend on the others.
Here each row is collated alone, or beside a blank row of a public length, and must come out in the format.

Guarantee  The format is settled on blank rows: zeros, of the nesting and types of one example. Only these,
           and the length of the example where rows are not padded, are taken from it.
Failure    A collator that gives rows of different lengths is refused unless a length is stated. It is tried
           on blank rows of two lengths.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.training.data.readable_rows import zero_of

__all__ = ["Collate", "KnownColumns", "MaxLength", "Row", "RowFormat"]

Collate = Callable[[list[Any]], Any]
MaxLength = int | Mapping[str, int]
Row = dict[str, Tensor]

_MORE: Final = 64  # tokens by which blank rows differ: more than collators round lengths to


class KnownColumns:
    """A collator that gets of each example the columns that the model takes, as transformers' own wrapper.

    It makes a copy of each example, as a collator may change what it gets.

    >>> KnownColumns(list, ["x"])([{"x": 1, "text": "a"}, {"x": 2}])
    [{'x': 1}, {'x': 2}]
    """

    def __init__(self, inner: Collate, columns: Iterable[str]) -> None:
        self.inner, self._columns = inner, frozenset(columns)

    def __call__(self, examples: list[Any]) -> Any:
        return self.inner([self._known(example) for example in examples])

    def _known(self, example: Any) -> Any:
        if not isinstance(example, dict):
            return example
        whole = cast("dict[str, Any]", example)
        if whole.keys() <= self._columns:  # most are, and this is quick
            return dict(whole)
        return {name: part for name, part in whole.items() if name in self._columns}


class RowFormat:
    """How a collator's rows look, all alike.

    >>> from transformers import default_data_collator
    >>> format = RowFormat(default_data_collator, {"x": [0.5, 0.5], "label": 1})
    >>> format.read({"x": [1.0, 2.0], "label": 0})
    {'labels': tensor(0), 'x': tensor([1., 2.])}
    >>> format.read({"x": [1.0], "label": 0}) is None
    True
    """

    def __init__(self, collate: Collate, example: Any, *, max_length: MaxLength | None = None) -> None:
        _refuse_seeded(collate)
        self._collate = collate
        self._companion: list[Any] = []  # collated with each row, so that it is padded to the public length
        if max_length is not None:
            self._companion = [_resized(blank(example), _lengths(example, max_length))]
        else:
            _require_one_length(collate, blank(example))
        self.blank: Row = {name: torch.zeros_like(part) for name, part in self._template(example).items()}
        self._forms = [(name, *_form(part)) for name, part in self.blank.items()]

    def read(self, example: Any) -> Row | None:
        """Return a row in the format; None for an example that cannot be brought into it."""
        row = _first(self._collate([example, *self._companion]))
        if [(name, *_form(part)) for name, part in row.items()] != self._forms:
            return None
        return {name: part.clone() for name, part in row.items()}  # the next one may take the same memory

    def _template(self, example: Any) -> Row:
        pair = [*self._companion, *self._companion] or [blank(example)]
        try:
            return _first(self._collate(pair))
        except UnsupportedUseError:
            raise
        except Exception:  # some collators accept no zeros: the shapes of the example must do
            return _first(self._collate([example, *self._companion]))


def blank(value: Any) -> Any:
    """Return zeros in the place of numbers, in containers as they are; anything else stays as it is.

    >>> blank({"input_ids": [4, 5], "label": 1, "picture": np.ones((1, 2))})
    {'input_ids': [0, 0], 'label': 0, 'picture': array([[0., 0.]])}
    """
    if isinstance(value, Mapping):
        return {name: blank(part) for name, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list):
        return [blank(part) for part in cast("list[Any]", value)]
    return zero_of(value)


def _lengths(example: Any, max_length: MaxLength) -> Mapping[str, int]:
    """Return the length of each column of tokens."""
    tokens = [name for name, part in example.items() if _is_tokens(part)] if _is_row(example) else []
    if isinstance(max_length, Mapping):
        _check.keywords(max_length, sorted(example) if _is_row(example) else [])
        lengths = dict(max_length)
    else:
        lengths = dict.fromkeys(tokens, max_length)
    if not lengths:
        raise InvalidParameterError(
            "max_length is the number of tokens in a row, but rows have no list of whole numbers. Leave it "
            "out, or let the data set return tokens instead of text."
        )
    for name, length in lengths.items():
        _check.count(**{f"max_length of {name}": length})
    return lengths


def _is_row(example: Any) -> bool:
    return isinstance(example, Mapping)


def _is_tokens(value: Any) -> bool:
    """Whether a value is a sequence of whole numbers, or of sequences of them."""
    if isinstance(value, Tensor | np.ndarray):
        kind = torch.as_tensor(value)
        return kind.dim() >= 1 and not kind.is_floating_point() and kind.dtype is not torch.bool
    if not isinstance(value, list) or not value:
        return False
    first: Any = cast("list[Any]", value)[0]
    return type(first) is int or isinstance(first, np.integer) or _is_tokens(first)


def _resized(example: Any, lengths: Mapping[str, int]) -> Any:
    """Return a blank row with other lengths."""
    return {n: _of_length(part, lengths[n]) if n in lengths else part for n, part in example.items()}


def _of_length(value: Any, length: int) -> Any:
    """Return zeros of another length."""
    if isinstance(value, Tensor):
        return value.new_zeros((length, *value.shape[1:]))
    if isinstance(value, np.ndarray):
        return np.zeros((length, *value.shape[1:]), dtype=value.dtype)
    return [value[0] if value else 0] * length


def _require_one_length(collate: Collate, row: Any) -> None:
    """Raise if a collator pads rows to the longest of them."""
    if not _is_row(row):
        return
    sizes = {name: len(part) + _MORE for name, part in row.items() if _is_tokens(part)}
    texts = {name: "a " * _MORE for name, part in row.items() if isinstance(part, str)}
    if not sizes and not texts:
        return
    longer = {**_resized(row, sizes), **texts}
    row = {**row, **dict.fromkeys(texts, "a")}
    try:
        alone, beside = _first(collate([row])), _first(collate([row, longer]))
    except Exception:  # it takes rows of one length only: then all have the one of the example
        return
    if any(part.shape != beside[name].shape for name, part in alone.items() if name in beside):
        raise UnsupportedUseError(
            "the data collator pads each batch to its longest row, so the shape of a row would depend on the "
            "others. Pass max_length=..., a public number of tokens, or let the tokenizer pad to one length "
            '(padding="max_length").'
        )


def _form(part: Tensor) -> tuple[Any, ...]:
    """Return what tensors must have in common to become one batch."""
    return part.shape, part.dtype, part.device, part.layout


def _first(batch: Any) -> Row:
    """Return the first row of what a collator made, with names in the order of the alphabet."""
    if type(batch) is not dict and not isinstance(batch, Mapping):  # the first question is quick
        raise UnsupportedUseError(
            f"the data collator returns a {type(batch).__name__}. It must return a dict of tensors, with one "
            "row an example on the first axis."
        )
    parts, row = cast("Mapping[str, Any]", batch), Row()
    for name in sorted(parts):
        part = parts[name]
        if part is None:
            continue
        if not isinstance(part, Tensor) or not part.dim():
            raise UnsupportedUseError(
                f"the data collator returns {name!r} as a {type(part).__name__}. It must be a tensor with "
                "one row an example on the first axis."
            )
        row[name] = part[0]
    return row


def _refuse_seeded(collate: object) -> None:
    """Refuse masks that others can repeat: which tokens of a row are masked would be known."""
    inner = collate.inner if isinstance(collate, KnownColumns) else collate
    if getattr(inner, "seed", None) is not None:
        raise UnsupportedUseError(
            f"{type(inner).__name__}(seed=...) draws from a number that others may know, for all rows in "
            "turn. Leave seed out: each step has secret draws of its own."
        )


def is_sequence(value: object) -> bool:
    """Whether rows can be had by number."""
    return isinstance(value, Sequence) or (hasattr(value, "__getitem__") and hasattr(value, "__len__"))
