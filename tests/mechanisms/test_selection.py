# SPDX-License-Identifier: Apache-2.0
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import chisquare, kstest

from sfumato.accounting.events import ExponentialDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.selection import Exponential, IntervalExponential, NoisyMax, PermuteAndFlip
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
SCORES = [0.0, 1.0, 0.5, 1.0, 1.5]
FINITE = [Exponential, NoisyMax, PermuteAndFlip]


def make(cls, **changes):
    return cls(**({"epsilon": 1.0, "sensitivity": 1.0, "relation": REPLACE} | changes))


def counts_of(mechanism, scores, draws, seed) -> np.ndarray:
    generator = seeded(seed)
    chosen = [mechanism.release(scores, generator=generator) for _ in range(draws)]
    return np.bincount(chosen, minlength=len(scores))


def exponential_law(scores, rate) -> np.ndarray:
    weights = np.exp(rate * np.array(scores))
    return weights / weights.sum()


def permute_and_flip_law(scores, rate) -> np.ndarray:
    """The obvious version: every order of the candidates in turn."""
    chances = np.exp(rate * (np.array(scores) - max(scores)))
    law = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        alive = 1.0
        for i in order:
            law[i] += alive * chances[i]
            alive *= 1 - chances[i]
    return law / math.factorial(len(scores))


def noisy_max_law(scores, rate) -> np.ndarray:
    """P[i wins] by integration over its own noise, Laplace of scale 1 / rate."""
    x = np.linspace(-60 / rate, 60 / rate, 40_001)
    density = np.exp(-np.abs(x) * rate) * rate / 2

    def below(t):
        return np.where(t < 0, np.exp(np.minimum(t, 0) * rate) / 2, 1 - np.exp(-np.maximum(t, 0) * rate) / 2)

    wins = [
        np.prod([below(x + s - other) for j, other in enumerate(scores) if j != i], axis=0) * density
        for i, s in enumerate(scores)
    ]
    law = np.array([trapezoid(w, x) for w in wins])
    return law / law.sum()


LAWS = {Exponential: exponential_law, NoisyMax: noisy_max_law, PermuteAndFlip: permute_and_flip_law}


@pytest.mark.parametrize("cls", FINITE)
@pytest.mark.parametrize("monotonic", [False, True])
def test_choices_have_the_stated_law(cls, monotonic):
    mechanism = make(cls, epsilon=0.8, sensitivity=0.5, monotonic=monotonic, relation=ADD)
    rate = 0.8 / 0.5 if monotonic else 0.8 / 1.0
    counts = counts_of(mechanism, SCORES, 6000, seed=1)
    assert chisquare(counts, LAWS[cls](SCORES, rate) * 6000).pvalue > ALPHA
    off = LAWS[cls](SCORES, rate * 1.3)
    assert chisquare(counts, off / off.sum() * 6000).pvalue < ALPHA  # 30% off is caught: the test has power


@pytest.mark.parametrize("cls", FINITE)
def test_no_neighbor_is_likelier_than_epsilon_allows(cls):
    # The laws above are the laws that are sampled; here they are attacked exactly, over many neighbors.
    generator = np.random.default_rng(0)
    law = LAWS[cls]
    for _ in range(8):
        scores = generator.normal(size=4) * 2
        moved = scores + generator.choice([-1.0, 1.0], size=4)
        ratio = np.abs(np.log(law(scores, 0.5) / law(moved, 0.5))).max()
        assert ratio <= 1.0 + 1e-4
        up = scores + generator.choice([0.0, 1.0], size=4)  # monotonic: all in one direction
        ratio = np.abs(np.log(law(scores, 1.0) / law(up, 1.0))).max()
        assert ratio <= 1.0 + 1e-4


@pytest.mark.parametrize("cls", FINITE)
def test_an_audit_stays_below_epsilon_and_catches_weak_noise(cls, epsilon_lower_bound):
    here, there = [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]  # a neighbor moves every score by the sensitivity
    trials = 4000

    def audit(mechanism) -> float:
        hits, others = (int(counts_of(mechanism, s, trials, 2 + i)[0]) for i, s in enumerate((here, there)))
        return epsilon_lower_bound(hits, others, trials)

    assert 0.4 < audit(make(cls)) <= 1.0
    assert audit(make(cls, epsilon=2.4)) > 1.0  # claimed as 1


@pytest.mark.parametrize("cls", FINITE)
def test_the_first_among_equals_is_not_favored(cls):
    counts = counts_of(make(cls), [3.0] * 4, 8000, seed=4)
    assert chisquare(counts).pvalue > ALPHA


