# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r3.generations import EXPERIMENT, lost_at_the_end, share_that_falls


def made_up(*, drops: set[tuple[float, str]]) -> list[dict]:
    """Rows in which accuracy of some settings falls at the end."""
    return [
        {
            "division": "IID",
            "noise": noise,
            "trained": trained,
            "seed": s,
            "accuracies": [0.5, 0.8 + s / 1000, 0.7 if (noise, trained) in drops else 0.9],
            "epsilon": noise or None,
        }
        for noise in (0, 1)
        for trained in ("well", "less")
        for s in range(3)
    ]


AS_SAID = {(0, "well"), (1, "well"), (1, "less")}


@pytest.mark.parametrize(
    ("drops", "verdict"),
    [
        (AS_SAID, Verdict.CONFIRMED),
        ({*AS_SAID, (0, "less")}, Verdict.PARTLY),
        ({(1, "well")}, Verdict.PARTLY),
        (set(), Verdict.REFUTED),
    ],
)
def test_the_finding_follows_from_the_rows(drops, verdict):
    found = EXPERIMENT.finding(made_up(drops=drops))
    assert found.verdict is verdict and f"{len(drops)} of 4 settings" in found.sentence


def test_luck_of_one_seed_in_one_round_is_no_drop():
    curves = [[0.5, 0.9, 0.6, 0.7], [0.5, 0.6, 0.6, 0.7], [0.5, 0.6, 0.6, 0.7]]
    assert lost_at_the_end(curves)[0] == 0
    assert max(curves[0]) > curves[0][-1]


def test_one_seed_alone_is_compared_with_its_own_best_round():
    assert lost_at_the_end([[0.5, 0.9, 0.8]]) == [0.1]


def test_rounds_that_fall_are_counted():
    assert share_that_falls([0.5, 0.6, 0.5, 0.5, 0.4]) == 0.5


def test_a_curve_has_one_accuracy_for_each_round():
    case = {"division": "Dirichlet 0.1", "noise": 1, "trained": "less", "seed": 0}
    measured = EXPERIMENT.measure(case, Scale(quick=True, device="cpu"))
    assert len(measured["accuracies"]) == 4 and measured["epsilon"] > 0


def test_it_is_shown_as_a_table_and_a_figure_for_each_division():
    rows = made_up(drops=AS_SAID)
    assert EXPERIMENT.tables(rows)[0].rows[0][6] == "50.00 ± 0.00"
    assert list(EXPERIMENT.figures(rows)) == ["iid"]
