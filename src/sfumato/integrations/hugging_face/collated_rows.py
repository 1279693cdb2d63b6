# SPDX-License-Identifier: Apache-2.0
"""A data set of Hugging Face as rows for the trainer: each example read and collated on its own.

Guarantee  What becomes of an example depends on it and on random draws of the step, never on another one.
           An example that cannot be read, collated, or brought into the public format contributes nothing:
           no error, no warning and no log line tells that it is there.
Edge cases Such an example becomes a row of zeros whose loss is multiplied by 0.
Not here   What a data set keeps of the examples that it was asked for, such as a cache of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sfumato._failures import ordinary
from sfumato.integrations.hugging_face.row_format import Collate, MaxLength, Row, RowFormat
from sfumato.training.data.augmentation import quietly
from sfumato.training.data.modes import Modes
from sfumato.training.data.silence import silent

__all__ = ["CollatedRows"]

_READABLE, _NOT = torch.ones(()), torch.zeros(())


class CollatedRows(Dataset[tuple[Tensor, Row]]):
    """Examples as pairs: 1 or 0 for whether it could be read, and the inputs of the model.

    >>> from transformers import default_data_collator
    >>> rows = CollatedRows([{"x": [1.0]}, {"x": "no number"}], default_data_collator)
    >>> rows[0], rows[1]
    ((tensor(1.), {'x': tensor([1.])}), (tensor(0.), {'x': tensor([0.])}))
    """

    one_form: Final = True  # of all rows: whoever asks for them need not look

    def __init__(
        self,
        examples: Any,
        collate: Collate,
        *,
        max_length: MaxLength | None = None,
        public: Callable[[], Any] | None = None,
    ) -> None:
        self._examples, self._collate, self._max_length = examples, collate, max_length
        self._public = public  # a public example, which is asked for its format in place of a private one
        self._format: RowFormat | None = None

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> tuple[Tensor, Row]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Tensor, Row]]:
        row_format = self.row_format()
        with silent():
            rows = self._read(numbers, row_format)
        return [(_NOT, row_format.blank) if row is None else (_READABLE, row) for row in rows]

    def stacked(self, numbers: Sequence[int]) -> tuple[Tensor, Row]:
        """Return the examples of some numbers as one batch, which is what they give when they are collated.

        Args:
            numbers: The numbers, one at least.

        Returns:
            1 or 0 for each of them, and the inputs of the model.
        """
        row_format = self.row_format()
        with silent():
            rows = self._read(numbers, row_format)
            readable = torch.tensor([float(row is not None) for row in rows])
            whole = [row_format.blank if row is None else row for row in rows]
            return readable, {name: torch.stack([row[name] for row in whole]) for name in row_format.blank}

    def _read(self, numbers: Sequence[int], row_format: RowFormat) -> list[Row | None]:
        """Return each example in the format; None for one that cannot be read."""
        modes, rows = Modes(), list[Row | None]()
        for number in numbers:
            try:
                row = ordinary(lambda number=number: row_format.read(self._examples[number]))
            except Exception:  # whether an example can be read must not be seen
                row = None
            finally:
                modes.put_back()
            rows.append(row)
        return rows

    def row_format(self) -> RowFormat:
        """Return the format of rows, found on first use: not before the run is paid for.

        Returns:
            The format.
        """
        if self._format is None:
            self._format = self._found()
        return self._format

    def _found(self) -> RowFormat:
        if self._public is not None:
            return RowFormat(self._collate, self._public(), max_length=self._max_length)
        with silent():
            return quietly(
                "the data collator",
                lambda: RowFormat(self._collate, self._examples[0], max_length=self._max_length),
            )