@pytest.mark.parametrize("cls", FINITE)
def test_one_candidate_is_chosen_and_hopeless_ones_are_not(cls):
    assert make(cls).release([7.0]) == 0
    assert make(cls).release([-1e300, 0.0, -1e300]) == 1


@pytest.mark.parametrize("cls", FINITE)
def test_choices_are_secure_by_default(cls):
    mechanism = make(cls)
    runs = [[mechanism.release([0.0] * 50) for _ in range(10)] for _ in range(2)]
    assert runs[0] != runs[1]


def test_events():
    assert make(Exponential).event() == ExponentialDpEvent(1.0)
    assert make(NoisyMax).event() == make(PermuteAndFlip).event() == PureDpEvent(1.0)
    assert make(IntervalExponential, bounds=(0.0, 1.0)).event() == ExponentialDpEvent(1.0)


# --- intervals -------------------------------------------------------------------------------------------


EDGES, INTERVAL_SCORES = [0.0, 1.0, 1.0, 4.0, 10.0], [0.0, 50.0, 1.0, -1.0]  # the second interval is empty


def interval_cdf(rate: float):
    lengths = np.diff(EDGES)
    mass = lengths * np.exp(rate * np.array(INTERVAL_SCORES)) * (lengths > 0)
    ends = np.concatenate([[0], np.cumsum(mass / mass.sum())])
    return lambda x: np.interp(x, EDGES, ends)


def test_points_of_a_line_have_the_stated_density():
    mechanism = make(IntervalExponential, bounds=(0.0, 10.0))
    generator = seeded(5)
    drawn = [mechanism.release(EDGES, INTERVAL_SCORES, generator=generator) for _ in range(8000)]
    assert kstest(drawn, interval_cdf(0.5)).pvalue > ALPHA
    assert kstest(drawn, interval_cdf(0.65)).pvalue < ALPHA  # 30% off is caught: the test has power


def test_points_lie_on_a_grid_that_does_not_depend_on_the_data():
    mechanism = make(IntervalExponential, bounds=(0.0, 1.0))
    for edges in ([0.0, 0.1, 1 / 3, 1.0], [0.0, 2.0**-0.5, math.pi / 4, 1.0]):
        for _ in range(50):
            point = mechanism.release(edges, [0.0, 0.0, 0.0])
            assert point * 2**40 == round(point * 2**40)
            assert 0.0 <= point <= 1.0


def test_bits_are_drawn_until_they_settle_the_rounded_point():
    class Border:
        """Its first word ends where 1.5 steps of 2^-40 begin, between two grid points."""

        secure, seeded, asked = False, True, 0

        def fill(self, out: memoryview) -> None:
            word = (3 * 2**23 - 1) if self.asked == 0 else 2**63
            self.asked += 1
            out[:] = word.to_bytes(8, "little")

    border = Border()
    mechanism = make(IntervalExponential, bounds=(0.0, 1.0))
    assert mechanism._point(Fraction(0), Fraction(1), border) == 2.0**-40
    assert border.asked == 2


def test_an_audit_of_the_private_median_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound):
    # -|rank - n/2| over the gaps between sorted values; one replaced value moves it by at most 1
    def release(mechanism, values, generator):
        edges = [0.0, *sorted(values), 1.0]
        scores = [-abs(i - len(values) / 2) for i in range(len(values) + 1)]
        return mechanism.release(edges, scores, generator=generator)

    here, there = (
        [0.5, 0.0],
        [0.5, 1.0],
    )  # one value replaced: the upper half gains a rank, the lower loses one
    trials = 4000

    def audit(epsilon: float) -> float:
        mechanism = make(IntervalExponential, epsilon=epsilon, bounds=(0.0, 1.0))
        generator = seeded(6)
        hits = sum(release(mechanism, there, generator) > 0.5 for _ in range(trials))
        others = sum(release(mechanism, here, generator) > 0.5 for _ in range(trials))
        return epsilon_lower_bound(hits, others, trials)

    assert 0.3 < audit(1.0) <= 1.0
    assert audit(3.0) > 1.0  # claimed as 1


@pytest.mark.parametrize(
    ("edges", "scores"),
    [
        ([0.0, 1.0], [0.0, 0.0]),
        ([0.0, 2.0, 1.0, 10.0], [0.0] * 3),
        ([1.0, 10.0], [0.0]),
        ([0.0, 9.0], [0.0]),
        ([0.0, math.nan, 10.0], [0.0, 0.0]),
    ],
)
def test_edges_that_do_not_cover_the_bounds_are_refused(edges, scores):
    with pytest.raises(InvalidParameterError, match="edge"):
        make(IntervalExponential, bounds=(0.0, 10.0)).release(edges, scores)


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0), (-1e308, 1e308), None]
)
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(InvalidParameterError, match="bounds"):
        make(IntervalExponential, bounds=bounds)


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, None, True])
@pytest.mark.parametrize("field", ["epsilon", "sensitivity"])
@pytest.mark.parametrize("cls", FINITE)
def test_parameters_that_make_no_sense_are_refused(cls, field, wrong):
    with pytest.raises(InvalidParameterError, match=f"{field} must be"):
        make(cls, **{field: wrong})


