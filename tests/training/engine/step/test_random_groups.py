# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.testing import seeded
from sfumato.training.engine.step.random_groups import RandomGroups


def units_of(units, per_unit):
    """Rows that hold the number of their unit, from 1 on."""
    return torch.arange(1, units + 1).repeat_interleave(per_unit).float()


@given(
    units=st.integers(1, 12), per_unit=st.integers(1, 3), groups=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_every_unit_is_in_one_group_with_all_its_rows_and_the_rest_is_padding(units, per_unit, groups, seed):
    batch = (torch.ones(units * per_unit), units_of(units, per_unit))
    (weights, x), size = RandomGroups(2, expected_batch_size=2 * groups).drawn(
        batch, per_unit, seeded(seed), step=0
    )
    assert len(x) == groups * size and size % per_unit == 0
    assert sorted(x[x > 0].tolist()) == units_of(units, per_unit).tolist()
    assert torch.equal(weights, torch.where(x > 0, 0.5, 0.0))  # divided by the group size; 0 for padding
    together = [set(group[group > 0].tolist()) for group in x.view(groups, size)]
    assert sum(len(group) for group in together) == units


def test_the_group_of_a_unit_does_not_depend_on_the_units_after_it():
    def group_of_first(units):
        batch = (torch.ones(units), units_of(units, 1))
        (_, x), size = RandomGroups(2, expected_batch_size=10).drawn(batch, 1, seeded(3), step=0)
        return (x.view(5, size) == 1).any(1).tolist()

    assert group_of_first(2) == group_of_first(9)


def test_a_batch_is_expected_to_have_one_group_at_least():
    assert RandomGroups(1, expected_batch_size=3.0).expected == 3.0
    assert [RandomGroups(4, expected_batch_size=size).expected for size in (1.0, 8.0, 9.9)] == [1, 2, 2]


def test_groups_of_one_unit_leave_a_batch_and_its_weights_as_they_are():
    alone, batch = RandomGroups(1, expected_batch_size=3.0), (None, units_of(3, 2))
    assert alone.drawn(batch, 2, seeded(0), step=0) == (batch, 2) and alone.weights(batch, None) is None


def test_rows_of_groups_have_weights_also_if_none_are_given():
    groups, own = RandomGroups(2, expected_batch_size=4.0), torch.tensor([1.0, 0.0, 0.5])
    assert groups.weights((units_of(3, 1),), None).tolist() == [1.0, 1.0, 1.0]
    assert groups.weights((units_of(3, 1),), own) is own
