# SPDX-License-Identifier: Apache-2.0
"""The strategy on real processes: SuperLink and SuperNodes with TLS and keys, on loopback."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from sfumato import Ledger
from sfumato.training import TrainingRun
from tests.federated.flower.deployment import Deployment, wait_until

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent / "project"
NODES = 3


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("deployment")) as deployment:
        for number in range(NODES):
            deployment.start_node(number, of=NODES)
        yield deployment


def started(deployment, name, **config):
    """Start a run in a folder of its own; return its id and the folder."""
    place = deployment.folder / name
    place.mkdir(exist_ok=True)
    return deployment.run(PROJECT, notes=str(place), folder=str(place / name), **config), place


def asked(place):
    """Return who was asked how often: {(round, partition): times}."""
    lines = (place / "asked.txt").read_text().splitlines()
    return Counter(tuple(map(int, line.split())) for line in lines)


def everybody(rounds):
    return {(number, node): 1 for number in rounds for node in range(NODES)}


def test_a_run_is_trained_by_its_nodes_and_a_node_with_a_wrong_key_is_refused(deployed):
    stranger = deployed.start_node(9, of=NODES, registered=False)
    wait_until(lambda: stranger.poll() is not None or "rror" in deployed.log("node9"), "the refusal")
    run, place = started(deployed, "plain")
    assert deployed.wait_for(run) == "finished:completed"
    found = TrainingRun.load(place / "plain", torch.nn.Linear(2, 1))
    assert found.mechanism.steps == 3 and found.privacy_unit == "client" and found.recorded
    assert asked(place) == everybody([1, 2, 3])
    listed = json.loads(deployed.flwr("supernode", "list", "local", "--format", "json"))
    assert len(listed["nodes"]) == NODES
    deployed.kill(stranger)


def test_a_server_that_was_killed_goes_on_from_its_checkpoint(deployed):
    run, place = started(deployed, "killed", **{"hang": 1, "hang-in": 2})
    wait_until((place / "hanging").exists, "the second round")
    deployed.kill_server_app()
    checkpoint = torch.load(place / "killed" / "checkpoint.pt", weights_only=True)
    assert checkpoint["step"] == 1 and not (place / "killed" / "run.json").exists()
    deployed.flwr("stop", run, "local")
    (place / "go-on").touch()  # its reply to the server that is gone comes late
    again, _ = started(deployed, "killed", resume=True)
    assert deployed.wait_for(again) == "finished:completed"
    rounds = asked(place)
    assert max(times for (number, _), times in rounds.items() if number == 1) == 1  # not asked again
    assert {number for number, _ in rounds} == {1, 2, 3}
    account = Ledger(place / "ledger.db", create=False).account("nodes")
    assert len(account.releases()) == 1
    assert TrainingRun.load(place / "killed", torch.nn.Linear(2, 1)).mechanism.steps == 3


def test_a_node_that_is_killed_in_a_round_does_not_stop_it(deployed):
    run, place = started(deployed, "lost", **{"hang": 2, "hang-in": 2, "timeout": 30.0})
    wait_until((place / "hanging").exists, "the second round")
    deployed.kill_node(2)
    assert deployed.wait_for(run) == "finished:completed"
    assert {number for number, node in asked(place) if node == 0} == {1, 2, 3}
    assert {number for number, node in asked(place) if node == 2} == {1, 2}
