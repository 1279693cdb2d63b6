# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch
from torch import nn

from sfumato.labels import LabelDpSgd, RandomizedLabels, label_card, train
from sfumato.training import CheckpointError

X, Y = torch.randn(60, 3), torch.arange(60) % 2


def run(method, folder):
    return train(nn.Linear(3, 2), X, Y, method=method, folder=folder)


@pytest.fixture(params=["released", "noisy gradients"])
def finished(request, tmp_path):
    method = (
        RandomizedLabels(epsilon=1.0, classes=2)
        if request.param == "released"
        else LabelDpSgd(epsilon=2.0, delta=1e-3, classes=2, public_size=60, steps=2, expected_batch_size=20)
    )
    return run(method, tmp_path / "run"), tmp_path / "run"


def test_the_card_of_a_folder_is_that_of_the_run(finished):
    done, folder = finished
    card = done.card()
    assert label_card.folder_card(folder, title=None).to_json() == card.to_json()
    assert card.guarantee == done.guarantee and card.theorem
    assert label_card.FEATURES in card.to_markdown()


def test_a_changed_folder_has_no_card(finished):
    _, folder = finished
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"epsilon": 0.01}))
    with pytest.raises(CheckpointError, match="was changed after the run"):
        label_card.folder_card(folder, title=None)
    (folder / "run.json").write_text(json.dumps(facts))
    torch.save({"weight": torch.zeros(2, 3)}, folder / "model.pt")
    with pytest.raises(CheckpointError, match=r"weights in .* were changed"):
        label_card.folder_card(folder, title=None)


def test_a_notebook_shows_a_label_run(finished):
    done, _ = finished
    assert "replace-label" in done._repr_html_() and "Features are public" in done._repr_html_()
