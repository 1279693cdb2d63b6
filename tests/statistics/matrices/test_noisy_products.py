# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import ArrayRows, rows_of
from sfumato.statistics.matrices.covariance import Correlation, Covariance
from sfumato.statistics.query import cost
from sfumato.testing import seeded

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


BOX = {"bounds": ((-1.0, 1.0), (0.0, 10.0), (-5.0, -3.0))}


BALL = {"clip_norm": 12.0}


COLUMNS = ("a", "b", "c")


def correlated(rows: int, seed: int = 0) -> np.ndarray:
    """Rows inside the box, and inside the ball."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, size=(rows, 3))
    return np.column_stack([drawn[:, 0], 5 + 4 * (drawn[:, 0] + drawn[:, 1]) / 2, -4 + drawn[:, 2] * 0.9])


@pytest.mark.parametrize("question", [Covariance, Correlation])
@pytest.mark.parametrize("clip", [BOX, BALL], ids=["box", "ball"])
@pytest.mark.parametrize(("relation", "public_size"), [(ADD, None), (ADD, 400), (REPLACE, 400)])
def test_the_matrix_is_replayed_on_neighbors(neighbors, question, clip, relation, public_size):
    rows = np.vstack([correlated(398), [[-9.0, 90.0, 9.0]], [[math.inf, -math.inf, 0.0]]])
    asked = question(columns=COLUMNS, rho=0.5, delta=1e-6, relation=relation, public_size=public_size, **clip)
    for i in (0, 398, 399):
        other = np.delete(rows, i, axis=0)
        if relation is REPLACE:
            other = np.vstack([other, [[-math.inf, 1e300, 7.0]]])
        neighbors.replay(asked, rows_of(rows), rows_of(other))


def test_units_of_several_rows_are_replayed(neighbors):
    owners, rows = np.repeat(np.arange(20), 3), correlated(60)
    data = rows_of(rows, owners=owners, contribution_bound=3)
    without = rows_of(rows[3:], owners=owners[3:], contribution_bound=3)
    asked = Covariance(columns=COLUMNS, rho=0.5, delta=1e-6, contribution_bound=3, **BOX)
    neighbors.replay(asked, data, without)


def test_rows_that_come_in_batches_give_the_same():
    class Batches(ArrayRows):
        def batches(self):
            yield from np.array_split(self.values, 7)

    rows = correlated(500)
    asked = Covariance(columns=COLUMNS, rho=0.5, delta=1e-6, **BOX)
    found = [asked.answer(kind(rows, COLUMNS), generator=seeded(1)) for kind in (ArrayRows, Batches)]
    assert found[0].value.tolist() == found[1].value.tolist()


def test_the_event_costs_the_budget():
    for clip in (BOX, BALL):
        question = Covariance(columns=COLUMNS, epsilon=1.0, delta=1e-6, **clip)
        assert 0.9999 < cost(question) <= 1.0


@pytest.mark.parametrize(
    "clip",
    [{}, BOX | BALL, {"clip_norm": 0.0}, {"bounds": BOX["bounds"][:2]}, {"bounds": ((1.0, 0.0),) * 3}],
)
def test_bad_parameters_are_refused(clip):
    with pytest.raises(InvalidParameterError):
        Covariance(columns=COLUMNS, rho=0.5, delta=1e-6, **clip)
