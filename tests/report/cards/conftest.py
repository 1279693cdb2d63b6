# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato import Guarantee, Relation
from sfumato.report import PrivacyCard


@pytest.fixture
def make():
    """Return a card of a model; keywords replace its facts."""

    def made(**facts):
        unit = facts.pop("privacy_unit", "patient")
        relation = facts.pop("relation", Relation.ADD_REMOVE)
        epsilon = facts.pop("epsilon", 2.38201)
        guarantee = Guarantee(epsilon=epsilon, delta=1e-5, relation=relation, privacy_unit=unit)
        return PrivacyCard(**{"title": "A model", "released": "the model", "guarantee": guarantee} | facts)

    return made
