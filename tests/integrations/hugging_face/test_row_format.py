# SPDX-License-Identifier: Apache-2.0
from collections import UserDict
from http import HTTPStatus

import numpy as np
import pytest
import torch
import transformers as hf

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.integrations.hugging_face.row_format import KnownColumns, RowFormat, blank

from .tokenizers_of_words import tokenizer

WORDS = tokenizer()
COLLATORS = {
    "padding": hf.DataCollatorWithPadding(WORDS),
    "masked": hf.DataCollatorForLanguageModeling(WORDS),
    "causal": hf.DataCollatorForLanguageModeling(WORDS, mlm=False),
    "labels of tokens": hf.DataCollatorForTokenClassification(WORDS),
    "two sequences": hf.DataCollatorForSeq2Seq(WORDS),
}


def example(words=4, labeled=False):
    found = dict(WORDS("w1 " * words))
    return found | {"labels": [5] * words} if labeled else found


@pytest.mark.parametrize("name", COLLATORS)
def test_rows_are_padded_to_the_public_length_whatever_their_own(name):
    labeled = name in ("labels of tokens", "two sequences")
    found = RowFormat(COLLATORS[name], example(labeled=labeled), max_length=8)
    for words in (1, 4, 8):
        row = found.read(example(words, labeled))
        assert row is not None and {part.shape for part in row.values()} == {(8,)}
        assert int(row["attention_mask"].sum()) == words
    assert found.read(example(9, labeled)) is None


@pytest.mark.parametrize("name", COLLATORS)
def test_a_collator_that_pads_to_the_longest_is_refused_without_a_length(name):
    with pytest.raises(UnsupportedUseError, match="Pass max_length"):
        RowFormat(COLLATORS[name], example(labeled=name in ("labels of tokens", "two sequences")))


def test_a_collator_of_texts_that_pads_to_the_longest_is_refused():
    def collate(examples):
        return WORDS([each["text"] for each in examples], padding=True, return_tensors="pt")

    def fixed(examples):
        texts = [each["text"] for each in examples]
        return WORDS(texts, padding="max_length", max_length=5, truncation=True, return_tensors="pt")

    with pytest.raises(UnsupportedUseError, match="longest"):
        RowFormat(collate, {"text": "w1 w2"})
    assert RowFormat(fixed, {"text": "w1 w2"}).read({"text": "w1 " * 9}) is not None


def test_a_collator_that_pads_to_one_length_needs_no_other():
    fixed = hf.DataCollatorWithPadding(WORDS, padding="max_length", max_length=6)
    found = RowFormat(fixed, example())
    assert {part.shape for part in found.blank.values()} == {(6,)}


def test_rows_of_one_length_need_no_length():
    found = RowFormat(hf.default_data_collator, example())
    assert found.read(example()) is not None and found.read(example(3)) is None


def test_each_column_may_have_a_length_of_its_own():
    found = RowFormat(
        COLLATORS["two sequences"],
        example(labeled=True),
        max_length={"input_ids": 8, "attention_mask": 8, "labels": 3},
    )
    assert found.blank["labels"].shape == (3,) and found.blank["input_ids"].shape == (8,)
    assert found.read(example(2, labeled=True)) is not None
    assert found.read(example(4, labeled=True)) is None


def test_lengths_of_columns_that_are_not_there_are_refused():
    with pytest.raises(InvalidParameterError, match="input_idz"):
        RowFormat(COLLATORS["padding"], example(), max_length={"input_idz": 8})
    with pytest.raises(InvalidParameterError, match="no list of whole numbers"):
        RowFormat(hf.default_data_collator, {"x": [0.5]}, max_length=8)
    with pytest.raises(InvalidParameterError, match="max_length of"):
        RowFormat(COLLATORS["padding"], example(), max_length=0)


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"x": [1.0, 2.0], "label": 0.5}, False),  # a class that is a number
        ({"x": [1.0], "label": 1}, False),
        ({"x": [1.0, 2.0]}, False),
        ({"x": [1.0, 2.0], "label": 1, "y": 2}, False),
        ({"x": [float("nan"), 2.0], "label": 7}, True),  # values are the model's business
    ],
)
def test_the_format_is_names_shapes_and_types(changed, kept):
    found = RowFormat(hf.default_data_collator, {"x": [0.5, 0.5], "label": 1})
    assert (found.read(changed) is not None) == kept


def test_nothing_of_the_example_but_its_format_is_kept():
    seen = []

    def collate(examples):
        seen.extend(each["x"] for each in examples)
        return {"x": torch.tensor([each["x"] for each in examples])}

    found = RowFormat(collate, {"x": [3.5, 4.5]})
    assert seen and all(value == 0 for each in seen for value in each)
    assert found.blank["x"].tolist() == [0, 0]


def test_a_collator_that_takes_no_zeros_gets_the_example():
    def collate(examples):
        return {"x": torch.tensor([[1 / each["x"]] for each in examples])}

    assert RowFormat(collate, {"x": 2}).blank["x"].tolist() == [0]


def test_blank_keeps_the_nesting_and_types():
    given = {
        "a": torch.ones(2),
        "b": np.ones(3, dtype=np.int64),
        "c": [True, 2, 3.5],
        "d": "text",
        "e": [[1]],
        "f": HTTPStatus.OK,
    }
    found = blank(given)
    assert found["a"].tolist() == [0, 0] and found["b"].dtype == np.int64 and not found["b"].any()
    assert found["c"] == [False, 0, 0.0] and found["d"] == "text" and found["e"] == [[0]]
    assert type(found["f"]) is int and found["f"] == 0


def test_outputs_that_are_no_rows_are_refused():
    with pytest.raises(UnsupportedUseError, match="returns a list"):
        RowFormat(lambda examples: examples, {"x": 1.0})
    with pytest.raises(UnsupportedUseError, match="'x' as a float"):
        RowFormat(lambda examples: {"x": 1.0}, {"x": 1.0})


@pytest.mark.parametrize("known", [None, ["input_ids", "attention_mask"]])
def test_draws_that_others_can_repeat_are_refused(known):
    collate = hf.DataCollatorForLanguageModeling(WORDS, seed=1)
    with pytest.raises(UnsupportedUseError, match=r"Modeling\(seed="):
        RowFormat(collate if known is None else KnownColumns(collate, known), example(), max_length=8)


def test_a_collator_gets_copies_of_examples_with_the_columns_that_the_model_takes():
    got = []

    def collate(examples):
        got.append(sorted(examples[0]))
        return hf.default_data_collator([{"x": examples[0].pop("x")}])

    rows = [{"x": 1.0}, {"x": 2.0, "text": "a"}, UserDict({"x": 3.0, "text": "a"})]
    batches = [KnownColumns(collate, {"x", "y"})([row]) for row in rows]
    assert [float(batch["x"]) for batch in batches] == [1.0, 2.0, 3.0]
    assert got == [["x"], ["x"], ["text", "x"]] and rows[:2] == [{"x": 1.0}, {"x": 2.0, "text": "a"}]
