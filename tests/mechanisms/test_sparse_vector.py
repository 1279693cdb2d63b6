# SPDX-License-Identifier: Apache-2.0
import copy
import math
import os
import pickle
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest, kstest, laplace

from sfumato.accounting.events import SparseVectorDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.sparse_vector import AboveThreshold, AnswersSpentError, SparseVector
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def start(cls=AboveThreshold, **changes):
    plain = {
        "threshold": 0.0,
        "threshold_epsilon": 0.5,
        "comparison_epsilon": 0.5,
        "sensitivity": 1.0,
        "max_answers": 1,
        "relation": REPLACE,
    }
    if cls is SparseVector:
        plain["answer_epsilon"] = 0.5
    return cls(**(plain | changes))


def difference_above(gap: float, one: float, other: float, draws: int = 2_000_000) -> float:
    """P[gap + Laplace(one) >= Laplace(other)], by an independent simulation."""
    generator = np.random.default_rng(0)
    return float(np.mean(gap + generator.laplace(0, one, draws) >= generator.laplace(0, other, draws)))


@pytest.mark.parametrize(
    ("monotonic", "max_answers", "comparison"), [(False, 1, 4.0), (True, 1, 2.0), (False, 3, 12.0)]
)
def test_threshold_and_comparisons_have_the_stated_noise(monotonic, max_answers, comparison):
    generator = seeded(1)
    runs = 3000
    above = sum(
        start(max_answers=max_answers, monotonic=monotonic, relation=ADD, generator=generator).ask(-3.0)
        for _ in range(runs)
    )
    assert binomtest(above, runs, difference_above(-3.0, comparison, 2.0)).pvalue > ALPHA
    assert binomtest(above, runs, difference_above(-3.0, comparison / 2, 2.0)).pvalue < ALPHA


def test_the_threshold_noise_is_drawn_once_for_the_run():
    # With next to no comparison noise, a run gives one answer again and again; fresh thresholds would not.
    for seed in range(5):
        run = start(
            comparison_epsilon=1e4, max_answers=1000, monotonic=True, relation=ADD, generator=seeded(seed)
        )
        assert len({run.ask(0.0) for _ in range(20)}) == 1 or abs(run._bar * run._grid.step) < 1


def test_numeric_answers_have_fresh_noise_of_the_stated_scale():
    generator = seeded(2)
    run = start(SparseVector, threshold=-1e6, max_answers=4000, answer_epsilon=2000.0, generator=generator)
    answers = np.array([run.ask(7.0) for _ in range(4000)], dtype=np.float64)
    assert kstest(answers, laplace(7.0, 2.0).cdf).pvalue > ALPHA
    assert kstest(answers, laplace(7.0, 2.6).cdf).pvalue < ALPHA  # 30% off is caught: the test has power


@pytest.mark.parametrize("cls", [AboveThreshold, SparseVector])
def test_a_run_ends_after_its_answers_and_not_before(cls):
    run = start(cls, max_answers=3)
    for left in (2, 1, 0):
        for _ in range(5):
            assert not run.ask(-1e6)
        assert run.ask(1e6)
        assert run.answers_left == left
    for value in (1e6, -1e6):
        with pytest.raises(AnswersSpentError, match="all 3 answers"):
            run.ask(value)


def test_events_state_each_part():
    assert start(threshold_epsilon=0.2, comparison_epsilon=0.3).event() == SparseVectorDpEvent(0.2, 0.3, 0.0)
    numeric = start(SparseVector, threshold_epsilon=0.2, comparison_epsilon=0.3, answer_epsilon=0.4)
    assert numeric.event() == SparseVectorDpEvent(0.2, 0.3, 0.4)


def outcomes(values, runs, seed, **changes) -> int:
    """How often a run says below, ..., below, above."""
    generator = seeded(seed)
    wanted = [False] * (len(values) - 1) + [True]
    hits = 0
    for _ in range(runs):
        run = start(generator=generator, **changes)
        said = []
        for value in values:
            said.append(run.ask(value))
            if said[-1]:
                break
        hits += said == wanted
    return hits


def test_an_audit_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound):
    here, there = [0.0, 1.0], [1.0, 0.0]  # each value moves by the sensitivity
    runs = 5000

    def audit(**changes) -> float:
        hits, others = (outcomes(values, runs, 3 + i, **changes) for i, values in enumerate((here, there)))
        return epsilon_lower_bound(hits, others, runs)

    assert 0 < audit() <= 1.0
    # Noise for a fifth of the sensitivity is not 1-private.
    assert audit(threshold_epsilon=2.5, comparison_epsilon=2.5) > 1.0


def test_runs_are_secure_by_default():
    said = []
    for _ in range(2):
        run = start(max_answers=1000)
        said.append([run.ask(0.0) for _ in range(60)])
    assert said[0] != said[1]


@pytest.mark.parametrize("cls", [AboveThreshold, SparseVector])
def test_a_run_cannot_be_copied(cls):
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            attempt(start(cls))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_run_does_not_go_on_in_a_forked_child():
    run = start()
    child = os.fork()
    if child == 0:
        try:
            run.ask(0.0)
        except AnswersSpentError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused_without_being_shown_and_costs_nothing(wrong):
    run = start()
    with pytest.raises(InvalidParameterError, match="nothing was released") as error:
        run.ask(wrong)
    assert str(wrong) not in str(error.value)
    assert run.answers_left == 1


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        (field, wrong)
        for field in ("threshold_epsilon", "comparison_epsilon", "answer_epsilon", "sensitivity")
        for wrong in (0.0, -1.0, math.nan, math.inf)
    ]
    + [("threshold", math.nan), ("threshold", math.inf), ("max_answers", 0), ("max_answers", 1.5)],
)
def test_parameters_that_make_no_sense_are_refused(field, wrong):
    with pytest.raises(InvalidParameterError, match=f"{field} must be"):
        start(SparseVector, **{field: wrong})


def test_monotonic_values_need_a_relation_that_has_them():
    with pytest.raises(InvalidParameterError, match="monotonic"):
        start(monotonic=True)
    with pytest.raises(InvalidParameterError, match="relation"):
        start(relation="add-remove")


@pytest.mark.parametrize("cls", [AboveThreshold, SparseVector])
def test_numpy_numbers_are_taken_and_numbers_that_float64_cannot_hold_are_refused(cls):
    run = start(cls, threshold_epsilon=np.float32(0.5), sensitivity=np.float32(1), max_answers=np.int64(2))
    assert run.ask(-900.0) in (False, None)
    with pytest.raises(InvalidParameterError, match="comparison_epsilon must be a number that float64 holds"):
        start(cls, comparison_epsilon=Fraction(1, 3))


@pytest.mark.parametrize("field", ["threshold_epsilon", "comparison_epsilon", "answer_epsilon"])
def test_noise_that_would_not_fit_is_refused_before_any_question(field):
    with pytest.raises(InvalidParameterError, match="too small"):
        start(SparseVector, **{field: 1e-12})
