# SPDX-License-Identifier: Apache-2.0
import logging
import warnings

import pytest
import torch
import transformers as hf
from torch.utils.data import default_collate

from sfumato.errors import QueryFailedError, UnsupportedUseError
from sfumato.integrations.hugging_face.collated_rows import CollatedRows
from sfumato.mechanisms.random import resolve
from sfumato.training.data.units import open_rows
from sfumato.training.random_state import private_draws

from .tokenizers_of_words import tokenizer


class Touchy:
    """Reads rows aloud, and fails at some."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        warnings.warn(f"row {number} is odd", stacklevel=1)
        logging.getLogger("touchy").error("row %s", number)
        if number == 2:
            raise MemoryError
        return {"x": [1.0 + number]}


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


@pytest.mark.parametrize("error", [RuntimeError("secret"), SystemExit("secret"), MemoryError(), Panic()])
def test_an_example_that_raises_when_it_is_read_contributes_nothing(error):
    class Examples(list):
        def __getitem__(self, number):
            if number == 1:
                raise error
            return super().__getitem__(number)

    rows = CollatedRows(Examples([{"x": [1.0]}, {"x": [2.0]}]), hf.default_data_collator)
    assert [float(readable) for readable, _ in rows.__getitems__([0, 1])] == [1.0, 0.0]


def test_a_row_that_fails_is_blank_and_is_multiplied_by_zero(caplog):
    rows = CollatedRows(Touchy(), hf.default_data_collator)
    assert len(rows) == 3
    assert [float(rows[i][0]) for i in range(3)] == [1, 1, 0]
    assert rows[1][1]["x"].tolist() == [2] and rows[2][1]["x"].tolist() == [0]
    assert caplog.text == ""  # warnings are errors in tests, so none came out


def test_rows_that_are_stacked_are_those_that_are_collated():
    rows = CollatedRows(Touchy(), hf.default_data_collator)
    expected = default_collate(rows.__getitems__([1, 2, 0]))
    readable, row = rows.stacked([1, 2, 0])
    assert torch.equal(readable, expected[0]) and readable.dtype == expected[0].dtype
    assert row.keys() == expected[1].keys() and torch.equal(row["x"], expected[1]["x"])
    batch = open_rows(rows).take(torch.tensor([1, 2]))
    assert batch[0].tolist() == [1, 0] and batch[1]["x"].tolist() == [[2], [0]]


@pytest.mark.parametrize("other", [torch.Tensor.to_sparse, lambda x: x.to("meta")])
def test_a_row_that_cannot_be_stacked_with_others_contributes_nothing(other):
    def collate(examples):
        x = torch.tensor([[each] for each in examples])
        return {"x": other(x) if examples[0] == 2.0 else x}

    assert CollatedRows([1.0, 2.0, 3.0], collate).stacked([0, 1, 2])[0].tolist() == [1, 0, 1]


def test_a_row_that_is_collated_into_the_memory_of_the_last_one_does_not_change_that_one():
    made = torch.zeros(2, 2)

    def collate(examples):
        for row, example in zip(made, examples, strict=False):
            row.fill_(example["x"])
        return {"x": made[: len(examples)]}

    rows = CollatedRows([{"x": 0.0}, {"x": 1.0}, {"x": 9.0}], collate)
    assert rows.stacked([0, 1, 2])[1]["x"][:, 0].tolist() == [0, 1, 9]


def test_an_interrupt_is_no_row_that_fails():
    def collate(examples):
        if examples[0]["x"] == 2:
            raise KeyboardInterrupt
        return hf.default_data_collator(examples)

    with pytest.raises(KeyboardInterrupt):
        CollatedRows([{"x": 1}, {"x": 2}], collate)[1]


def test_no_row_is_read_before_one_is_asked_for():
    rows = CollatedRows(Touchy(), hf.default_data_collator, public=lambda: pytest.fail("asked"))
    assert len(rows) == 3


def test_a_public_example_is_the_format_where_there_is_one():
    data = [{"x": "broken"}, {"x": [1.0]}]
    rows = CollatedRows(data, hf.default_data_collator, public=lambda: {"x": [0.5]})
    assert [float(rows[i][0]) for i in range(2)] == [0, 1]


def test_an_error_about_the_first_private_row_does_not_quote_it():
    def collate(examples):
        raise ValueError(f"bad row {examples}")

    with pytest.raises(QueryFailedError) as caught:
        CollatedRows([{"x": 12345}], collate)[0]
    assert "12345" not in str(caught.value) and caught.value.__context__ is None
    with pytest.raises(ValueError, match="bad row"):  # of a public one all may be told
        CollatedRows([{"x": 1}], collate, public=lambda: {"x": 2})[0]


def test_what_is_wrong_with_the_collator_is_told():
    with pytest.raises(UnsupportedUseError, match="max_length"):
        CollatedRows([{"input_ids": [1]}], hf.DataCollatorWithPadding(tokenizer()))[0]


def test_masks_are_drawn_by_the_step():
    rows = CollatedRows(
        [{"input_ids": [5] * 200}], hf.DataCollatorForLanguageModeling(tokenizer()), max_length=200
    )
    before = torch.get_rng_state()

    def masks(step):
        with private_draws(resolve(None), "step", step):
            return rows[0][1]["labels"]

    assert not torch.equal(masks(0), masks(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_does_not_depend_on_those_that_were_read_before():
    collate = hf.DataCollatorWithPadding(tokenizer())
    data = [{"input_ids": [5] * length} for length in (3, 6, 1)]
    rows = CollatedRows(data, collate, max_length=8)
    first = rows[2][1]["input_ids"]
    _ = rows[1], rows[0]
    assert torch.equal(rows[2][1]["input_ids"], first) and first.tolist() == [5] + [0] * 7
