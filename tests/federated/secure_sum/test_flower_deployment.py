# SPDX-License-Identifier: Apache-2.0
"""Training on secure sums with a SuperLink and SuperNodes as processes: the example project of the docs."""

import re
import shutil
from pathlib import Path

import pytest
from torch import nn

from sfumato.training import TrainingRun
from tests.federated.flower.deployment import PATIENCE, Deployment, wait_until

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "docs" / "examples" / "flower_secure_sums"
NODES = 3
PATIENT = 5 * PATIENCE  # each of four exchanges starts a process for each node
QUIET = {  # what the clients agree to, in the code of the example and in this test
    "ROUNDS = 10": "ROUNDS = 2",
    "clip_norm=1.0": "clip_norm=20.0",
    "noise_multiplier=2.0": "noise_multiplier=1e-3",
    "cohort=8": f"cohort={NODES}",
    "least_survivors=6": "least_survivors=2",
}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("sums")) as deployment:
        for number in range(NODES):
            deployment.start_node(number, of=NODES)
        yield deployment


def quiet_project(folder):
    """Return a copy of the example whose clients agree to little noise."""
    project = shutil.copytree(PROJECT, folder / "project")
    code = (project / "client_app.py").read_text()
    for stated, quiet in QUIET.items():
        assert code.count(stated) == 1
        code = code.replace(stated, quiet)
    (project / "client_app.py").write_text(code)
    return project


@pytest.mark.slow
def test_a_run_learns_from_sums_and_goes_on_when_a_node_is_killed(deployed):
    """With little noise the model is as good as an average of three models: sums were decoded right."""
    folder = deployed.folder / "run"
    settings = {"clients": NODES, "rate": 1.0, "timeout": 90.0, "folder": str(folder)}
    run = deployed.run(quiet_project(deployed.folder), **settings)
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


def test_examples_and_pages_import_names_that_the_reference_lists():
    folder = ROOT / "docs"
    sources = [
        *folder.glob("examples/flower_*/*.py"),
        folder / "federated.md",
        *folder.glob("*/federated.md"),
    ]
    imported = re.findall(r"from (sfumato\.federated[\w.]*) import", "".join(p.read_text() for p in sources))
    assert set(imported) == {"sfumato.federated", "sfumato.federated.flower"}


def test_the_page_shows_what_the_clients_of_the_example_agree_to():
    text = (ROOT / "docs" / "federated.md").read_text()
    code = (PROJECT / "client_app.py").read_text()
    agreed = code[code.index("ROUNDS = ") : code.index("def make_model")].strip()
    assert "SecureSum(" in agreed and "secure_sum_mod(SUMS, rounds=ROUNDS)" in agreed and agreed in text
    assert not re.search(r"run_config", code)  # settings of a run come from those who start it
