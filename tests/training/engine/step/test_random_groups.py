# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.testing import seeded
from sfumato.training.engine.step.random_groups import expected_groups, grouped


def units_of(units, per_unit):
    """Rows that hold the number of their unit, from 1 on."""
    return torch.arange(1, units + 1).repeat_interleave(per_unit).float()


@given(
    units=st.integers(1, 12), per_unit=st.integers(1, 3), groups=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_every_unit_is_in_one_group_with_all_its_rows_and_the_rest_is_padding(units, per_unit, groups, seed):
    batch = (torch.ones(units * per_unit), units_of(units, per_unit))
    (weights, x), size = grouped(batch, per_unit, group_size=2, groups=groups, generator=seeded(seed))
    assert len(x) == groups * size and size % per_unit == 0
    assert sorted(x[x > 0].tolist()) == units_of(units, per_unit).tolist()
    assert torch.equal(weights, torch.where(x > 0, 0.5, 0.0))  # divided by the group size; 0 for padding
    together = [set(group[group > 0].tolist()) for group in x.view(groups, size)]
    assert sum(len(group) for group in together) == units


def test_the_group_of_a_unit_does_not_depend_on_the_units_after_it():
    def group_of_first(units):
        batch = (torch.ones(units), units_of(units, 1))
        (_, x), size = grouped(batch, 1, group_size=2, groups=5, generator=seeded(3))
        return (x.view(5, size) == 1).any(1).tolist()

    assert group_of_first(2) == group_of_first(9)


def test_a_batch_is_expected_to_have_one_group_at_least():
    assert expected_groups(3.0, 1) == 3.0
    assert [expected_groups(size, 4) for size in (1.0, 8.0, 9.9)] == [1, 2, 2]
