# SPDX-License-Identifier: Apache-2.0
"""No extreme value changes what comes of a question on Spark: a local one stands for a cluster."""

import pytest

from . import poison
from .poison import KINDS, compared, covering, crowd

# A virtual machine of Java starts, and pyspark 4.3 warns about pandas 3 at every step.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    if not poison.has_spark():
        pytest.skip("needs pyspark and Java 17 or later: run `make test-spark`")
    with poison.spark(tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS["pyspark"], ids=lambda kind: kind.title)
def test_extreme_values_change_nothing_that_comes_of_a_question(engine, kind):
    place = KINDS["pyspark"].index(kind)
    found = list(compared(engine, kind, crowd(kind), covering(place)))
    assert [each for each in found if each.changed or each.failed] == []
