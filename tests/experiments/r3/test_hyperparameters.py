# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r3.federations import base
from sfumato.experiments.r3.hyperparameters import EXPERIMENT, VARIED, varied

QUICK = Scale(quick=True)


def made_up(*, of_noise: float, of_passes: float) -> list[dict]:
    """Rows in which noise and few local passes cost so much accuracy."""
    settings = [("noise", value, 0.9 - of_noise * (value > 0)) for value in (0, 1, 4)]
    settings += [("local epochs", value, 0.8 - of_passes * (value == 1)) for value in (1, 10)]
    return [
        {
            "varied": name,
            "value": value,
            "seed": s,
            "accuracy": right + s / 1000 * (1 + value / 50),
            "epsilon": 2.0,
        }
        for name, value, right in settings
        for s in range(3)
    ]


@pytest.mark.parametrize("name", ["clients", "rounds", "local epochs", "cohort share", "noise"])
def test_one_setting_is_changed_and_no_other(name):
    before = base(QUICK)
    after = varied(before, name, 1)
    facts = {
        "clients": lambda r: r.clients,
        "rounds": lambda r: r.rounds,
        "local epochs": lambda r: r.local.epochs,
        "cohort share": lambda r: r.cohort_share,
    }
    assert {one for one, fact in facts.items() if fact(before) != fact(after)} == ({name} & set(facts))


def test_what_is_varied_in_full_is_varied_in_a_quick_run():
    names = {case["varied"] for case in EXPERIMENT.cases(QUICK)}
    assert names == set(VARIED["mnist"]) == set(VARIED["digits"])


def test_a_case_has_an_accuracy_and_a_cost():
    measured = EXPERIMENT.measure(
        {"varied": "rounds", "value": 1, "seed": 0}, Scale(quick=True, device="cpu")
    )
    assert 0 < measured["accuracy"] < 1 and 0 < measured["epsilon"] < 10


@pytest.mark.parametrize(
    ("of_noise", "of_passes", "verdict"),
    [
        (0.1, 0.1, Verdict.CONFIRMED),
        (0.1, -0.1, Verdict.PARTLY),
        (-0.1, 0.1, Verdict.PARTLY),
        (-0.1, -0.1, Verdict.REFUTED),
    ],
)
def test_the_finding_follows_from_the_rows(of_noise, of_passes, verdict):
    assert EXPERIMENT.finding(made_up(of_noise=of_noise, of_passes=of_passes)).verdict is verdict


def test_it_is_shown_as_a_table_and_a_figure_for_each_setting():
    rows = made_up(of_noise=0.1, of_passes=0.1)
    assert len(EXPERIMENT.tables(rows)[0].rows) == 5
    assert list(EXPERIMENT.figures(rows)) == ["noise", "local-epochs"]
