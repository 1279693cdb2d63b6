# SPDX-License-Identifier: Apache-2.0
"""Every way to federate is attacked, under one confidence, and none is found to claim too much."""

import inspect

import pytest
import torch

from attacks import federations as module
from attacks.federations import federations
from sfumato import federated
from sfumato.errors import InvalidParameterError
from sfumato.federated import flower
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

CANARIES = 40
WAYS = module._ways()
OUTSIDE = "federate, seen from outside"
UNITS = {"ExampleLevel": "example", "NoisySteps": "example", "columns": "person", "labels": "label"}


@pytest.fixture
def from_within(monkeypatch):
    """Leave out whole runs, whose tests are in `audit.federations`."""
    kept = {name: attack for name, attack in WAYS.items() if not name.startswith(OUTSIDE)}
    monkeypatch.setattr(module, "_ways", lambda: kept)
    return list(kept)


def test_no_sum_and_no_message_tells_too_much(from_within):
    found = list(federations(CANARIES, generator=seeded(1)))
    assert [result.subject for result in found] == from_within
    assert not any(result.refuted for result in found)
    for result in found:
        units = [unit for part, unit in UNITS.items() if part in result.subject]
        assert result.claim.privacy_unit == (units or ["client"])[0]


def claims(room):
    """Return the public names of a room that claim something: mechanisms, and functions that return a run."""
    public = {name: getattr(room, name) for name in room.__all__ if not name.endswith("Run")}
    noisy = {name for name, kind in public.items() if hasattr(kind, "event") or hasattr(kind, "guarantee")}
    functions = {name: inspect.signature(kind) for name, kind in public.items() if inspect.isfunction(kind)}
    return noisy | {name for name, kind in functions.items() if "Run" in str(kind.return_annotation)}


def test_all_ways_to_federate_are_in_the_catalogue():
    asked = claims(federated) | claims(flower)
    assert asked >= {"federate", "gossip", "train_split", "SecureSum", "NoisySteps", "LocalNoise"}
    assert {name for name in asked if not any(name in subject for subject in WAYS)} == set()


@pytest.mark.slow
def test_no_way_to_federate_claims_too_much():
    found = list(federations(400, generator=seeded(1)))
    assert [result.subject for result in found] == list(WAYS)
    assert not any(result.refuted for result in found)
    assert sum(result.best.epsilon > 0 for result in found) > len(WAYS) / 2  # the attacks see something


@pytest.mark.parametrize("wrong", [0, -1, 1.5, 12])
def test_numbers_of_canaries_that_show_nothing_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        next(federations(wrong))
