# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.estimators import DecisionTreeClassifier, HistGradientBoostingClassifier
from sfumato.estimators.trees.bins import Bins


def of(features=2, **options):
    given = {"bounds": (0, 10), "categories": {1: 3}, "max_bins": 5, **options}
    return Bins.of(DecisionTreeClassifier(epsilon=1.0, classes=(0, 1), **given), features)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.0, 0], [0, 0]),
        ([1.99, 1], [0, 1]),
        ([2.0, 2], [1, 2]),
        ([10.0, 3], [4, 3]),
        ([-5.0, -1], [0, 3]),
        ([99.0, 1.5], [4, 3]),
        ([math.inf, math.inf], [4, 3]),
        ([-math.inf, -math.inf], [0, 3]),
        ([math.nan, math.nan], [5, 3]),
    ],
)
def test_every_value_has_the_bin_that_the_page_promises(row, expected):
    assert of().places(np.array([row], dtype=float)).tolist() == [expected]


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=5))
def test_the_bins_of_a_row_depend_on_no_other_row_and_exist(rows):
    bins, X = of(), np.array(rows)
    together = bins.places(X)
    assert together.tolist() == [bins.places(row[None]).tolist()[0] for row in X]
    assert (together >= 0).all() and (together < bins.sizes).all()


def test_bounds_are_one_pair_or_one_for_each_feature():
    bins = of(bounds=[(0, 10), (5, 6)], categories=None)
    assert bins.places(np.array([[5.0, 5.5]])).tolist() == [[2, 2]]
    with pytest.raises(InvalidParameterError, match="2 pairs, but X has 3"):
        of(features=3, bounds=[(0, 10), (5, 6)])


def test_a_feature_may_be_named():
    X = pd.DataFrame({"age": [1.0, 2.0], "color": [0, 1]})
    for kind in (DecisionTreeClassifier, HistGradientBoostingClassifier):
        model = kind(epsilon=1.0, classes=(0, 1), bounds=(0, 10), categories={"color": 2})
        assert model.fit(X, [0, 1]).bins_.categorical.tolist() == [False, True]
        with pytest.raises(InvalidParameterError, match="'size'"):
            model.set_params(categories={"size": 2}).fit(X, [0, 1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"bounds": (1, 0)},
        {"bounds": (0, math.inf)},
        {"bounds": [(0, 1), (1, 1)]},
        {"bounds": None},
        {"categories": [1]},
        {"categories": {1: 0}},
        {"categories": {-1: 2}},
        {"categories": {1: 5000}},
        {"max_bins": 1},
        {"max_bins": 2.5},
        {"classes": (0,)},
        {"relation": "zero-out"},
    ],
    ids=str,
)
def test_domains_that_make_no_sense_are_refused_before_anything_is_read(wrong):
    terms = {"epsilon": 1.0, "classes": (0, 1), "bounds": (0, 1), **wrong}
    for kind in (DecisionTreeClassifier, HistGradientBoostingClassifier):
        with pytest.raises(InvalidParameterError):
            kind(**terms).fit(None, None)
