# SPDX-License-Identifier: Apache-2.0
"""What functions under attack are called with."""

import ibis
import numpy as np
import pandas as pd
import pytest
import torch

from sfumato.audit.mechanisms.releases import copied, data_of_its_own, require_two_arguments
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import SecureGenerator


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([[1.0], [2.0]], lambda rows: rows[0].append(5.0)),
        (np.ones(3), lambda rows: rows.fill(9)),
        (torch.ones(3, requires_grad=True), lambda rows: rows.data.fill_(9)),
        ((np.ones(2), "a"), lambda rows: rows[0].fill(9)),
        (pd.DataFrame({"a": [1.0, 2.0]}), lambda rows: rows.pop("a")),
    ],
)
def test_a_change_of_the_copy_does_not_reach_the_value(value, change):
    before = repr(value)
    for copy in (copied(value), data_of_its_own(value)):
        change(copy)
        assert repr(value) == before


def test_a_generator_is_passed_on():
    source = SecureGenerator()
    assert copied(source) is source


def test_what_cannot_be_copied_is_refused():
    with pytest.raises(InvalidParameterError, match="generator cannot be copied"):
        copied(row for row in [1, 2])


def test_a_function_must_take_two_arguments():
    require_two_arguments(lambda data, generator, more=None: 0)
    require_two_arguments(max)  # without a signature
    for wrong in (lambda: 0, lambda data: 0, lambda a, b, c: 0):
        with pytest.raises(InvalidParameterError, match="two arguments"):
            require_two_arguments(wrong)


def test_a_table_of_a_database_is_passed_on():
    table = ibis.table({"age": "float64"}, name="people")
    assert data_of_its_own(table) is table
    assert data_of_its_own([table, [1.0]])[0] is table
