# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path
from typing import get_args

import numpy as np

import sfumato.statistics
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import column_of, in_steps

MODULES = sorted(Path(sfumato.statistics.__file__).parent.rglob("*.py"))
NAMED_AGAIN = re.compile(r"^\w+ = npt\.NDArray\[np\.(float64|int64)\]$", re.MULTILINE)


def scalar(alias: object) -> type:
    """Return the type of the entries of an array type."""
    return get_args(get_args(alias)[1])[0]


def test_columns_compute_with_these_types():
    column = column_of([1.0, 2.0])
    assert column.ordered((0, 4)).dtype == in_steps(np.array([1.0]), (0, 4)).dtype == scalar(Floats)
    assert column.histogram(np.array([0.0, 1.5, 4.0])).dtype == scalar(Integers)


def test_no_other_module_names_these_types_again():
    named = [path.name for path in MODULES if NAMED_AGAIN.search(path.read_text())]
    assert named == ["arrays.py"]
