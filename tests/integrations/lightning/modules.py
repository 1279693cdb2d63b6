# SPDX-License-Identifier: Apache-2.0
"""Lightning modules and runs that the tests share."""

from typing import Any

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.integrations.lightning import PrivateStrategy
from sfumato.testing import seeded

torch.set_num_threads(1)

ROWS, BATCH = 48, 12
WARNINGS = (
    "ignore:training_step logs",
    "ignore:You defined a `validation_step`",
    "ignore:Found .* module.s. in eval mode",
    "ignore:The number of training batches",
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec.*is deprecated",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",
    "ignore:Checkpoint directory",
    "ignore:GPU available",
    "ignore:.*was created with.*",
)


class Classifier(lightning.LightningModule):
    """A network of any kind; the batch is rows and labels."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(4, 3) if network is None else network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self(x)
        self.log("val_loss", F.cross_entropy(scores, y), prog_bar=True)
        self.log("val_accuracy", (scores.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rows(*shape: int, count: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random rows and labels."""
    source = torch.Generator().manual_seed(seed)
    shape = shape or (4,)
    return torch.randn(count, *shape, generator=source), torch.randint(0, 3, (count,), generator=source)


def loader(data: Any = None, **options: Any) -> DataLoader[Any]:
    """Return a training loader."""
    data = TensorDataset(*rows()) if data is None else data
    return DataLoader(data, **{"batch_size": BATCH, "shuffle": True} | options)


def public() -> DataLoader[Any]:
    """Return validation data that are other rows."""
    return DataLoader(TensorDataset(*rows(count=6, seed=1)), batch_size=6)


def private(**keywords: Any) -> PrivateStrategy:
    """Return a strategy with seeded noise."""
    given = {"noise_multiplier": 1.0, "delta": 1e-5, "public_size": ROWS, "generator": seeded(1)}
    return PrivateStrategy(**given | keywords)


def trainer(strategy: PrivateStrategy, folder: Any, **options: Any) -> lightning.Trainer:
    """Return a quiet trainer of two epochs, four steps each."""
    given = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    given |= {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return lightning.Trainer(strategy=strategy, default_root_dir=folder, **given | options)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have the same weights, bit for bit."""
    mine, its = one.state_dict(), other.state_dict()
    return list(mine) == list(its) and all(torch.equal(mine[name], its[name]) for name in mine)
