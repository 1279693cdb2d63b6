# SPDX-License-Identifier: Apache-2.0
import torch

from sfumato.datasets import Examples
from sfumato.datasets.shakespeare import ALPHABET, encode_text
from sfumato.experiments import Scale
from sfumato.experiments.r1.questions import Classifier, asked, pretrained, texts_of

QUICK = Scale(quick=True)


def test_texts_show_no_marks_and_no_capitals():
    windows = torch.stack(
        [encode_text(text) for text in ("Who's there?\n", "Long live it.", "He.  Hers, X!")]
    )
    texts, labels = asked(Examples(windows, torch.zeros(3)))
    shown = ["".join(ALPHABET[i] for i in text) for text in texts]
    assert shown[0] == "who's there  " and labels.tolist()[0] == 1
    assert all(set(text) <= set("abcdefghijklmnopqrstuvwxyz' ") for text in shown)


def test_there_are_as_many_questions_as_other_texts():
    windows = torch.stack([encode_text(text) for text in ("a?", "b.", "c.", "d?", "e.", "f.", "g.")])
    _, labels = asked(Examples(windows, torch.zeros(7)))
    assert labels.bincount().tolist() == [2, 2]


def test_a_classifier_learns_all_layers_or_the_last_one():
    texts = texts_of(QUICK)
    last = Classifier(pretrained(QUICK, "cpu"), texts.features, texts.classes, whole=False)
    assert [name for name, p in last.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]
    assert last(texts.features[:3]).shape == (3, 10)
    whole = Classifier(pretrained(QUICK, "cpu"), texts.features, texts.classes, whole=True)
    assert all(p.requires_grad for p in whole.parameters())
