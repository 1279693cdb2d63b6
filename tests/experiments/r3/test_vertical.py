# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r3.vertical import BACK, EXPERIMENT, LEAVES, ONCE, embeddings_once


def made_up(lost: dict[float, float]) -> list[dict]:
    """Rows in which five parties lose so much accuracy at each epsilon."""
    return [
        {
            "way": way,
            "parties": parties,
            "epsilon": epsilon,
            "seed": s,
            "accuracy": 0.8 - less * (parties == 5) + s / 1000 * parties,
            "person": epsilon * parties,
        }
        for way in (ONCE, LEAVES, BACK)
        for parties in (1, 5)
        for epsilon, less in lost.items()
        for s in range(3)
    ]


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ({1.0: 0.1, 8.0: -0.1}, Verdict.CONFIRMED),
        ({1.0: 0.1, 8.0: 0.004}, Verdict.PARTLY),
        ({1.0: 0.004, 8.0: 0.004}, Verdict.REFUTED),
    ],
)
def test_the_finding_follows_from_the_rows(lost, verdict):
    assert EXPERIMENT.finding(made_up(lost)).verdict is verdict


def test_it_is_shown_as_tables_and_a_figure():
    rows = made_up({1.0: 0.1, 8.0: 0.1})
    assert [len(table.rows) for table in EXPERIMENT.tables(rows)] == [6, 4]
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]


def test_a_person_at_several_parties_pays_more_than_one_party_says():
    run = embeddings_once(8.0, 0, parties=3)
    assert len(run.parties) == 3 and not run.top_may_leave
    assert all(guarantee.epsilon <= 8.0 for guarantee in run.parties.values())
    assert 8.0 < run.person.epsilon < 24.0


def test_nearly_without_noise_the_columns_are_enough():
    case = {"way": ONCE, "parties": 2, "epsilon": 1e6, "seed": 0}
    assert EXPERIMENT.measure(case, Scale(quick=True))["accuracy"] > 0.93
