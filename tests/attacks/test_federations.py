# SPDX-License-Identifier: Apache-2.0
"""Every way to federate is attacked, under one confidence, and none is found to claim too much."""

import pytest
import torch

from attacks import federations as module
from attacks.federations import federations
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower import local_noise
from sfumato.mechanisms import tensors
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

CANARIES = 80
WAYS = 10
SERVER = [name for name in module._ways() if "seen by the server" in name]


@pytest.fixture
def from_the_server(monkeypatch):
    """Leave out whole runs, whose tests are in `audit.federations`."""
    kept = {name: attack for name, attack in module._ways().items() if name in SERVER}
    monkeypatch.setattr(module, "_ways", lambda: kept)


def test_no_message_tells_the_server_too_much(from_the_server):
    found = list(federations(CANARIES, generator=seeded(1)))
    assert [result.subject for result in found] == SERVER
    assert not any(result.refuted for result in found)
    assert all(result.claim.privacy_unit == "client" for result in found)


def test_local_noise_that_is_missing_is_found_out(monkeypatch):
    def less(sums, *, stddev, generator=None):
        tensors.add_gaussian_many_(sums, stddev=stddev / 3, generator=generator)

    monkeypatch.setattr(local_noise, "add_gaussian_many_", less)
    assert module._local(CANARIES, 0.95, seeded(1)).refuted


@pytest.mark.slow
def test_no_way_to_federate_claims_too_much():
    found = list(federations(400, generator=seeded(1)))
    assert len(found) == len({result.subject for result in found}) == WAYS
    assert not any(result.refuted for result in found)
    assert sum(result.best.epsilon > 0 for result in found) > WAYS / 2  # the attacks see something


@pytest.mark.parametrize("wrong", [0, -1, 1.5, 12])
def test_numbers_of_canaries_that_show_nothing_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        next(federations(wrong))