@pytest.mark.parametrize("cls", FINITE)
def test_monotonic_scores_need_a_relation_that_has_them(cls):
    for relation in (REPLACE, Relation.REPLACE_LABEL):
        with pytest.raises(InvalidParameterError, match="monotonic"):
            make(cls, monotonic=True, relation=relation)
    with pytest.raises(InvalidParameterError, match="relation"):
        make(cls, relation="add-remove")


@pytest.mark.parametrize("scores", [[], [0.0, math.nan], [math.inf], [[0.0]]])
@pytest.mark.parametrize("cls", FINITE)
def test_scores_that_make_no_sense_are_refused_without_being_shown(cls, scores):
    with pytest.raises(InvalidParameterError) as error:
        make(cls).release(scores)
    assert "nan" not in str(error.value) and "inf" not in str(error.value).replace("finite", "")


@pytest.mark.parametrize("number", [np.float32(1), np.int64(1), Fraction(1)])
@pytest.mark.parametrize("cls", FINITE)
def test_numbers_of_every_kind_are_kept_as_the_equal_float(cls, number):
    mechanism = make(cls, epsilon=number, sensitivity=number)
    assert mechanism == make(cls) and type(mechanism.epsilon) is type(mechanism.sensitivity) is float
    assert mechanism.release([0.0, 1e6]) == 1


def test_numbers_that_float64_cannot_hold_are_refused():
    with pytest.raises(InvalidParameterError, match="epsilon must be a number that float64 holds"):
        make(Exponential, epsilon=Fraction(1, 3))


@pytest.mark.parametrize("epsilon", [1.0, 1e10])
@pytest.mark.parametrize("best", [0.0, 1e308])
def test_ties_in_the_data_neither_warn_nor_fail(epsilon, best):
    # All values equal: the interval with the best score is empty. Warnings are errors here.
    mechanism = make(IntervalExponential, epsilon=epsilon, sensitivity=1 / epsilon, bounds=(0.0, 10.0))
    hopeless = [-2000.0 - best, best, -2000.0 - best]
    assert 0.0 <= mechanism.release([0.0, 5.0, 5.0, 10.0], hopeless) <= 10.0
    many = [best - abs(rank - 1000.0) for rank in range(2001)]
    assert 0.0 <= mechanism.release([0.0, *[5.0] * 2000, 10.0], many) <= 10.0


def test_bounds_without_room_for_a_grid_are_refused_and_others_kept_as_floats():
    with pytest.raises(InvalidParameterError, match="at least 1e-280 apart"):
        make(IntervalExponential, bounds=(0.0, 5e-324))
    mechanism = make(IntervalExponential, bounds=(np.float32(0), 10))
    assert mechanism.bounds == (0.0, 10.0) and {type(b) for b in mechanism.bounds} == {float}
    assert 0.0 <= mechanism.release([0, 10], [0]) <= 10.0


def test_floats_settle_what_exact_fractions_would(monkeypatch):
    # The first word decides in both; with no margin left, every choice goes the exact way.
    numbers = np.random.default_rng(0)
    edges = np.r_[0.0, np.sort(numbers.uniform(0, 10, size=20)), 10.0]
    scores = numbers.normal(size=21) * 5
    mechanism = make(IntervalExponential, bounds=(0.0, 10.0))
    by_floats = [mechanism.release(edges, scores, generator=seeded(seed)) for seed in range(40)]
    monkeypatch.setattr("sfumato.mechanisms.exact._MARGIN", 2.0)
    by_exact_fractions = [mechanism.release(edges, scores, generator=seeded(seed)) for seed in range(40)]
    places = [np.searchsorted(edges, found) for found in (by_floats, by_exact_fractions)]
    assert places[0].tolist() == places[1].tolist()
    assert len(set(places[0].tolist())) > 5


@pytest.mark.parametrize("epsilon", [1e-250, 1e250])
def test_rates_beyond_float64_are_taken_exactly(epsilon):
    mechanism = make(IntervalExponential, epsilon=epsilon, bounds=(0.0, 2.0))
    points = [mechanism.release([0.0, 1.0, 2.0], [0.0, 1.0], generator=seeded(seed)) for seed in range(30)]
    assert (min(points) > 1) == (epsilon > 1)
