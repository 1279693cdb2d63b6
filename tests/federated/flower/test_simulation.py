# SPDX-License-Identifier: Apache-2.0
"""The strategy and the client's parts in Flower's simulation engine (Ray), and the template project."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sfumato.federated.clients.local_training import local_update
from tests.federated.flower import simulated
from tests.federated.flower.deployment import BIN, HOST, PATIENCE, environment, free_port, wait_until
from tests.federated.flower.local_grid import context

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "docs" / "examples" / "flower_project"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the results of simulations in another process: Ray leaves files and threads behind."""
    folder = tmp_path_factory.mktemp("simulation")
    done = subprocess.run(
        [sys.executable, simulated.__file__, str(folder / "results.pt")],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(folder / "results.pt", weights_only=True)


def test_a_simulated_run_takes_the_steps_of_the_reference(found):
    model, training, nodes = simulated.model_of(), simulated.TRAINING, range(simulated.NODES)
    for step in range(2):
        updates = [
            local_update(model, simulated.rows_of(context(partition=c)), training, client=c, step=step)
            for c in nodes
        ]
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.sub_(sum(update[name] for update in updates) / len(nodes))
    assert torch.allclose(found["private"]["weight"], model.weight, atol=1e-4)
    assert found["private"]["metrics"] == []


@pytest.mark.parametrize("kind", ["local", "examples"])
def test_flowers_own_averaging_works_with_replies_that_are_private_already(found, kind):
    assert found[kind]["rounds"] == [1]  # nobody answers a second round
    moved = (found[kind]["weight"] - simulated.model_of().weight).norm()
    assert moved > 0 and (kind == "examples" or moved <= 1.0)


@pytest.fixture
def superlink(tmp_path):
    """Start a SuperLink for simulations; return the environment of commands that use it."""
    port, own = free_port(), environment(tmp_path)
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    )
    log = tmp_path / "superlink.log"
    flags = ("--simulation", "--insecure", "--host", HOST, "--port", str(port))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(BIN / "flower-superlink"), *flags, "--disable-runtime-dependency-installation"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=own,
            cwd=tmp_path,
        )
    try:
        wait_until(lambda: "running on" in log.read_text(), "the start of the SuperLink")
        yield own, log
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_the_template_project_runs_with_flwr_run(superlink, tmp_path):
    own, log = superlink
    command = [str(BIN / "flwr"), "run", str(TEMPLATE), "local", "--format", "json"]
    size = "num-supernodes=4 client-resources-num-cpus=1"
    folder = tmp_path / "run"
    config = f'rounds=3 cohort=2 clients=4 folder="{folder}"'
    done = subprocess.run(
        [*command, "--federation-config", size, "--run-config", config],
        env=own,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: "Finished task" in log.read_text(), "the end of the run")
    facts = json.loads((folder / "run.json").read_text())
    assert facts["steps"] == 3 and facts["privacy_unit"] == "client" and facts["epsilon"] <= 8
