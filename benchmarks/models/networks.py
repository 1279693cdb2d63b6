# SPDX-License-Identifier: Apache-2.0
"""The networks that training is measured on: each with a batch of random data of its shape."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A network, its batch size, and how to make a batch of that size."""

    name: str
    make: Callable[[], nn.Module]
    batch_size: int
    batch: Callable[[int], tuple[Tensor, Tensor]]
    autocast: torch.dtype | None = None  # of forward products
    compiled: bool = False  # whether compiling its pass pays on a CPU: it is small, and soon compiled

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return one loss for each row."""
        logits = model(x)
        if logits.dim() == 2:
            return F.cross_entropy(logits, y, reduction="none")
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return losses.view(y.shape).mean(1)


def images(*shape: int, classes: int = 10) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return a maker of random images with labels."""
    return lambda rows: (torch.randn(rows, *shape), torch.randint(0, classes, (rows,)))


def text(length: int, vocabulary: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return a maker of random token sequences, each with the next token at every place."""

    def make(rows: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, vocabulary, (rows, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return make


def mlp(depth: int = 1, width: int = 128) -> nn.Module:
    """Return a network with `depth` hidden layers; 102 thousand parameters as it stands."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(784 if i == 0 else width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def cnn(width: int = 1) -> nn.Module:
    """Return the network of the MNIST tutorials, 26 thousand parameters, or one `width` times as wide."""
    return nn.Sequential(
        nn.Conv2d(1, 16 * width, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16 * width, 32 * width, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512 * width, 32 * width),
        nn.Tanh(),
        nn.Linear(32 * width, 10),
    )


class WideBlock(nn.Module):
    """A block of a wide residual network with group normalization."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, n_in), nn.GroupNorm(16, n_out)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        h = F.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(h)
        return skip + self.conv2(F.relu(self.norm2(self.conv1(h))))


def wide_resnet(depth: int = 16, width: int = 4) -> nn.Module:
    """Return a wide residual network with group normalization; 2.7 million parameters as it stands."""
    widths = [16, *(width * n for n in (16, 32, 64))]
    blocks: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    for i in range(3):
        blocks.append(WideBlock(widths[i], widths[i + 1], 1 if i == 0 else 2))
        blocks += [WideBlock(widths[i + 1], widths[i + 1], 1) for _ in range((depth - 4) // 6 - 1)]
    last = widths[-1]
    head = [nn.GroupNorm(16, last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10)]
    return nn.Sequential(*blocks, *head)


class Block(nn.Module):
    """A transformer block, normalized first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    """ViT-S/16 at 224 pixels, 22 million parameters."""

    def __init__(self, width: int = 384, depth: int = 12, heads: int = 6, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class LanguageModel(nn.Module):
    """A causal transformer; its head is tied to the token embedding if `tied`."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int, tied: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.repeat_places = False  # for peers that want a row of places for each example
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next token at each place."""
        places = torch.arange(x.shape[1], device=x.device)
        if self.repeat_places:
            places = places.repeat(x.shape[0], 1)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))


class Recurrent(nn.Module):
    """A classifier of token sequences with one LSTM layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of sequences."""
        return self.head(self.lstm(self.tokens(x))[0][:, -1])


def sequences(rows: int) -> tuple[Tensor, Tensor]:
    """Return random token sequences with a label each."""
    return torch.randint(0, 1000, (rows, 64)), torch.randint(0, 10, (rows,))


CPU = [
    Case("logistic regression, 1024", lambda: nn.Linear(784, 10), 1024, images(784), compiled=True),
    Case("logistic regression, 256", lambda: nn.Linear(784, 10), 256, images(784), compiled=True),
    Case("MLP, 256", mlp, 256, images(784), compiled=True),
    Case("MLP, 1024", mlp, 1024, images(784), compiled=True),
    Case("MNIST CNN, 256", cnn, 256, images(1, 28, 28), compiled=True),
    Case("WRN-16-4, 16", wide_resnet, 16, images(3, 32, 32)),
    Case("transformer, 8 x 128", lambda: LanguageModel(1000, 128, 256, 4, 4, tied=False), 8, text(128, 1000)),
    Case("LSTM, 64 x 64", Recurrent, 64, sequences),
]

# GPT-2's 50,257 tokens are padded to a multiple of 128, as is usual: other widths are slow for everyone.
GPU = [
    Case("MNIST CNN, 2048, tf32", cnn, 2048, images(1, 28, 28)),
    Case("WRN-16-4, 256, tf32", wide_resnet, 256, images(3, 32, 32)),
    Case("WRN-28-10, 128, bf16", lambda: wide_resnet(28, 10), 128, images(3, 32, 32), BF16),
    Case("ViT-S/16, 64, bf16", VisionTransformer, 64, images(3, 224, 224, classes=1000), BF16),
    Case(
        "ViT-B/16, 64, bf16",
        lambda: VisionTransformer(768, 12, 12),
        64,
        images(3, 224, 224, classes=1000),
        BF16,
    ),
    Case(
        "GPT-2, 16 x 512, bf16",
        lambda: LanguageModel(50304, 1024, 768, 12, 12, tied=True),
        16,
        text(512, 50257),
        BF16,
    ),
    Case(
        "GPT-2 medium, 16 x 512, bf16",
        lambda: LanguageModel(50304, 1024, 1024, 24, 16, tied=True),
        16,
        text(512, 50257),
        BF16,
    ),
    Case("LSTM, 256 x 64, tf32", Recurrent, 256, sequences),
]
