# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.training.engine.step.public_rows import PublicRows


def test_the_number_that_a_step_was_given_counts_unless_one_was_stated():
    rows = PublicRows(grouped=False)
    assert rows.per_unit == 1
    rows.given(3)
    assert rows.per_unit == 3
    rows.expect(2)
    rows.given(5)
    assert rows.per_unit == 2


def test_what_depends_on_the_batch_stays_secret():
    owners, groups = PublicRows(grouped=False), PublicRows(grouped=True)
    owners.expect(None)
    groups.expect(4)  # groups have random sizes, whatever their units have
    for rows in (owners, groups):
        rows.given(7)
        assert rows.per_unit is None


@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("nan")])
def test_what_is_no_number_of_rows_is_refused(wrong):
    with pytest.raises(InvalidParameterError, match="per_unit"):
        PublicRows(grouped=False).expect(wrong)
