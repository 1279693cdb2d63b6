# SPDX-License-Identifier: Apache-2.0
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.training.adapters.nesting import refuse_unsplit, row_count

Pair = namedtuple("Pair", ["x", "y"])


@dataclass(frozen=True)
class Frozen:
    x: object
    name: str = "a"


ONE, TWO = torch.zeros(2), torch.ones(2)


@pytest.mark.parametrize(
    "value", [(ONE, 3, None, "a", torch.float32), {"x": [ONE, None], "size": (1, 2)}, Frozen(TWO)]
)
def test_rows_in_tensors_and_constants_beside_them_are_let_through(value):
    refuse_unsplit(value, rows=2, what="the module")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((ONE, [1, 2]), "a list with a int"),
        ((ONE, ["a", "b"]), "a list with a str"),
        ((ONE, object()), "a object"),
        ((ONE, {1, 2}), "a set"),
        ((ONE, ONE.numpy()), "a ndarray"),
        ((ONE, torch.zeros(3)), "one row for each example"),
        ((ONE, torch.zeros(())), "one row for each example"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_could_hold_rows_elsewhere_is_refused(value, says):
    with pytest.raises(InvalidParameterError, match=says):
        refuse_unsplit(value, rows=2, what="the module")


def test_rows_are_counted_by_the_first_tensor():
    assert row_count({"text": ["a"], "x": [torch.zeros(5, 2)]}) == 5
    assert row_count("text") == 0
