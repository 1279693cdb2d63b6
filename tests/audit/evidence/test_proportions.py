# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy import stats

from sfumato.audit.evidence.proportions import gap, in_words, least_rows, paired_gap, share
from sfumato.errors import InvalidParameterError


@pytest.mark.parametrize(("hits", "trials"), [(0, 12), (5, 12), (12, 12)])
def test_a_share_has_the_exact_interval_of_scipy(hits, trials):
    found = share(hits, trials, confidence=0.9)
    exact = stats.binomtest(hits, trials).proportion_ci(confidence_level=0.9, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert found.value == hits / trials


def coverage(rates, rows, interval):
    """Return with which chance an interval holds the true difference, over all outcomes."""
    chances = [stats.binom.pmf(np.arange(rows + 1), rows, rate) for rate in rates]
    truth = rates[0] - rates[1]
    held = np.array([[truth in interval(a, b) for b in range(rows + 1)] for a in range(rows + 1)])
    return float(chances[0] @ held @ chances[1])


@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.9, 0.6), (0.05, 0.01), (0.7, 0.3)])
def test_the_interval_of_a_gap_holds_at_least_as_often_as_it_says(rates):
    assert coverage(rates, 25, lambda a, b: gap((a, 25), (b, 25), confidence=0.8)) >= 0.8


def test_the_test_of_coverage_has_power():
    def narrow(a, b):
        found = gap((a, 25), (b, 25), confidence=0.8)
        return type(found)(value=found.value, low=found.value - 0.1, high=found.value + 0.1, confidence=0.8)

    assert coverage((0.5, 0.5), 25, narrow) < 0.8


def test_attacks_on_the_same_rows_are_compared_where_they_disagree():
    first, second = np.arange(100) < 90, np.arange(100) < 75
    paired, apart = paired_gap(first, second), gap((90, 100), (75, 100))
    assert paired.value == pytest.approx(apart.value) == pytest.approx(0.15)
    assert apart.low < 0 < paired.low
    assert paired_gap(second, first).value == pytest.approx(-0.15)


def test_attacks_on_other_rows_are_not_paired():
    with pytest.raises(InvalidParameterError, match="same rows"):
        paired_gap(np.ones(3, dtype=bool), np.ones(4, dtype=bool))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_least_number_of_rows_is_where_always_and_never_part(confidence):
    least = least_rows(confidence)
    assert gap((least, least), (0, least), confidence=confidence).low > 0
    assert gap((least - 1, least - 1), (0, least - 1), confidence=confidence).low <= 0


@pytest.mark.parametrize("confidence", [0.0, 1.0, float("nan")])
def test_a_confidence_that_is_none_is_refused(confidence):
    for ask in (
        lambda: share(1, 2, confidence=confidence),
        lambda: gap((1, 2), (1, 2), confidence=confidence),
        lambda: least_rows(confidence),
    ):
        with pytest.raises(InvalidParameterError, match="confidence"):
            ask()


def test_six_hundred_rows_show_a_gap_of_ten_percent():
    """The advice in the error of `infer_attribute`."""
    assert gap((360, 600), (300, 600)).low > 0
    assert in_words(share(300, 600)).startswith("50.0% (")
