# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.datasets.columns import Category, Number, encode, encoded_names
from sfumato.errors import InvalidParameterError

COLUMNS = (
    Number("age", 16, 100),
    Category("color", ("red", "blue")),
    Number("bill", -1_000, 2_000, log_unit=10.0),
)
cells = st.one_of(
    st.floats().map(str), st.text(max_size=5), st.sampled_from(["red", "?", "", "1e400", "-inf"])
)
rows = st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=6)


@given(rows)
def test_whatever_the_cells_features_lie_between_0_and_1_and_rows_within_the_norm(rows):
    features = encode(COLUMNS, np.array(rows))
    assert features.dtype == torch.float32 and features.shape == (len(rows), 5)
    assert features.min() >= 0 and features.max() <= 1
    assert (features.norm(dim=1) <= len(COLUMNS) ** 0.5 + 1e-6).all()


@given(rows, st.data())
def test_a_row_depends_on_itself_alone(rows, data):
    index = data.draw(st.integers(0, len(rows) - 1))
    alone = encode(COLUMNS, np.array([rows[index]]))
    assert encode(COLUMNS, np.array(rows))[index].equal(alone[0])


def test_a_range_is_scaled_and_what_lies_outside_is_moved_in():
    age = Number("age", 20, 60)
    values = np.array(["20", "30", "60", "61", "-5", "inf", "?", "nan"])
    assert age.encode(values).ravel().tolist() == [0.0, 0.25, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_a_logarithmic_range_keeps_order_and_sign():
    bill = Number("bill", -990, 990, log_unit=10.0)
    values = bill.encode(np.array(["-990", "-90", "0", "90", "990"])).ravel()
    np.testing.assert_allclose(values, [0, 0.25, 0.5, 0.75, 1], atol=1e-3)  # log(100) is twice log(10)


def test_an_unknown_category_has_a_place_of_its_own():
    color = Category("color", ("red", "blue"))
    assert color.encode(np.array(["red", "?", "RED"])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_every_feature_has_a_name():
    assert encoded_names(COLUMNS) == ("age", "color=red", "color=blue", "color=other", "bill")


def test_a_range_must_be_one():
    with pytest.raises(InvalidParameterError, match="bounds"):
        Number("age", 100, 16)
    with pytest.raises(InvalidParameterError, match="log_unit"):
        Number("age", 16, 100, log_unit=0.0)
