# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.audit import Canaries
from sfumato.testing import seeded
from sfumato.training import TrainingRun, train

X, Y = torch.randn(200, 3), torch.zeros(200, dtype=torch.int64)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a finished run with an account and an audit, and its folder."""
    place = tmp_path_factory.mktemp("card")
    account = Ledger(place / "ledger.db").open(
        "clinic", privacy_unit="patient", budget=Budget(epsilon=4, delta=1e-4)
    )
    run = train(
        nn.Linear(3, 2),
        (X, Y),
        public_size=200,
        expected_batch_size=50,
        steps=4,
        epsilon=3.0,
        delta=1e-5,
        privacy_unit="patient",
        account=account,
        purpose="a model",
        folder=place / "run",
        evaluation=(X, Y),
        progress=False,
        audit=Canaries(count=200),
    )
    return run, place / "run"


def test_a_card_has_every_fact_of_the_run(finished):
    run, _ = finished
    card = run.card()
    assert card.guarantee == run.guarantee and card.guarantee.privacy_unit == "patient"
    assert (card.account, card.release_number) == ("clinic", 1)
    assert card.audit is not None and card.audit.epsilon_lower_bound == run.audit.best.epsilon
    assert card.theorem == run.price.theorem and "Poisson sampling" in " ".join(card.mechanism)
    assert card.weights_sha256 == run.weights_sha256 and card.finished == run.finished
    assert (
        "not charged" in card.to_markdown()
        and "evaluation data, which is not protected" in card.to_markdown()
    )


def test_a_loaded_run_has_the_card_of_the_run(finished):
    run, folder = finished
    assert TrainingRun.load(folder).card().to_json() == run.card().to_json()
    assert (
        TrainingRun.load(folder, nn.Linear(3, 2)).card(title="T").to_json() == run.card(title="T").to_json()
    )


def test_a_card_keeps_the_version_that_made_the_run(finished):
    _, folder = finished
    loaded = TrainingRun.load(folder)
    old = TrainingRun.of_facts(json.loads(loaded.to_json()) | {"code_version": "0.0.9"}, loaded.model)
    assert old.card().code_version == "0.0.9"


def test_a_card_shows_nothing_exact_about_private_rows(finished):
    run, _ = finished
    shown = run.card().to_json() + run._repr_html_()
    assert "in_scores" not in shown and "elapsed" not in shown
    for measured in run.history:
        assert f"{measured.loss}" not in run.card().to_json()


def test_a_model_that_was_changed_after_the_run_is_reported(finished):
    run, folder = finished
    model = nn.Linear(3, 2)
    loaded = TrainingRun.load(folder, model)
    assert "other weights" not in loaded.card().to_markdown()
    with torch.no_grad():
        model.weight += 1
    card = loaded.card()
    assert "other weights than the run ended with" in card.to_markdown()
    assert card.weights_sha256 == run.weights_sha256


def test_a_seeded_run_protects_no_one():
    run = train(
        nn.Linear(3, 2),
        (X, Y),
        public_size=200,
        expected_batch_size=50,
        steps=2,
        epsilon=3.0,
        delta=1e-5,
        progress=False,
        generator=seeded(1),
    )
    assert not run.card().protects and "does not protect anyone" in run._repr_html_()
    assert "No audit" in run.card().to_markdown()


def test_a_notebook_shows_the_curves_of_a_run(finished):
    shown = finished[0]._repr_html_()
    assert shown.count("<svg") == 3 and "Privacy spent" in shown and "<script" not in shown
