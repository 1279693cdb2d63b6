# SPDX-License-Identifier: Apache-2.0
"""Small private loops, and the plain loop over examples that they must agree with."""

from dataclasses import fields

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.testing import seeded
from sfumato.training import Charge, LoopSettings, make_private

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

NO_NOISE = 1e-12  # a noise multiplier that leaves the sums as they are
CLIP = 0.7
SIZE = 40
LOSS = nn.CrossEntropyLoss(reduction="none")


class Tied(nn.Module):
    """Uses one weight twice, and changes an output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(self.first(x).relu_()).tanh())


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.linear = nn.Linear(5, 3)

    def forward(self, x, *, scale=1.0):
        return self.linear(self.embedding(x)).mean(1) * scale


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.position = nn.Parameter(torch.randn(4, 6))
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(self.layer(x + self.position).mean(1))


class ByValue(nn.Module):
    """Does what cannot be done for isolated rows: looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        kept = [row * 2 if row[0].item() > 0 else row for row in x]
        return self.linear(torch.stack(kept))


class Centered(nn.Module):
    """Mixes the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x - x.mean(0))


def numbers(*shape):
    return lambda n: torch.randn(n, *shape, dtype=torch.float64)


def words(n):
    return torch.randint(7, (n, 4))


def mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 3))


MODULES = {
    "linear": (lambda: nn.Linear(6, 3), numbers(6)),
    "mlp": (mlp, numbers(6)),
    "tied and in place": (Tied, numbers(6)),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)),
        numbers(5, 6),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        numbers(1, 6, 6),
    ),
    "text": (Text, words),
    "recurrent": (Recurrent, numbers(4, 4)),
    "attention": (Attention, numbers(4, 6)),
}


def data_of(kind, size=SIZE):
    torch.manual_seed(3)
    module = MODULES[kind][0]().double()
    return module, TensorDataset(MODULES[kind][1](size), torch.randint(3, (size,)))


def private(module, data, *, batch_size=8, lr=0.0, noise_multiplier=NO_NOISE, criterion=LOSS, **more):
    return make_private(
        module=module,
        optimizer=more.pop("optimizer", None) or torch.optim.SGD(module.parameters(), lr=lr),
        criterion=criterion,
        data_loader=more.pop("data_loader", None) or DataLoader(data, batch_size=batch_size),
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP,
        public_size=more.pop("public_size", SIZE),
        generator=more.pop("generator", seeded(1)),
        **described(more),
    )


def described(options):
    """Return options of `make_private`, with its settings and its charge in their objects."""
    made = {"settings": LoopSettings, "charge": Charge}
    own = {
        name: {each.name: options[each.name] for each in fields(kind) if each.name in options}
        for name, kind in made.items()
    }
    rest = {name: value for name, value in options.items() if not any(name in part for part in own.values())}
    return rest | {name: made[name](**part) for name, part in own.items()}


def first_batch(loader):
    return next(iter(loader))


def clipped_sum(module, x, y, loss=F.cross_entropy):
    """The plain loop over examples: each one's gradient clipped to CLIP, then added up."""
    return clipped_loop(module, len(x), lambda m, i: loss(m(x[i : i + 1]), y[i : i + 1]))


def clipped_loop(module, rows, loss):
    """Each row's gradient of `loss(module, row)`, clipped to CLIP, then added up."""
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters() if p.requires_grad}
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    training = module.training
    module.eval()
    for part in module.modules():
        part.training = isinstance(part, nn.RNNBase)
    for i in range(rows):
        grads = torch.autograd.grad(loss(module, i).sum(), list(parameters.values()))
        size = torch.stack([g.norm() for g in grads]).norm()
        for name, grad in zip(parameters, grads, strict=True):
            total[name] += grad * min(1.0, CLIP / max(float(size), 1e-300))
    module.train(training)
    return total


def same(module, wanted, divided_by):
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name] / divided_by, rtol=1e-9, atol=1e-9)
