# SPDX-License-Identifier: Apache-2.0
"""Units with canaries among them: each unit keeps its rows, and canaries have rows of zeros."""

import pytest
import torch

from sfumato.audit.runs.canary_units import UnitsWithCanaries
from sfumato.training.data.units import Units

ROWS, SEATED = 30, torch.tensor([2, 3, 5, 9])  # numbers of canaries that take part


def units(rows=ROWS, key=1):
    found = UnitsWithCanaries(Units((torch.arange(1.0, rows + 1)[:, None], torch.arange(rows))))
    found.seat(SEATED, torch.tensor([10.0, 20.0, 30.0, 40.0]), key)
    return found


def test_every_unit_is_there_once_and_in_order():
    found = units()
    x, y, places, pulls = found.take(torch.arange(found.num_units)).rows
    assert found.num_units == ROWS + 4
    assert x[places == 0].flatten().tolist() == list(range(1, ROWS + 1))
    assert y[places == 0].tolist() == list(range(ROWS))
    assert places[places > 0].tolist() == SEATED.tolist()
    assert pulls[places > 0].tolist() == [10.0, 20.0, 30.0, 40.0] and (pulls[places == 0] == 1).all()
    assert (x[places > 0] == 0).all() and (y[places > 0] == 0).all()


def test_canaries_of_a_batch_are_told_by_number():
    found = units()
    batch = torch.arange(0, found.num_units, 2)
    places = found.take(batch).rows[-2]
    assert found.canaries(batch).tolist() == places[places > 0].tolist()


def test_places_depend_on_the_key_alone():
    assert torch.equal(units(key=1)._places, units(key=1)._places)
    assert not torch.equal(units(key=1)._places, units(key=2)._places)


@pytest.mark.parametrize("rows", [0, ROWS])
def test_a_batch_without_units_has_no_rows(rows):
    assert units(rows).take(torch.zeros(0, dtype=torch.int64)).rows == ()
