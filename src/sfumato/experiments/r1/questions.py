# SPDX-License-Identifier: Apache-2.0
"""Texts with a secret label, and a small language model that was trained on the texts without labels.

Texts are windows of 80 characters of one role of Shakespeare's plays. The label is whether a question mark is
in it. Texts do not show it: they are in small letters, with spaces for everything that is no letter. There
are as many texts with a question as without: of those without, every so many are taken. Roles are either for
training or for testing.

A quick run has no text. It reads the digits as texts of 64 letters, one for each of 17 gray levels.

Guarantee  Under label privacy features are public, so a model that was trained on texts alone costs nothing.
           To choose texts by their labels is allowed for published texts only.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.datasets import Examples, load
from sfumato.datasets.shakespeare import ALPHABET
from sfumato.experiments.experiment import Scale
from sfumato.labels import learn
from sfumato.training.models.networks import NextToken, transformer
from sfumato.training.random_state import same_draws

__all__ = ["Classifier", "Texts", "asked", "pretrained", "texts_of"]

_GRAY_LEVELS: Final = 16
_MARK, _SPACE = ALPHABET.index("?"), ALPHABET.index(" ")
_PLAIN: Final = torch.tensor(
    [ALPHABET.index(letter.lower()) if letter.isalpha() or letter == "'" else _SPACE for letter in ALPHABET]
)
_EPOCHS, _QUICK_EPOCHS = 20, 1
_AT_ONCE: Final = 512  # texts
_QUICK_ROWS: Final = 240


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Texts:
    """Texts to learn from and to test on, as numbers of letters, with their labels; and more without."""

    unlabeled: Tensor  # [rows, length]
    features: Tensor  # [rows, length]
    labels: Tensor
    test_features: Tensor
    test_labels: Tensor
    letters: int
    classes: int


@cache
def texts_of(scale: Scale) -> Texts:
    """Return the texts of a scale."""
    if scale.quick:
        digits = load("digits")
        train, test = (
            (part.features.flatten(1) * _GRAY_LEVELS).round().long() for part in (digits.train, digits.test)
        )
        return Texts(
            unlabeled=train[:_QUICK_ROWS],
            features=train[:_QUICK_ROWS],
            labels=digits.train.labels[:_QUICK_ROWS],
            test_features=test,
            test_labels=digits.test.labels,
            letters=_GRAY_LEVELS + 1,
            classes=10,
        )
    plays = load("shakespeare")
    (features, labels), (test_features, test_labels) = asked(plays.train), asked(plays.test)
    return Texts(
        unlabeled=_PLAIN[plays.train.features],
        features=features,
        labels=labels,
        test_features=test_features,
        test_labels=test_labels,
        letters=len(ALPHABET),
        classes=2,
    )


def asked(plays: Examples) -> tuple[Tensor, Tensor]:
    """Return texts, and whether a question was asked in each, as many with one as without.

    Args:
        plays: Windows of text.

    Returns:
        The texts in small letters and spaces, and 1 for a question.
    """
    asks = (plays.features == _MARK).any(1)
    without = (~asks).nonzero().squeeze(1)
    count = int(asks.sum())
    places = torch.linspace(0, len(without) - 1, count).round().long()
    rows = torch.cat([asks.nonzero().squeeze(1), without[places]]).sort().values
    return _PLAIN[plays.features[rows]], asks[rows].long()


@cache
def pretrained(scale: Scale, device: str) -> NextToken:
    """Return a transformer that has learned to predict the next letter of texts."""
    texts = texts_of(scale)
    with same_draws(seed=0):
        model = transformer(texts.letters, texts.features.shape[1])
    assert isinstance(model, NextToken)
    model.to(device)
    learn(
        model,
        texts.unlabeled[:, :-1],
        texts.unlabeled[:, 1:],
        loss=_next_letter,
        epochs=_QUICK_EPOCHS if scale.quick else _EPOCHS,
        batch_size=256,
        learning_rate=2e-3,
    )
    return model


def _next_letter(scores: Tensor, later: Tensor) -> Tensor:
    return F.cross_entropy(scores.transpose(1, 2), later.to(scores.device), reduction="none").mean(1)


class Classifier(nn.Module):
    """Classify a text by the mean of what a language model makes of its letters.

    Args:
        language: The model, whose layers are used as they are.
        texts: Public texts, over which what the last layer gets is made to have mean 0 and about norm 1.
        classes: The number of classes.
        whole: Whether all layers learn, or the last one alone.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, language: NextToken, texts: Tensor, classes: int, *, whole: bool) -> None:
        super().__init__()
        self.embedding = language.embedding
        self.body = language.body
        self.requires_grad_(whole)
        size = language.embedding.embedding_dim
        self.head = nn.Linear(size, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        with torch.no_grad():
            means = torch.cat([self._means(part) for part in texts.split(_AT_ONCE)])
        self.register_buffer("shift", means.mean(0))
        self.register_buffer("scale", means.std(0).clamp(min=1e-6) * math.sqrt(size))

    def _means(self, x: Tensor) -> Tensor:
        return self.body(self.embedding(x)).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class."""
        return self.head((self._means(x) - self.shift) / self.scale)
