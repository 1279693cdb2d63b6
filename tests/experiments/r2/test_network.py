# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2.network import EXPERIMENT, network


def made_up(*losses):
    """Rows of two seeds: what is lost at each epsilon."""
    epsilons = (None, 0.5, 1.0, 3.0, 8.0)
    return [
        {"epsilon": epsilon, "seed": seed, "honest": epsilon, "accuracy": 0.97 - loss}
        for epsilon, loss in zip(epsilons, (0.0, *losses), strict=True)
        for seed in (0, 1)
    ]


def test_the_network_has_about_a_hundred_thousand_parameters():
    count = sum(p.numel() for p in network(784, quick=False).parameters())
    assert 95_000 < count < 115_000


def test_learning_without_privacy_is_the_same_again_for_a_seed():
    case, quick = {"epsilon": None, "seed": 1}, Scale(quick=True, device="cpu")
    assert EXPERIMENT.measure(case, quick) == EXPERIMENT.measure(case, quick)


def test_the_finding_follows_from_the_rows():
    assert EXPERIMENT.finding(made_up(0.3, 0.2, 0.1, 0.1)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(made_up(0.3, 0.2, 0.02, 0.01)).verdict is Verdict.PARTLY
    assert EXPERIMENT.finding(made_up(0.02, 0.01, 0.01, 0.0)).verdict is Verdict.REFUTED


def test_it_is_shown_as_a_table_and_a_figure():
    rows = made_up(0.3, 0.2, 0.02, 0.01)
    assert [row[0] for row in EXPERIMENT.tables(rows)[0].rows] == ["none", "0.5", "1", "3", "8"]
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]
