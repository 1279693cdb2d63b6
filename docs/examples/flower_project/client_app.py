# SPDX-License-Identifier: Apache-2.0
import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import nn

from sfumato.federated import LocalTraining
from sfumato.federated.flower import client_app


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def own_rows(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = (part[:1437] for part in digits())
    mine = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return images[mine], labels[mine]


app = client_app(make_model(), own_rows, LocalTraining(epochs=3, learning_rate=0.3))
