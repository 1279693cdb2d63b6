# SPDX-License-Identifier: Apache-2.0
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from sfumato.federated import SecureSum
from sfumato.federated.flower import secure_sum_mod

# What the client agrees to. It is code and no setting: settings of a run come from those who start it.
ROUNDS = 10
SUMS = SecureSum(dimension=650, clip_norm=1.0, noise_multiplier=2.0, cohort=8, least_survivors=6)

app = ClientApp(mods=[secure_sum_mod(SUMS, rounds=ROUNDS)])


def make_model() -> nn.Module:
    return nn.Linear(64, 10)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def own_rows(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = (part[:1437] for part in digits())
    mine = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return images[mine], labels[mine]


@app.train()
def learn(message: Message, context: Context) -> Message:  # an ordinary app: arrays in, arrays out
    model, (images, labels) = make_model(), own_rows(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        for batch in torch.randperm(len(labels)).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
