# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2 import public_rows, trust
from sfumato.experiments.r2.trust import CENTRAL, DISTRIBUTED, EXPERIMENT, LOCAL, MODELS

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def made_up(**error):
    """Rows of two seeds with an error for each model."""
    return [
        {"model": model, "clients": 100, "epsilon": 1.0, "seed": seed, "honest": 1.0, "auroc": 0.7}
        | {"error": error[model], "without noise": 0.8}
        for model in MODELS
        for seed in (0, 1)
    ]


def test_all_models_cost_the_same_epsilon(rows):
    assert all(row["honest"] == pytest.approx(row["epsilon"], rel=0.01) for row in rows)
    assert all(row["honest"] <= row["epsilon"] * (1 + 1e-9) for row in rows)


def test_local_noise_is_larger_than_central_noise(rows):
    error = {row["model"]: row["error"] for row in rows}
    assert error[LOCAL] > 3 * max(error[CENTRAL], error[DISTRIBUTED])


def test_vectors_are_clipped_and_hold_the_covariance():
    vectors = trust._clipped(public_rows.parts(quick=True)[0])
    assert np.linalg.norm(vectors, axis=1).max() <= trust.CLIP_NORM * (1 + 1e-9)


def test_the_finding_follows_from_the_rows():
    good = made_up(central=0.1, distributed=0.11, local=5.0)
    assert EXPERIMENT.finding(good).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(made_up(central=0.1, distributed=0.5, local=5.0)).verdict is Verdict.PARTLY
    assert EXPERIMENT.finding(made_up(central=0.1, distributed=0.5, local=0.1)).verdict is Verdict.REFUTED


def test_it_is_shown_as_a_table_and_a_figure(rows):
    assert EXPERIMENT.tables(rows)[0].heads[:3] == ("clients", "epsilon", "model")
    assert list(EXPERIMENT.figures(rows)) == ["error"]
