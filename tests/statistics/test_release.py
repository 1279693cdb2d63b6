# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.release import Covers, Interval, Release

PROMISE = Guarantee(epsilon=0.5, delta=0.0, relation=Relation.ADD_REMOVE, privacy_unit="row")


def interval(lower: float, upper: float, level: float = 0.95) -> Interval:
    return Interval(lower=lower, upper=upper, level=level, covers=(Covers.NOISE, Covers.SAMPLING))


def test_an_interval_holds_its_ends_and_what_lies_between():
    assert 1.0 in interval(1.0, 2.0)
    assert 2.0 in interval(1.0, 2.0)
    assert 1.5 in interval(1.0, 2.0)
    assert 2.1 not in interval(1.0, 2.0)
    assert float("nan") not in interval(1.0, 2.0)


@pytest.mark.parametrize("ends", [(2.0, 1.0), (float("nan"), 1.0), (1.0, float("nan"))])
def test_an_interval_needs_its_ends_in_order(ends):
    with pytest.raises(InvalidParameterError, match="lower end"):
        interval(*ends)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, float("nan")])
def test_a_level_is_a_probability(level):
    with pytest.raises(InvalidParameterError, match="level"):
        interval(0.0, 1.0, level)


def test_a_release_reads_as_value_interval_promise_and_notes():
    release = Release(
        name="mean of age",
        value=35.41234567,
        interval=interval(35.2, 35.6),
        guarantee=PROMISE,
        event=PureDpEvent(0.5),
        notes=("for study only",),
    )
    assert str(release).splitlines() == [
        "mean of age: 35.4123",
        "  interval: 35.2 to 35.6 (95%, noise, sampling)",
        "  (0.5, 0)-differential privacy for one row, add-remove neighbors",
        "  for study only",
    ]


def test_a_release_without_a_value_says_that_it_failed():
    release = Release(name="mean of age", value=None, guarantee=PROMISE, event=PureDpEvent(0.5))
    assert str(release).startswith("mean of age: failed\n")
