# SPDX-License-Identifier: Apache-2.0
"""Small networks to begin with, for rows, images and text.

Activations are tanh: with clipped gradients they learn more than ReLU. Shapes and numbers of classes are
arguments: they are public facts, and not taken from rows.

Guarantee  No layer mixes the examples of a batch, and every layer has a book-keeping rule.
Source     Papernot et al. 2021, arXiv:2007.14191, "tempered sigmoids", whose networks `cnn` builds.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.datasets import Dataset
from sfumato.errors import InvalidParameterError
from sfumato.training.engine.losses import Loss, class_losses, cross_entropy
from sfumato.training.record.metrics import Score, correct_rows

__all__ = [
    "NextToken",
    "cnn",
    "linear",
    "loss_for",
    "lstm",
    "mlp",
    "model_for",
    "next_token_correct",
    "next_token_cross_entropy",
    "score_for",
    "suitable_models",
    "transformer",
]

Shape = Sequence[int]

# --- rows and images -------------------------------------------------------------------------------------


def linear(shape: Shape, num_classes: int) -> nn.Module:
    """Return multinomial logistic regression.

    >>> linear((1, 8, 8), 10)(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), num_classes))


def mlp(shape: Shape, num_classes: int, *, width: int = 1) -> nn.Module:
    """Return a network with one hidden layer of 64 units, or `width` times as many."""
    _check.count(width=width)
    hidden = 64 * width
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), hidden), nn.Tanh(), nn.Linear(hidden, num_classes)
    )


def cnn(shape: Shape, num_classes: int, *, width: int = 1) -> nn.Module:
    """Return a convolutional network for images of [channels, height, width].

    Two small convolutions up to 24 pixels a side, up to 28 the network of the MNIST tutorials, and above the
    deeper one that the paper trains on CIFAR-10.

    >>> cnn((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    _check.count(width=width)
    channels, height, breadth = _image(shape)
    body = _body(channels, min(height, breadth), width)
    with torch.no_grad():
        size = nn.Sequential(*body)(torch.zeros(1, *shape)).numel()
    hidden = 128 * width if channels > 1 else 32 * width
    return nn.Sequential(*body, nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, num_classes))


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InvalidParameterError(
            f"a cnn needs images of [channels, height, width], 4 pixels a side or more, not rows of "
            f"{list(shape)}. Use 'linear' or 'mlp'."
        )
    return shape[0], shape[1], shape[2]


def _body(channels: int, side: int, width: int) -> list[nn.Module]:
    if side > 28:
        blocks = [(channels, 32 * width), (32 * width, 64 * width), (64 * width, 128 * width)]
        return [*(layer for sizes in blocks for layer in _block(*sizes)), nn.Flatten()]
    if side > 24:
        first = [nn.Conv2d(channels, 16 * width, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)]
        return [*first, nn.Conv2d(16 * width, 32 * width, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()]
    first = [nn.Conv2d(channels, 16 * width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return [*first, nn.Conv2d(16 * width, 32 * width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()]


def _block(n_in: int, n_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(n_in, n_out, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(n_out, n_out, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
    ]


# --- text ------------------------------------------------------------------------------------------------


class NextToken(nn.Module):
    """Predict at every place of a text what comes next: [rows, length] of ids to [rows, length, tokens]."""

    def __init__(self, num_tokens: int, size: int, body: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, size)
        self.body = body
        self.head = nn.Linear(size, num_tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each token at each place."""
        return self.head(self.body(self.embedding(x)))


class _Recurrent(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, size, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class _Attending(nn.Module):
    def __init__(self, length: int, size: int, layers: int) -> None:
        super().__init__()
        self.position = nn.Embedding(length, size)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 4, 4 * size, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x = x + self.position(torch.arange(length, device=x.device))
        # True where attention is forbidden: no place sees what comes after it.
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=later)
        return self.norm(x)


def lstm(num_tokens: int, *, width: int = 1) -> nn.Module:
    """Return a recurrent network for text, of 64 units or `width` times as many.

    >>> lstm(97)(torch.zeros(2, 80, dtype=torch.int64)).shape
    torch.Size([2, 80, 97])
    """
    _check.count(width=width)
    return NextToken(num_tokens, 64 * width, _Recurrent(64 * width))


def transformer(num_tokens: int, length: int, *, width: int = 1) -> nn.Module:
    """Return a decoder of two layers for texts of at most `length` tokens."""
    _check.count(width=width)
    return NextToken(num_tokens, 64 * width, _Attending(length, 64 * width, layers=2))


def next_token_cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each row: the mean over its places, with 0 where y is no token."""
    scores = model(x)  # [rows, length, tokens]
    return class_losses(scores.transpose(1, 2), y).mean(1)


def next_token_correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the share of each row's places whose token was predicted right."""
    return (model(x).argmax(-1) == y).float().mean(1)


# --- by name ---------------------------------------------------------------------------------------------

_FOR_ROWS: Mapping[str, Callable[..., nn.Module]] = {"linear": linear, "mlp": mlp, "cnn": cnn}
_FOR_TEXT = ("lstm", "transformer")


def _is_text(data: Dataset) -> bool:
    return not data.train.features.is_floating_point()


def suitable_models(data: Dataset) -> tuple[str, ...]:
    """Return the names of the models that a data set can train.

    >>> from sfumato.datasets import load
    >>> suitable_models(load("digits")), suitable_models(load("breast-cancer"))
    (('linear', 'mlp', 'cnn'), ('linear', 'mlp'))
    """
    if _is_text(data):
        return _FOR_TEXT
    return tuple(name for name in _FOR_ROWS if name != "cnn" or data.train.features.dim() == 4)


def model_for(data: Dataset, name: str, *, width: int = 1) -> nn.Module:
    """Build a model by its name for a public data set.

    >>> from sfumato.datasets import load
    >>> sum(p.numel() for p in model_for(load("digits"), "mlp").parameters())
    4810
    """
    names = suitable_models(data)
    if name not in names:
        raise InvalidParameterError(
            f"no model {name!r} for the data set {data.name!r}. Use one of: {', '.join(names)}."
        )
    shape = tuple(data.train.features.shape[1:])
    if _is_text(data):
        return (
            lstm(data.num_classes, width=width)
            if name == "lstm"
            else transformer(data.num_classes, shape[0], width=width)
        )
    return for_shape(shape, data.num_classes, name, width=width)


def for_shape(shape: Shape, num_classes: int, name: str, *, width: int = 1) -> nn.Module:
    """Build a model by its name for rows of a shape.

    >>> for_shape((4,), 3, "linear")(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    if name not in _FOR_ROWS:
        raise InvalidParameterError(f"unknown model {name!r}. Use one of: {', '.join(_FOR_ROWS)}.")
    options: dict[str, Any] = {} if name == "linear" else {"width": width}
    return _FOR_ROWS[name](shape, num_classes, **options)


def loss_for(data: Dataset) -> Loss:
    """Return the loss of a data set's rows."""
    return next_token_cross_entropy if _is_text(data) else cross_entropy


def score_for(data: Dataset) -> Score:
    """Return what counts as accuracy for a data set's rows."""
    return next_token_correct if _is_text(data) else correct_rows
