# SPDX-License-Identifier: Apache-2.0
"""Labels are compared by what they say: one odd cell does not change how the others are read."""

import io
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.estimators import GaussianNB, LogisticRegression
from sfumato.estimators.classes import public_labels
from sfumato.estimators.label_codes import alike, codes, same

TOKENS = ["0", "1", "1", "0", " 1", "1.0", "0.0", "1e0", "-0", "2"]
MEANT = [0, 1, 1, 0, 1, 1, 0, 1, 0, -1]
ODD_TOKENS = [
    "?",
    "",
    "NA",
    "nan",
    "inf",
    "1e400",
    "True",
    "x",
    "9" * 30,
    "0.5",
    "-1",
    "1_0",
    "0x1",
    "2e-324",
]


def column(tokens):
    """Return a column as a reader of files makes it: the type follows from all tokens together."""
    text = "y,other\n" + "\n".join(f"{token},0" for token in tokens) + "\n"
    return pd.read_csv(io.StringIO(text))["y"].to_numpy()


@pytest.mark.parametrize("odd", ODD_TOKENS)
@pytest.mark.parametrize("classes", [(0, 1), (0.0, 1.0), ("0", "1")], ids=["whole", "floats", "text"])
def test_one_odd_cell_does_not_change_how_the_others_are_read(odd, classes):
    read = codes(column([*TOKENS, odd]), np.array(classes))
    assert read[:-1].tolist() == MEANT
    assert codes(column(TOKENS), np.array(classes)).tolist() == MEANT


@pytest.mark.parametrize("odd", ["?", "", "7", "1e400"])
def test_labels_with_decimals_and_truths_are_read_alike_beside_anything(odd):
    decimals = ["0.1", "0.30000000000000004", "2.5", "0.1"]
    assert codes(column([*decimals, odd]), np.array([0.1, 0.3, 2.5]))[:-1].tolist() == [0, 1, 2, 0]
    assert codes(column(["True", "False", "True", odd]), np.array([False, True]))[:-1].tolist() == [1, 0, 1]


@pytest.mark.parametrize("odd", ["?", "", "7"])
def test_words_stay_words(odd):
    assert codes(column(["no", "yes", "no", odd]), np.array(["no", "yes"])).tolist() == [0, 1, 0, -1]


def test_one_label_moves_a_fit_by_one_row_whatever_it_is():
    fitted = []
    for last in ("0", "?"):
        table = pd.read_csv(io.StringIO("x,y\n" + "0.2,0\n0.8,1\n" * 500 + f"0.3,{last}\n"))
        model = GaussianNB(epsilon=1e4, classes=(0, 1), bounds=(0, 1)).fit(table[["x"]], table["y"])
        fitted.append(model.theta_.ravel())
    np.testing.assert_allclose(fitted[0], fitted[1], atol=0.01)
    np.testing.assert_allclose(fitted[1], [0.2, 0.8], atol=0.01)


def test_the_score_of_a_search_reads_labels_alike():
    assert same(column([*TOKENS, "?"]), np.array([*MEANT, 0])).tolist() == [True] * 9 + [False, False]
    assert same(np.array(["no", None], dtype=object), np.array(["no", "no"])).tolist() == [True, False]


def test_classes_that_a_column_cannot_tell_apart_are_refused():
    assert alike(np.array(["a", "b"])) is None and alike(np.array([0, 1, 2])) is None
    for classes in (("1", "1.0"), ("True", "1"), ("x", "01", "1")):
        with pytest.raises(InvalidParameterError, match="say the same number"):
            public_labels(classes)
    with pytest.raises(InvalidParameterError, match=r"below 2\^53"):
        public_labels((0, 2**60))


ODD = ["x", None, 2.5, float("nan"), [1], (1,), np.array([1]), np.array([]), np.array("a"), pd.NA, pd.NaT]


class Hostile:
    def __float__(self):
        raise SystemError("a row")

    def __eq__(self, other):
        raise SystemError("a row")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        return "hostile"


@pytest.mark.parametrize("odd", [*ODD, Decimal("sNaN"), 10**400, 1 + 2j, b"1", Hostile()], ids=repr)
def test_one_foreign_label_does_not_change_how_the_others_are_read(odd):
    labels = [0, 1, 1, 0]
    estimator = LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=(0, 1))
    read = estimator._column([*labels, odd], rows=5)
    assert codes(read, np.array([0, 1])).tolist() == [0, 1, 1, 0, -1]


def test_an_array_without_an_axis_is_the_label_in_it_beside_text_too():
    read = LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=(0, 1))._column(
        [0, "no", np.array(1)], rows=3
    )
    assert codes(read, np.array([0, 1])).tolist() == [0, -1, 1]
