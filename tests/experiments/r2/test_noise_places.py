# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2 import noise_places, public_rows
from sfumato.experiments.r2.noise_places import EXPERIMENT, INPUT, PLACES, PLAIN, TRAINING

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def made_up(**accuracy):
    """Rows of two seeds at two epsilons, with an accuracy for each place."""
    return [
        {"place": place, "epsilon": epsilon, "seed": seed, "honest": epsilon}
        | {"accuracy": accuracy.get(place, 0.6)}
        for place in PLACES
        for epsilon in (1.0, 2.0)
        for seed in (0, 1)
    ]


def test_no_place_costs_more_than_epsilon(rows):
    assert all(row["honest"] <= row["epsilon"] for row in rows if row["place"] != PLAIN)
    assert {row["place"] for row in rows} >= {INPUT, TRAINING, "prediction of 10 rows"}


def test_rows_that_are_randomized_keep_their_shape_and_change():
    train, _ = public_rows.parts(quick=True)
    sent = noise_places._randomized(train, 1.0, seed=0)
    assert sent.features.shape == train.features.shape
    assert not np.array_equal(sent.labels, train.labels)


def test_the_finding_follows_from_the_rows():
    assert EXPERIMENT.finding(made_up(training=0.8)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(made_up(training=0.5)).verdict is Verdict.REFUTED
    mixed = [
        {**row, "accuracy": 0.9} if (row["place"], row["epsilon"]) == (TRAINING, 2.0) else row
        for row in made_up()
    ]
    assert EXPERIMENT.finding(mixed).verdict is Verdict.PARTLY


def test_it_is_shown_as_a_table_and_a_figure(rows):
    assert EXPERIMENT.tables(rows)[0].heads[:2] == ("epsilon", PLAIN)
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]
