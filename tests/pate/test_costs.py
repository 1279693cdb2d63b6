# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.pate.costs import cost_curves
from sfumato.pate.planning import plan
from sfumato.pate.votes.aggregators import ConfidentGNMax, GNMax, LNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling

GROUPS = {"epsilons": (1.0, 2.0, 3.0), "shares": (0.34, 0.43, 0.23), "delta": 1e-5}
RULES = [
    GNMax(stddev=40.0),
    LNMax(scale=20.0),
    ConfidentGNMax(threshold=200.0, threshold_stddev=150.0, stddev=40.0),
    ConfidentGNMax(threshold=200.0, threshold_stddev=150.0, stddev=40.0, max_answers=5),
]


@pytest.mark.parametrize("aggregator", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("queries", [1, 2, 30])
def test_the_curve_rises_to_the_price_of_the_job(aggregator, queries):
    job = Labeling(aggregator=aggregator, queries=queries, teachers=250, delta=1e-5)
    (curve,) = cost_curves(job).values()
    assert [x for x, _ in curve] == sorted({x for x, _ in curve}) and curve[-1][0] == queries
    assert [y for _, y in curve] == sorted(y for _, y in curve)
    assert curve[-1][1] == pytest.approx(job.guarantee().epsilon)


@pytest.mark.parametrize("method", ["weighting", "upsampling", "vanishing"])
def test_each_group_has_a_curve_that_ends_at_its_guarantee(method):
    job = plan(delta=1e-5, teachers=250, individual=IndividualBudgets(**GROUPS, method=method))
    curves = cost_curves(job)
    assert list(curves) == ["group 0", "group 1", "group 2"]
    for curve, promised in zip(curves.values(), job.guarantees(), strict=True):
        assert curve[-1][1] == pytest.approx(promised.epsilon)


def test_a_job_with_a_test_has_one_price():
    job = plan(epsilon=2.0, delta=1e-5, teachers=250, agreement=0.95)
    curves = cost_curves(job)
    assert {y for _, y in curves["with the test of agreement"]} == {2.0}
    assert curves["without it"][-1][1] > 2.0
