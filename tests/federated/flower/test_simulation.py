# SPDX-License-Identifier: Apache-2.0
"""The strategy and the client's parts in Flower's simulation engine (Ray), and the template project."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from torch import nn

from tests.federated.flower.deployment import BIN, HOST, PATIENCE, environment, free_port, wait_until

pytestmark = [
    pytest.mark.slow,
    # of Ray and Flower themselves, which we cannot change
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEMPLATE = Path(__file__).parents[3] / "docs" / "examples" / "flower_project"
NODES = 4


def rows_of(context):
    draws = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    return torch.randn(8, 3, generator=draws), torch.randint(2, (8,), generator=draws)


def model_of():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def simulated(app, main):
    """Run a ServerApp's function and a ClientApp in the simulation engine; return what the function returned."""
    from flwr.simulation import run_simulation

    results, server = [], ServerApp()

    @server.main()
    def started(grid, context):
        results.append(main(grid))

    run_simulation(
        server,
        app,
        num_supernodes=NODES,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}},
    )
    (result,) = results
    return result


def test_a_simulated_run_takes_the_steps_of_the_reference(monkeypatch):
    from sfumato.federated.clients.local_training import LocalTraining, local_update
    from sfumato.federated.flower import PrivateStrategy, client_app
    from tests.federated.flower.local_grid import context

    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    training = LocalTraining(epochs=2, batch_size=4)

    def main(grid):
        model = model_of()
        strategy = PrivateStrategy(
            model, noise_multiplier=1e-7, delta=1e-3, cohort=NODES, clip_norm=100.0, least_clients=NODES
        )
        return strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=2)

    result = simulated(client_app(model_of(), rows_of, training), main)
    model = model_of()
    for step in range(2):
        updates = [
            local_update(model, rows_of(context(partition=c)), training, client=c, step=step)
            for c in range(NODES)
        ]
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.sub_(sum(update[name] for update in updates) / NODES)
    assert torch.allclose(result.run.model.weight, model.weight, atol=1e-4)


def test_flowers_own_averaging_works_with_local_noise(monkeypatch):
    from flwr.serverapp.strategy import FedAvg

    from sfumato.federated.flower import LocalNoise, client_app

    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    noise = LocalNoise(clip_norm=1.0, rounds=1, noise_multiplier=1e-7, delta=1e-5)

    def main(grid):
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES, min_train_nodes=NODES)
        return strategy.start(grid=grid, initial_arrays=ArrayRecord(model_of().state_dict()), num_rounds=2)

    result = simulated(client_app(model_of(), rows_of, mods=[noise]), main)
    assert list(result.train_metrics_clientapp) == [1]  # nobody answers a second round
    weight = result.arrays.to_torch_state_dict()["weight"]
    assert 0 < (weight - model_of().weight).norm() <= 1.0


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
