# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r4.auroc import EXPERIMENT

QUICK = Scale(quick=True, device="cpu")


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def test_curves_rise_to_one_and_real_images_need_no_guarantee(rows):
    for row in rows:
        for curve in row["curves"].values():
            assert curve == sorted(curve) and curve[-1] == 1.0
        assert (row["epsilon"] is None) == (row["images"] == "real")


def test_the_table_has_the_numbers_of_the_paper_beside_ours(rows):
    cells = EXPERIMENT.tables(rows)[0].rows
    assert [row[2] for row in cells] == ["0.9217", "0.8757", "0.9760", "0.8816"]
    assert len(EXPERIMENT.figures(rows)["roc"].axes[0].get_lines()) == 4


@pytest.mark.parametrize(
    ("linear", "mlp", "verdict"),
    [(0.95, 0.96, Verdict.CONFIRMED), (0.95, 0.8, Verdict.PARTLY), (0.6, 0.6, Verdict.REFUTED)],
)
def test_the_finding_compares_with_the_paper(rows, linear, mlp, verdict):
    changed = [{**row, "logistic regression, AUROC": linear, "MLP, AUROC": mlp} for row in rows]
    assert EXPERIMENT.finding(changed).verdict is verdict
