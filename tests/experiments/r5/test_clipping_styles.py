# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Verdict
from sfumato.experiments.r5.clipping_styles import EXPERIMENT, NONE, STYLES


def rows(**better):
    return [
        {"style": style, "seed": seed, "epsilon": None if style == NONE else 1.0, "loss": 0.5,
         "accuracy": 0.8 + better.get(style.replace(" ", "_"), 0.0) + seed / 1000}
        for style in (NONE, *STYLES)
        for seed in (0, 1, 2)
    ]  # fmt: skip


def test_the_finding_follows_the_rows():
    assert EXPERIMENT.finding(rows(global_flat=0.1)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(rows(local_flat=0.1)).verdict is Verdict.REFUTED
    assert EXPERIMENT.finding(rows()).verdict is Verdict.PARTLY


def test_no_style_lets_a_row_contribute_more_than_the_clip_norm():
    names = ["a.weight", "a.bias", "b.weight"]
    assert all(style.bound(names) == 1.0 for style in STYLES.values())


def test_it_is_shown():
    assert len(EXPERIMENT.tables(rows())[0].rows) == 6 and list(EXPERIMENT.figures(rows())) == ["accuracy"]
