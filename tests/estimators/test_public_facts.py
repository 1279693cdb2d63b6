# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pytest

from sfumato.estimators.public_facts import PublicFacts, ReadLater


class Trap(ReadLater):
    """Rows that must not be read."""

    n_features = 2

    def __array__(self, *arguments, **options):
        raise AssertionError("the data was read")


NAMED = {"a": [1.0], "b": [2.0]}


@pytest.mark.parametrize(
    ("rows", "features", "names"),
    [
        (np.zeros((7, 2)), 2, None),
        (pd.DataFrame(NAMED), 2, ("a", "b")),
        (pl.DataFrame(NAMED), 2, ("a", "b")),
        (pd.DataFrame({0: [1.0], 1: [2.0]}), 2, None),
        (Trap(), 2, None),
        ([[1.0, 2.0]], None, None),  # only its rows would tell
        (np.zeros(7), None, None),
    ],
    ids=["array", "pandas", "polars", "numbered", "later", "list", "one axis"],
)
def test_columns_are_what_is_known_before_rows_are_read(rows, features, names):
    assert PublicFacts.of(rows, None) == PublicFacts(features=features, names=names, has_target=False)
    assert PublicFacts.of(rows, Trap()).has_target


def test_the_number_of_rows_is_no_fact():
    assert PublicFacts.of(np.zeros((7, 2)), None) == PublicFacts.of(np.zeros((8, 2)), None)
