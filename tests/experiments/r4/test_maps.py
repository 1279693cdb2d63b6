# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r4.maps import EXPERIMENT, purity

QUICK = Scale(quick=True, device="cpu")


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def test_purity_is_one_for_groups_apart_and_low_for_noise():
    labels = np.arange(200) % 10
    noise = np.random.default_rng(0).normal(size=(200, 2))
    assert purity(noise + 100 * labels[:, None], labels, classes=10, seed=0) == 1.0
    assert purity(noise, labels, classes=10, seed=0) < 0.4


def test_a_map_has_at_most_300_points_and_both_figures(rows):
    points = rows[0]["t_sne_points"]
    assert len(points["generated"]) + len(points["real"]) <= 300
    json.dumps(rows)
    assert list(EXPERIMENT.figures(rows)) == ["t-sne", "pca"]
    assert [row[0] for row in EXPERIMENT.tables(rows)[0].rows] == ["t-SNE", "PCA"]


@pytest.mark.parametrize(("pca", "verdict"), [(0.9, Verdict.CONFIRMED), (0.2, Verdict.REFUTED)])
def test_the_finding_compares_both_maps(rows, pca, verdict):
    changed = [{**row, "t_sne_generated": 0.5, "pca_generated": pca} for row in rows]
    assert EXPERIMENT.finding(changed).verdict is verdict
