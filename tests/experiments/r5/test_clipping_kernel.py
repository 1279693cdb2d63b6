# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.clipping_kernel import BY_BATCH, CLAIMED, EXPERIMENT, STYLES


@pytest.fixture(scope="module")
def rows():
    scale = Scale(quick=True)
    return [{**case, **EXPERIMENT.measure(case, scale)} for case in EXPERIMENT.cases(scale)]


def test_global_clipping_keeps_the_kernel_and_local_clipping_does_not(rows):
    found = {row["style"]: row for row in rows}
    assert [style for style in CLAIMED if found[style]["semi_definite"]] == [
        "no clipping",
        "global flat",
        "global layerwise",
    ]
    assert found["local flat"]["real"] > -1e-9


def test_with_an_outlier_local_clipping_lets_the_loss_rise(rows):
    found = {row["style"]: row["rises"] for row in rows}
    assert found["local flat"] > 0 and found["no clipping"] == found["global flat"] == 0


def test_one_row_moves_the_sum_by_more_than_its_bound_only_if_the_batch_decides(rows):
    far = {row["style"]: row["reach"] for row in rows if row["reach"] is not None}
    assert far.pop(BY_BATCH) > 2 and all(moved <= 1 + 1e-9 for moved in far.values())


def made_up(style, seen, *, falling=False):
    positive, falls, ends = seen
    numbers = {"asymmetry": 0.0, "form": 0.0, "real": 0.0, "highest": 1.0, "every": 1, "reach": 1.0}
    case = {"style": style, "targets": "outlier", "seed": 1, "losses": [1.0], "falling": falling}
    measured = {"semi_definite": positive, "rises": 0 if falls else 5, "last": 1e-4 if ends else 0.5}
    return case | numbers | measured


def test_the_finding_is_the_table_of_the_slides_only_if_all_cells_agree():
    as_claimed = [made_up(style, CLAIMED.get(style, (False, False, False))) for style in STYLES]
    assert EXPERIMENT.finding(as_claimed).verdict is Verdict.CONFIRMED
    opposite = [made_up(s, [not c for c in CLAIMED.get(s, (False, False, False))]) for s in STYLES]
    found = EXPERIMENT.finding(opposite)
    assert found.verdict is Verdict.REFUTED and "0 of 15 cells agree" in found.sentence


def test_a_loss_that_still_falls_decides_nothing():
    rows = [made_up(style, (False, False, False), falling=True) for style in STYLES]
    assert "5 are not decided" in EXPERIMENT.finding(rows).sentence


def test_it_is_shown(rows):
    assert [len(table.rows) for table in EXPERIMENT.tables(rows)] == [len(STYLES), len(STYLES)]
    assert list(EXPERIMENT.figures(rows)) == ["loss"]
