"""Two attacks on networks, with and without differential privacy: draw whom they know, and guess secrets.

Model inversion draws the faces that a network tells apart; attribute inference guesses a column of a row that
is kept secret. Both succeed against networks trained as usual; against private ones they do no better
than somebody who knows only the population. The digits ship with scikit-learn; the patients are invented.
"""

from datetime import datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.audit.models.attribute_inference import Attribute, infer_attribute
from sfumato.audit.models.inversion import invert, score_inversion
from sfumato.audit.models.pictures import gallery
from sfumato.datasets import load
from sfumato.training import train

torch.set_num_threads(1)
PEOPLE, BOUNDS, VALUES = 40, (0.0, 1.0), 3
seed = torch.Generator().manual_seed(0)  # of what is invented here; the noise comes from the operating system


def network(inputs: int, classes: int) -> nn.Module:
    torch.manual_seed(0)  # of the first weights
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, classes))


def train_as_usual(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train_privately(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    settings = dict(public_size=len(x), expected_batch_size=len(x) / 4, epochs=20, learning_rate=0.3)
    return train(model, (x, y), epsilon=1, delta=1e-4, progress=False, **settings).model


# 1. A lock that opens to 40 people: one picture each (digits stand for faces), and a class for each person.
digits = load("digits")
chosen = torch.randperm(len(digits.train), generator=seed)[:PEOPLE]
faces, people = digits.train.features[chosen], torch.arange(PEOPLE)
average = digits.test.features.mean(0)  # what anybody may know: how such pictures look
drawings = {"in the lock": faces}
for name, train_network in {"trained as usual": train_as_usual, "epsilon 1": train_privately}.items():
    lock = train_network(network(64, PEOPLE), faces, people)
    drawings[name] = invert(lock, labels=people, shape=(1, 8, 8), bounds=BOUNDS, expected=average)
    score = score_inversion(
        drawings[name], labels=people, train=(faces, people), expected=average, bounds=BOUNDS
    )
    print(f"{name}: {score.statement()}\n")

folder = Path("runs") / f"attacks-{datetime.now():%Y%m%d-%H%M%S}"
folder.mkdir(parents=True)
(folder / "inversion.svg").write_text(gallery({name: rows[:10] for name, rows in drawings.items()}))
print(f"The first ten, as they are and as they were drawn: {folder / 'inversion.svg'}\n")


# 2. A table of patients: ten measurements, one of three genotypes, and which of three doses they were given.
def patients(count: int) -> tuple[Tensor, Tensor]:
    measured = torch.randn(count, 10, generator=seed)
    genotype = torch.randint(VALUES, (count,), generator=seed)
    needed = measured[:, 0] + genotype - 1 + torch.randn(count, generator=seed)
    dose = torch.bucketize(needed, torch.tensor([-1.0, 1.0]))
    return torch.cat([measured, F.one_hot(genotype, VALUES)], 1), dose


members, outsiders, owned = patients(800), patients(2000), patients(2000)
secret = Attribute.one_hot([10, 11, 12])
for name, train_network in {"trained as usual": train_as_usual, "epsilon 1": train_privately}.items():
    model = train_network(network(13, 3), *members)
    found = infer_attribute(model, members, outsiders, population=owned, attribute=secret)
    accuracy = (model(outsiders[0]).argmax(1) == outsiders[1]).float().mean()
    print(f"{name}: {found.statement()} The dose is predicted right for {accuracy:.0%} of outsiders.\n")
