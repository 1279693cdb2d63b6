# SPDX-License-Identifier: Apache-2.0
"""Training on secure sums with a SuperLink and SuperNodes as processes: the example project of the docs."""

from pathlib import Path

import pytest
from torch import nn

from sfumato.training import TrainingRun
from tests.federated.flower.deployment import PATIENCE, Deployment, wait_until

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "docs" / "examples" / "flower_secure_sums"
NODES = 3
PATIENT = 5 * PATIENCE  # each of four exchanges starts a process for each node
QUIET = {"clients": NODES, "cohort": NODES, "rate": 1.0, "clip-norm": 20.0, "noise": 1e-3}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("sums")) as deployment:
        for number in range(NODES):
            deployment.start_node(number, of=NODES)
        yield deployment


@pytest.mark.slow
def test_a_run_learns_from_sums_and_goes_on_when_a_node_is_killed(deployed):
    """With little noise the model is as good as an average of three models: sums were decoded right."""
    folder = deployed.folder / "run"
    settings = {"rounds": 2, "least-survivors": 2, "timeout": 90.0, "folder": str(folder)}
    run = deployed.run(PROJECT, **QUIET, **settings)
    wait_until((folder / "checkpoint.pt").exists, "the first round", patience=PATIENT)
    deployed.kill_node(2)
    assert deployed.wait_for(run, patience=PATIENT) == "finished:completed"
    found = TrainingRun.load(folder, nn.Linear(64, 10))
    assert found.mechanism.steps == 2 and found.mechanism.step.summation.least_survivors == 2
    assert found.against_server is not None
    assert found.accuracy > 0.8  # classes: 10


def test_the_code_in_the_docs_is_that_of_the_project():
    text = (ROOT / "docs" / "federated.md").read_text()
    block = text.split("# server_app.py of flower_secure_sums\n")[1].split("```")[0]
    code = {line.strip() for line in (PROJECT / "server_app.py").read_text().splitlines()}
    shown = [line.strip() for line in block.splitlines() if line.strip()]
    assert len(shown) > 15 and [line for line in shown if line not in code] == []
