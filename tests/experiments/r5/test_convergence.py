# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Verdict
from sfumato.experiments.r5.convergence import EXPERIMENT


def rows(**losses):
    noises = {"none": None, "low": 0.5, "high": 8.0}
    return [
        {"noise": noises[name], "seed": seed, "accuracy": 0.9, "epsilon": None if name == "none" else 1.0,
         "loss": loss + seed / 1000, "curve": [[10, 2.0], [20, loss]]}
        for name, loss in losses.items()
        for seed in (0, 1, 2)
    ]  # fmt: skip


def test_the_finding_follows_the_rows():
    assert EXPERIMENT.finding(rows(none=0.1, low=0.3, high=0.9)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(rows(none=0.1, low=0.3, high=0.2)).verdict is Verdict.REFUTED


def test_it_is_shown():
    found = rows(none=0.1, low=0.3, high=0.9)
    assert len(EXPERIMENT.tables(found)[0].rows) == 3 and list(EXPERIMENT.figures(found)) == ["loss"]
