# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting import dp_sgd, price
from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r4.dp_sgd import EXPERIMENT, least_epsilon

QUICK = Scale(quick=True, device="cpu")


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


@pytest.mark.parametrize("noise", [0.5, 1.1, 3.0])
def test_the_lower_bound_is_the_price_of_one_step(noise):
    upper = price(dp_sgd(noise_multiplier=noise, sampling_rate=0.1, steps=1), delta=1e-5).epsilon
    assert 0.99 * upper <= least_epsilon(noise, 0.1) <= upper


def test_clipped_coordinates_cost_far_more_than_is_claimed(rows):
    found = {row["clipping"]: row for row in rows}
    assert found["norm"]["epsilon"] == pytest.approx(found["norm"]["claimed"])
    assert found["corrected"]["epsilon"] == pytest.approx(found["norm"]["claimed"])
    written = found["coordinates"]
    assert 100 * written["claimed"] < written["least"] < written["epsilon"]


def test_the_finding_follows_from_the_bound(rows):
    assert EXPERIMENT.finding(rows).verdict is Verdict.REFUTED
    fine = [{**row, "least": row["claimed"] / 2} for row in rows]
    assert EXPERIMENT.finding(fine).verdict is Verdict.CONFIRMED


def test_it_is_shown(rows):
    assert len(EXPERIMENT.tables(rows)[0].rows) == 3
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]
