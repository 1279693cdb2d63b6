# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.training import PoissonSampling, ShuffledBatches
from sfumato.training.privacy.sampling_interface import (
    require,
    require_fits,
    require_public_size,
    require_same_size,
    require_units,
)

SHUFFLED = ShuffledBatches(batch_size=5, public_size=10)


def test_a_relation_needs_a_proof():
    for relation in Relation:
        require(PoissonSampling(sampling_rate=0.1), relation)
    require(SHUFFLED, Relation.ZERO_OUT)
    with pytest.raises(InvalidParameterError, match=r"ShuffledBatches has no guarantee.*add-remove"):
        require(SHUFFLED, Relation.ADD_REMOVE)


@pytest.mark.parametrize("number", [-7, 7.5, True, "7"])
def test_a_number_of_units_is_whole_and_never_repeated(number):
    with pytest.raises(InvalidParameterError, match="num_units") as caught:
        require_units(number)
    assert "7" not in str(caught.value)
    require_units(0)


def test_sizes_must_agree_and_the_private_one_is_not_named():
    require_public_size(10, 10)
    with pytest.raises(InvalidParameterError, match="public_size") as caught:
        require_public_size(77, 10)
    assert "77" not in str(caught.value)
    require_same_size(None, 10)
    require_same_size(10, 10)
    with pytest.raises(InvalidParameterError, match=r"public_size=9.*public_size=10"):
        require_same_size(9, 10)
    require_fits(10, 10)
    with pytest.raises(InvalidParameterError, match="at most public_size=10"):
        require_fits(11, 10)
