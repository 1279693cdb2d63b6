# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.accounting import price
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.descent import descend, planned
from sfumato.testing import seeded


def run(**options):
    return planned(
        **{
            "epsilon": 1.0, "delta": 1e-5, "steps": 5, "sampling_rate": 1.0, "relation": Relation.ADD_REMOVE,
            **options,
        }
    )  # fmt: skip


def learned(rows, labels, *, learning_rate=1.0):
    return descend(
        rows, labels, run=run(), num_classes=2, public_size=100, delta=1e-5, learning_rate=learning_rate,
        generator=seeded(0),
    )  # fmt: skip


@pytest.mark.parametrize("sampling_rate", [0.1, 1.0])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_the_run_costs_what_was_asked_for(sampling_rate, relation):
    found = price(run(sampling_rate=sampling_rate, relation=relation).event(), delta=1e-5, relation=relation)
    assert 0.99 < found.upper <= 1.0


def test_one_more_row_moves_the_first_step_by_at_most_its_clipped_gradient():
    rows, labels = np.eye(3)[np.arange(30) % 3], np.arange(30) % 2
    once = planned(epsilon=1.0, delta=1e-5, steps=1, sampling_rate=1.0, relation=Relation.ADD_REMOVE)
    options = {"num_classes": 2, "public_size": 100, "delta": 1e-5, "learning_rate": 1.0}
    with_row = descend(rows, labels, run=once, generator=seeded(0), **options)
    without = descend(rows[1:], labels[1:], run=once, generator=seeded(0), **options)
    assert np.linalg.norm(with_row - without) <= 1 / 100 * (1 + 1e-4)
    assert np.linalg.norm(with_row - without) > 0.5 / 100


def test_rows_of_zeros_change_nothing():
    rows, labels = np.eye(3)[np.arange(30) % 3], np.arange(30) % 2
    more = learned(np.vstack([rows, np.zeros((4, 3))]), np.append(labels, [1, 0, 1, 1]))
    assert more == pytest.approx(learned(rows, labels), abs=1e-6)
