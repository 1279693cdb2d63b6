# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import composition, events, price, rdp, selection
from sfumato.accounting.events import ApproximateDpEvent, PureDpEvent, SelectionDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, UnsupportedEventError


@pytest.mark.parametrize(("shape", "times"), [(0.0, 2.0), (1.0, 3.0), (2.5, 4.5)])
def test_the_best_of_pure_runs_costs_two_plus_shape_times_one(shape, times):
    event = SelectionDpEvent((PureDpEvent(0.2), PureDpEvent(0.1)), shape, 0.1)
    assert composition.basic(event, Relation.ADD_REMOVE) == pytest.approx((times * 0.2, 0.0))


def test_renyi_of_a_gaussian_is_the_formula_of_the_paper():
    # Papernot and Steinke 2022, Theorem 2, by hand for the geometric law with 10 runs on average.
    event, order = SelectionDpEvent((dp.GaussianDpEvent(10.0),), 1.0, 0.1), 20.0
    fine = np.linspace(1.01, 200, 100_000)
    second = np.min((1 - 1 / fine) * fine / 200 + math.log(10) / fine)
    by_hand = order / 200 + 2 * second + math.log(10) / (order - 1)
    found = rdp.curve(event, Relation.ADD_REMOVE, np.array([order])).values[0]
    assert by_hand <= found <= by_hand * 1.01


def test_it_costs_more_than_one_run_and_far_less_than_all_of_them():
    one = price(dp.GaussianDpEvent(10.0), delta=1e-5).upper
    chosen = price(SelectionDpEvent((dp.GaussianDpEvent(10.0),), 1.0, 0.01), delta=1e-5).upper
    all_runs = price(dp.SelfComposedDpEvent(dp.GaussianDpEvent(10.0), 100), delta=1e-5).upper
    assert one < chosen < all_runs / 2


def test_the_dearest_candidate_decides():
    both = SelectionDpEvent((dp.GaussianDpEvent(10.0), dp.GaussianDpEvent(5.0)), 0.0, 0.1)
    dear = SelectionDpEvent((dp.GaussianDpEvent(5.0),), 0.0, 0.1)
    assert price(both, delta=1e-5).upper == price(dear, delta=1e-5).upper


def test_runs_with_a_delta_of_their_own_are_refused():
    event = SelectionDpEvent((ApproximateDpEvent(0.1, 1e-6),), 1.0, 0.1)
    with pytest.raises(UnsupportedEventError):
        price(event, delta=1e-5)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
def test_stop_gives_the_mean_that_was_asked_for(shape):
    assert selection.mean_runs(shape, selection.stop_for(shape, 7.0)) == pytest.approx(7.0)


def test_json_and_composition_keep_it():
    event = SelectionDpEvent((PureDpEvent(0.1), dp.GaussianDpEvent(3.0)), 1.0, 0.1)
    again = events.from_json(events.to_json(event))
    assert events.leaves(events.compose(event, again)) == {
        SelectionDpEvent((PureDpEvent(0.1), dp.GaussianDpEvent(3.0)), 1.0, 0.1): 2
    }


@pytest.mark.parametrize("wrong", [(-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (float("nan"), 0.1)])
def test_nonsense_is_refused(wrong):
    with pytest.raises(InvalidParameterError):
        events.check(SelectionDpEvent((PureDpEvent(0.1),), *wrong))
