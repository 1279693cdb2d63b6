# SPDX-License-Identifier: Apache-2.0
import pytest

import sfumato


@pytest.mark.parametrize("name", sfumato.__all__)
def test_every_public_name_can_be_used(name):
    assert getattr(sfumato, name) is not None
    assert name in dir(sfumato)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'epsilonn'"):
        sfumato.epsilonn  # noqa: B018 the look-up itself is what is tested


def test_what_the_root_offers_is_what_the_room_offers():
    from sfumato.accounting import Relation
    from sfumato.ledger import Ledger

    assert sfumato.Relation is Relation and sfumato.Ledger is Ledger
