# SPDX-License-Identifier: Apache-2.0
"""Secrets planted in a tiny text: kept by models trained openly, and not by private ones."""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.audit.models.memorization import SecretFormat
from sfumato.audit.models.planted_text import plant, text_log_likelihood, train_with_secrets
from sfumato.datasets.shakespeare import encode_text, windows
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import Privacy
from sfumato.training.models.networks import lstm, transformer

LENGTH = 15
FORM = SecretFormat(template="pin {};", digits=3)
TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen jugs. " * 20
MODELS = {"lstm": lambda: lstm(97), "transformer": lambda: transformer(97, LENGTH)}


@pytest.fixture(scope="module")
def rows():
    return windows(encode_text(TEXT), LENGTH)


def made(name):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return MODELS[name]()


# --- the parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_texts_log_likelihood_adds_up_its_tokens(name):
    model, texts = made(name), ["to be", "or no", "t to "]
    found = text_log_likelihood(model, batch_size=2)(texts)
    for text, score in zip(texts, found, strict=True):
        ids, total = encode_text(text), 0.0
        for place in range(1, len(ids)):
            total += float(model(ids[None, :place])[0, -1].log_softmax(0)[ids[place]].detach())
        assert score == pytest.approx(total, rel=1e-4)


def test_a_model_is_asked_in_evaluation_mode_and_left_as_it_was():
    model = nn.Sequential(nn.Embedding(97, 8), nn.Dropout(0.5), nn.Linear(8, 97))
    ask = text_log_likelihood(model.train())
    first, second = ask(["to be"]), ask(["to be"])
    assert model.training and model[1].training
    assert first == second == text_log_likelihood(model.eval())(["to be"])


@pytest.mark.parametrize(("texts", "says"), [(["to be", "or"], r"\[2, 5\]"), ([], "at least one")], ids=str)
def test_texts_of_unequal_lengths_and_none_at_all_are_refused(texts, says):
    with pytest.raises(InvalidParameterError, match=says):
        text_log_likelihood(made("lstm"))(texts)


def test_secrets_need_a_row_to_stand_among():
    nothing = torch.zeros(0, 8, dtype=torch.int64)
    with pytest.raises(InvalidParameterError, match="no rows"):
        plant((nothing, nothing), ["pin 42"])


def test_a_planted_row_holds_the_secret_and_what_comes_one_place_later(rows):
    x, y = plant(rows, ["pin 007;", "pin 123;"])
    assert len(x) == len(y) == len(rows[0]) + 2
    assert torch.equal(x[:-2], rows[0]) and torch.equal(y[:-2], rows[1])
    assert torch.equal(x[-1][:8], encode_text("pin 123;")) and torch.equal(x[-2:, 1:], y[-2:, :-1])
    assert torch.equal(x[-2][8:], rows[0][0][: LENGTH - 8])  # filled up with text


def test_a_secret_may_fill_its_row(rows):
    x, y = plant(rows, ["0123456789abcdef"])  # one more than the length: the last is only predicted
    assert torch.equal(torch.cat([x[-1], y[-1][-1:]]), encode_text("0123456789abcdef"))


def test_a_secret_that_does_not_fit_and_none_at_all_are_refused(rows):
    with pytest.raises(InvalidParameterError, match="does not fit a row of 16"):
        plant(rows, ["0123456789abcdefg"])
    with pytest.raises(InvalidParameterError, match="at least one"):
        plant(rows, [])


# --- kept, and not kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trained_openly_keeps_its_secrets_word_for_word(rows, name):
    found = train_with_secrets(
        made(name),
        rows,
        form=FORM,
        secrets=3,
        epochs=40,
        expected_batch_size=27,
        learning_rate=0.01,
        generator=seeded(1),
    )
    assert found.guarantee is None
    assert found.mean_bits > 7  # of log2(1000) = 9.97 where all are first, 1.44 where nothing is kept
    assert max(e.bound(delta=1e-3, confidence=0.98).epsilon for e in found.exposures) > 1


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trained_at_epsilon_1_keeps_nothing_of_them(rows, name):
    found = train_with_secrets(
        made(name),
        rows,
        form=FORM,
        secrets=8,
        epochs=2,
        expected_batch_size=27,
        learning_rate=1.0,
        privacy=Privacy(epsilon=1.0, delta=1e-3),
        generator=seeded(2),
    )
    assert found.guarantee is not None and found.guarantee.epsilon == pytest.approx(1.0, abs=0.01)
    assert np.median([e.bits for e in found.exposures]) < 3
    assert max(e.bound(delta=1e-3, confidence=1 - 0.05 / 8).epsilon for e in found.exposures) <= 1
