# SPDX-License-Identifier: Apache-2.0
from sfumato.training.integrity.standing import Standing


def standing(**more):
    return Standing(**{"kept": False, "charged": False, "resuming": "resume=True", "begun": True} | more)


def test_a_run_that_did_not_begin_says_nothing():
    assert standing(begun=False).note(None) is None


def test_without_checkpoints_the_model_is_what_it_was():
    text = standing().note(None)
    assert "what it was before the run." in text and "keeps checkpoints can be continued" in text
    assert "charge" not in text and "resume" not in text
    assert "the charge stays" in standing(charged=True).note(None)


def test_a_checkpoint_that_could_not_be_read_is_not_advertised():
    assert standing(kept=True).note(None) == "Stopped. The model is what it was before the run."


def test_a_committed_run_keeps_its_weights():
    assert "has the weights of the run." in standing(settled=True).note(None)
    text = standing(settled=True, kept=True, charged=True).note(None)
    assert "the charge stays" in text and text.endswith("written with resume=True.")
