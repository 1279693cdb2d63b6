# SPDX-License-Identifier: Apache-2.0
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import events
from sfumato.errors import InvalidParameterError, UnsupportedEventError
from sfumato.training.privacy.epoch_events import composed, once_per_epoch

gaussian, projected = dp.GaussianDpEvent, events.JohnsonLindenstraussDpEvent


@given(
    runs=st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 9)), min_size=1, max_size=5),
    steps_per_epoch=st.integers(1, 6),
)
def test_each_epoch_costs_its_least_noise_and_a_begun_one_counts(runs, steps_per_epoch):
    each = [noise for noise, count in runs for _ in range(count)]
    wanted = [min(each[i : i + steps_per_epoch]) for i in range(0, len(each), steps_per_epoch)]
    found = once_per_epoch([(gaussian(noise), count) for noise, count in runs], steps_per_epoch)
    assert [event.noise_multiplier for event, count in found for _ in range(count)] == wanted


def test_the_most_expensive_of_mixed_events_is_known_only_if_they_differ_in_noise_alone():
    both = dp.ComposedDpEvent([gaussian(3.0), gaussian(4.0)])
    assert once_per_epoch([(gaussian(2.5), 1), (both, 1)], 2) == [(both, 1)]
    assert once_per_epoch([(projected(2.0, 9), 1), (projected(1.0, 9), 1)], 2) == [(projected(1.0, 9), 1)]
    assert once_per_epoch([(dp.LaplaceDpEvent(1.0), 2)], 2) == [(dp.LaplaceDpEvent(1.0), 1)]
    for other in (projected(1.0, 8), gaussian(1.0), dp.LaplaceDpEvent(1.0)):
        with pytest.raises(UnsupportedEventError, match="not known which one costs most"):
            once_per_epoch([(projected(2.0, 9), 1), (other, 1)], 2)


def test_composed_steps_keep_their_counts_and_a_count_of_none_is_refused():
    found = composed([(gaussian(1.0), 3), (gaussian(2.0), 1)])
    assert found == events.compose(dp.SelfComposedDpEvent(gaussian(1.0), 3), gaussian(2.0))
    with pytest.raises(InvalidParameterError, match="count_of_steps"):
        composed([(gaussian(1.0), 0)])
    with pytest.raises(InvalidParameterError, match="count_of_steps"):
        once_per_epoch([(gaussian(1.0), 0)], 2)
