# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r4.pate_parts import EXPERIMENT, PARTS

QUICK = Scale(quick=True, device="cpu")


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def test_no_part_exceeds_its_budget(rows):
    for row in rows:
        budgets = {"smallest epsilon for all": [2.0], "weighting": [2, 4, 6], "upsampling": [2, 4, 6]}
        limits = budgets.get(row["part"], [4.0])
        assert all(e <= limit for e, limit in zip(row["epsilons"], limits, strict=True)), row["part"]


def test_the_text_counts_less_than_comparisons_copies_and_weights_cost(rows):
    found = {row["part"]: row for row in rows}
    for part in ("Confident-GNMax", "Interactive-GNMax"):
        assert found[part]["counted"][0] < found[part]["epsilons"][0]
        assert found[part]["answers"] <= found[part]["queries"]
    assert found["upsampling"]["counted"][-1] < found["upsampling"]["epsilons"][-1]
    weighted = found["weighting"]
    assert all(
        true > 5 * promised for true, promised in zip(weighted["written"], weighted["counted"], strict=True)
    )


def test_few_teachers_under_the_same_noise_are_right_less_often(rows):
    found = {row["part"]: row["right"] for row in rows}
    assert found["GNMax, 10 teachers"] < found["weighting"]


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, Verdict.CONFIRMED), (-0.1, Verdict.REFUTED)])
def test_the_finding_compares_each_part_with_plain_answers(rows, gain, verdict):
    plain = ("GNMax", "GNMax, 10 teachers", "smallest epsilon for all")
    changed = [{**row, "student": 0.5 + gain * (row["part"] not in plain)} for row in rows]
    assert EXPERIMENT.finding(changed).verdict is verdict
    mixed = [{**row, "student": 0.6 if row["part"] in ("weighting", "GNMax") else 0.5} for row in rows]
    assert EXPERIMENT.finding(mixed).verdict is Verdict.PARTLY


def test_it_is_shown_with_the_weights_as_written(rows):
    parts, weights = EXPERIMENT.tables(rows)
    assert [row[0] for row in parts.rows] == list(PARTS)
    assert weights.rows[0][1:] == [2.0, 4.0, 6.0]
    assert list(EXPERIMENT.figures(rows)) == ["students"]
