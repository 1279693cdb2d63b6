# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import ArrayColumn, column_of
from sfumato.statistics.questions.many_quantiles import Quantiles, quantiles
from sfumato.testing import seeded

BOUNDS = (-10.0, 10.0)


NINE = tuple((i + 1) / 10 for i in range(9))


ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


class Counted:
    """A column that only counts, as an engine does."""

    name, privacy_unit, contribution_bound = "counted", "row", 1

    def __init__(self, values):
        self.histogram = ArrayColumn(np.asarray(values, dtype=float)).histogram

    def moments(self, bounds):
        raise NotImplementedError

    def ordered(self, bounds):
        raise NotImplementedError


@pytest.mark.parametrize("make", [column_of, Counted])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_all_draws_of_halving_together_stay_within_epsilon(neighbors, relation, make):
    # Each draw's loss is its share times how far its scores moved, in sensitivities; all are added up.
    generator = np.random.default_rng(5)
    for trial in range(12):
        values = np.round(generator.normal(size=40), 1 if trial % 2 else 9)
        other = np.append(values[1:], generator.uniform(*BOUNDS)) if relation is REPLACE else values[1:]
        question = Quantiles(
            qs=(0.1, 0.25, 0.3, 0.5, 0.6, 0.9), bounds=BOUNDS, epsilon=1.0, relation=relation
        )
        spent = loss_of_replay(neighbors, question, make(values), make(other))
        assert 0 < spent <= 1.0 + 1e-9
        if relation is ADD:  # the bound is met in the worst case, so it could not be any lower
            assert spent > 0.3


def loss_of_replay(neighbors, question, data, neighbor) -> float:
    with neighbors.watched(neighbors.Tape()) as first:
        question.answer(data, generator=seeded(7))
    with neighbors.watched(neighbors.Tape(answers=[call.returned for call in first.calls])) as second:
        question.answer(neighbor, generator=seeded(7))
    total = 0.0
    for one, two in zip(first.calls, second.calls, strict=True):
        assert repr(one.mechanism) == repr(two.mechanism)
        cuts = np.unique(np.concatenate([one.given[0], two.given[0]]))
        middles = (cuts[1:] + cuts[:-1]) / 2
        gaps = [neighbors._score_at(middles, *call.given) for call in (one, two)]
        moved = np.abs(gaps[0] - gaps[1]).max(initial=0.0)
        total += one.mechanism.epsilon * moved / one.mechanism.sensitivity
    return total


@given(
    st.lists(st.floats(allow_nan=True, width=64), max_size=30),
    st.lists(st.floats(0, 1), min_size=1, max_size=7),
)
@settings(max_examples=40, deadline=None)
def test_any_data_gives_ordered_values_within_the_bounds(rows, qs):
    found = quantiles(rows, qs, bounds=(-3.0, 4.0), epsilon=1.0, generator=seeded(0)).value
    assert all(-3 <= value <= 4 for value in found)
    assert [value for _, value in sorted(zip(qs, found, strict=True))] == sorted(found)


def test_a_delta_buys_less_noise():
    pure = Quantiles(qs=NINE, bounds=BOUNDS, epsilon=1.0).event()
    with_delta = Quantiles(qs=NINE, bounds=BOUNDS, epsilon=1.0, delta=1e-6).event()
    assert with_delta.event.epsilon > pure.event.epsilon == 0.25
    assert with_delta.count == pure.count == 4


def test_no_quantiles_are_refused():
    with pytest.raises(InvalidParameterError, match="at least one"):
        quantiles([1.0], (), bounds=BOUNDS, epsilon=1.0)
