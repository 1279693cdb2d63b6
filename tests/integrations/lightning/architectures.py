# SPDX-License-Identifier: Apache-2.0
"""Five networks for Lightning modules: small ones for tests, larger ones for benchmarks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large networks and rows are."""

    width: int = 4  # entries of a row, and of a token
    hidden: int = 6
    channels: int = 4
    side: int = 6  # pixels
    length: int = 5  # tokens
    heads: int = 2


SMALL = Size()


class Recurrent(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.rnn, self.out = (
            nn.LSTM(size.width, size.hidden, batch_first=True),
            nn.Linear(size.hidden, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            2 * size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True
        )
        self.out = nn.Linear(2 * size.width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x).mean(1))


class Residual(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.channels
        self.first, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width)
        self.second, self.out = nn.Conv2d(width, width, 3, padding=1), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.out((x + self.second(F.relu(self.norm(x)))).mean((2, 3)))


def convolutional(size: Size) -> nn.Module:
    width, side = size.channels, size.side - 2
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width * side * side, CLASSES)
    )


def perceptron(size: Size) -> nn.Module:
    return nn.Sequential(
        nn.Linear(size.width, size.hidden), nn.Tanh(), nn.Dropout(0.3), nn.Linear(size.hidden, CLASSES)
    )


MODELS: Mapping[str, Callable[[Size], nn.Module]] = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "recurrent": Recurrent,
    "attentive": Attentive,
    "residual": Residual,
}


def model(name: str, size: Size = SMALL) -> nn.Module:
    """Return a network, with the same weights at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name](size)


def shape(name: str, size: Size = SMALL) -> tuple[int, ...]:
    """Return the shape of a row."""
    picture = (1, size.side, size.side)
    return {
        "perceptron": (size.width,),
        "convolutional": picture,
        "recurrent": (size.length, size.width),
        "attentive": (size.length, 2 * size.width),
        "residual": picture,
    }[name]
