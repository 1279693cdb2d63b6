# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch
from torch import nn

from sfumato import labels
from sfumato.audit import Canaries, attack
from sfumato.errors import UnsupportedUseError
from sfumato.labels import LabelDpSgd
from sfumato.training import CheckpointError, TrainingRun, train

X, Y = torch.randn(200, 3), torch.zeros(200, dtype=torch.int64)


@pytest.fixture
def finished(tmp_path):
    """Return a finished run and its folder."""
    folder = tmp_path / "run"
    run = train(
        nn.Linear(3, 2),
        (X, Y),
        public_size=200,
        expected_batch_size=50,
        steps=4,
        epsilon=3.0,
        delta=1e-5,
        folder=folder,
        evaluation=(X, Y),
        progress=False,
        audit=Canaries(count=200),
    )
    return run, folder


def test_a_loaded_run_says_what_the_run_said(finished):
    run, folder = finished
    model = nn.Linear(3, 2)
    loaded = TrainingRun.load(folder, model)
    assert loaded.guarantee == run.guarantee and loaded.statement() == run.statement()
    assert loaded.mechanism == run.mechanism and loaded.history == run.history
    assert torch.equal(loaded.model(X), run.model(X)) and loaded.model is model and not model.training
    again, before = (json.loads(each.to_json()) for each in (loaded, run))
    assert again == before
    assert attack(loaded).statement() == attack(run).statement()


def test_without_the_architecture_there_are_weights_and_no_predictions(finished):
    run, folder = finished
    loaded = TrainingRun.load(folder)
    assert all(
        torch.equal(loaded.model.state_dict()[name], held) for name, held in run.model.state_dict().items()
    )
    with pytest.raises(UnsupportedUseError, match="model="):
        loaded.model(X)


def test_files_that_were_changed_are_refused(finished, tmp_path):
    _, folder = finished
    with pytest.raises(CheckpointError, match="no finished run"):
        TrainingRun.load(tmp_path / "nothing")
    report = folder / "run.json"
    facts = json.loads(report.read_text())
    report.write_text(json.dumps(facts | {"epsilon": 0.1}))
    with pytest.raises(CheckpointError, match="fingerprint"):
        TrainingRun.load(folder)
    report.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        TrainingRun.load(folder)
    report.write_text(json.dumps(facts))
    torch.save(
        {name: held + 1 for name, held in torch.load(folder / "model.pt").items()}, folder / "model.pt"
    )
    with pytest.raises(CheckpointError, match="weights"):
        TrainingRun.load(folder)


def test_a_page_has_the_guarantee_and_the_statement(finished, tmp_path):
    run, _ = finished
    run.report(tmp_path / "page.html", title="Ours & theirs")
    text = (tmp_path / "page.html").read_text()
    assert "Ours &amp; theirs" in text and "DP-SGD in 4 noisy steps" in text and "<svg" in text


def test_a_run_on_labels_is_not_loaded_as_one_that_protects_rows(tmp_path):
    method = LabelDpSgd(epsilon=1.0, delta=1e-5, classes=2, public_size=200, steps=2, expected_batch_size=20)
    labels.train(nn.Linear(3, 2), X, Y, method=method, folder=tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError, match="labels alone"):
        TrainingRun.load(tmp_path / "run")
