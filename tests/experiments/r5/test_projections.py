# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r5.projections import EXPERIMENT, OURS, PER_ROW, PLAIN


def rows(**jl):
    ways = {
        PLAIN: (1.0, 10),
        PER_ROW: (4.0, 40),
        OURS: (2.0, 12),
        "DP-SGD-JL, 5 projections": (jl["seconds"], jl["memory"]),
    }
    return [
        {"way": way, "projections": 5 if "JL" in way else None, "seed": seed, "accuracy": 0.9, "epsilon": 4.0,
         "seconds": seconds, "memory": memory, "noise": None if way == PLAIN else 1.0}
        for way, (seconds, memory) in ways.items()
        for seed in (0, 1)
    ]  # fmt: skip


def test_the_finding_follows_the_rows():
    assert EXPERIMENT.finding(rows(seconds=1.0, memory=11)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(rows(seconds=3.0, memory=11)).verdict is Verdict.PARTLY
    assert EXPERIMENT.finding(rows(seconds=9.0, memory=99)).verdict is Verdict.REFUTED


def test_gradients_of_single_rows_take_more_memory_than_our_engine():
    scale = Scale(quick=True, device="cpu")
    cases = {case["way"]: case for case in EXPERIMENT.cases(scale)}
    found = {way: EXPERIMENT.measure(cases[way], scale)["memory"] for way in (PER_ROW, OURS)}
    assert found[PER_ROW] > 2 * found[OURS]


def test_it_is_shown():
    found = rows(seconds=1.0, memory=11)
    assert len(EXPERIMENT.tables(found)[0].rows) == 4
    assert list(EXPERIMENT.figures(found)) == ["seconds", "memory"]
