# SPDX-License-Identifier: Apache-2.0
"""A run in a process of its own, for tests to kill, resume and start several of: `python runs.py '{...}'`."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import Dataset, TensorDataset, random_split

from sfumato import Ledger
from sfumato.audit import Canaries
from sfumato.errors import SfumatoError
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    DpSgd,
    NoisyStep,
    PoissonSampling,
    PrivateGradients,
    Runtime,
    ShuffledBatches,
    Trainer,
    distributed,
)
from sfumato.training.payment import Payment
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.sharding import states

STEPS = 12


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def mechanism(adaptive, shuffled=False, steps=STEPS, group_size=1, clip_norm=0.5):
    adapt = AdaptiveClip(count_noise_multiplier=8.0) if adaptive else None
    sampling = PoissonSampling(sampling_rate=0.3)
    if shuffled:
        sampling = ShuffledBatches(batch_size=13, public_size=60)
    return DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=clip_norm, adaptive=adapt), group_size=group_size),
        sampling=sampling,
        noise=[(2.0, 5), (3.0, steps - 5)],
        relation="zero-out" if shuffled else "add-remove",
    )


def network(dropout, dtype):
    torch.manual_seed(3)
    layers = [
        nn.Linear(4, 6, dtype=dtype),
        nn.Tanh(),
        nn.Dropout(0.3 if dropout else 0.0),
        nn.Linear(6, 3, dtype=dtype),
    ]
    return nn.Sequential(*layers)


def loss_of(asked):
    """Return the loss; it may be told to fail on one rank, at one of its calls."""
    calls = []

    def loss(model, x, y):
        calls.append(1)
        if asked.get("fail_rank") == int(os.environ.get("RANK", "0")) and len(calls) > 8:
            raise RuntimeError("this rank fails")
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    return loss


def schedule_of(asked):
    def factor(step):
        if step == asked.get("die_at"):
            die()
        return 0.9**step

    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class Lazy(Dataset):
    """Rows that are computed when they are asked for; `noisy` ones differ each time."""

    def __init__(self, x, y, order=None, noisy=False):
        self._x, self._y, self._noisy = x, y, noisy
        self._order = torch.arange(len(x)) if order is None else order

    def __len__(self):
        return len(self._order)

    def __getitem__(self, index):
        place = self._order[index]
        x = self._x[place]
        return (x + torch.randn_like(x) if self._noisy else x), self._y[place]


def data_of(kind, x, y):
    """Return the data of this rank: all ranks give the same, or what users get wrong."""
    rank = int(os.environ.get("RANK", "0"))
    own = torch.Generator().manual_seed(100 + rank)  # as if nobody had shared a seed
    order = torch.randperm(60, generator=own)
    kinds = {
        "tensors": lambda: (x, y),
        "lazy": lambda: Lazy(x, y),
        "split": lambda: random_split(TensorDataset(x, y), [50, 10], generator=own)[0],
        "shuffled": lambda: (x[order], y[order]),
        "one row": lambda: (torch.cat([x[:59], x[59:] + 1e-6 * rank]), y),
        "longer": lambda: (x[: 60 - rank], y[: 60 - rank]),
        "lazy shuffled": lambda: Lazy(x, y, order),
        "lazy split": lambda: random_split(Lazy(x, y), [50, 10], generator=own)[0],
        "noisy": lambda: Lazy(x, y, noisy=True),
    }
    return kinds[kind]()


def owners_of(asked):
    if "owners" not in asked:
        return {}
    rank = int(os.environ.get("RANK", "0"))
    owners = torch.arange(60) // 3
    return {"owners": owners.roll(rank) if asked["owners"] == "other" else owners, "contribution_bound": 2}


def make(asked):
    """Return a trainer as `asked` says."""
    dtype = getattr(torch, asked.get("dtype", "float32"))
    draws = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 4, generator=draws, dtype=dtype), torch.arange(60) % 3
    account = Ledger(asked["ledger"]).account("data") if "ledger" in asked else None
    seed = asked.get("seed")
    model = network(asked.get("dropout", True), dtype)
    return Trainer(
        sharded(model, asked.get("timeout", 60.0)) if asked.get("sharded") else model,
        data_of(asked.get("data", "tensors"), x, y),
        **owners_of(asked),
        mechanism=mechanism(
            asked.get("adaptive", True),
            asked.get("shuffled", False),
            asked.get("steps", STEPS),
            asked.get("group_size", 1),
            0.5 + asked.get("own_clip_norm", 0.0) * int(os.environ.get("RANK", "0")),
        ),
        audit=Canaries(count=asked["canaries"]) if "canaries" in asked else None,
        loss=loss_of(asked),
        public_size=60,
        optimizer=lambda p: torch.optim.Adam(p, lr=asked.get("learning_rate", 0.05)),
        schedule=schedule_of(asked),
        ema_decay=0.8,
        evaluation=(x, y),
        evaluate_every=4,
        delta=1e-5,
        account=account,
        purpose=None if account is None else "a test",
        folder=asked.get("folder"),
        checkpoint_every=3,
        generator=None if seed is None else seeded(seed),
        runtime=Runtime(timeout=asked.get("timeout", 60.0), microbatch_size=asked.get("microbatch_size")),
    )


def die_while_saving(count):
    """Be killed at the `count`-th time a file is brought to disk, before it takes the old one's place."""
    brought = os.fsync
    left = [count]

    def fsync(handle):
        left[0] -= 1
        if not left[0]:
            die()
        brought(handle)

    os.fsync = fsync


PLACES = {
    "claim": (Payment, "claim"),  # a checkpoint is on disk, under another name
    "promote": (RunFolder, "promote"),  # ... and the ledger has its claim
    "commit": (Payment, "commit"),  # the last checkpoint is there
    "finish": (RunFolder, "finish"),  # ... and committed, but no weights are handed over
}


def die_before(place, count):
    """Be killed just before a function of the library is called for the `count`-th time."""
    kind, name = PLACES[place]
    real, left = getattr(kind, name), [count]

    def dying(self, *given, **said):
        left[0] -= 1
        if not left[0]:
            die()
        return real(self, *given, **said)

    setattr(kind, name, dying)


def custom_loop(asked):
    """Take steps with PrivateGradients alone, each rank on its share of the same batches."""
    model = network(False, torch.float64)
    private = PrivateGradients(
        model,
        clipping=mechanism(True).step.clipping,
        noise_multiplier=1.0,
        expected_batch_size=8,
        generator=seeded(asked["seed"]),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    draws = torch.Generator().manual_seed(5)
    for size in (7, 0, 1, 9):
        x, y = torch.randn(size, 4, generator=draws, dtype=torch.float64), torch.arange(size) % 3
        mine = slice(distributed.rank(), None, distributed.size())
        private.backward(x[mine], y[mine])
        optimizer.step()
    return model


def sharded(model, timeout):
    """Cut a model into a part for each rank, if there are several."""
    distributed.join(torch.device("cpu"), timeout=timeout)
    if distributed.started():
        fully_shard(model[3])
        fully_shard(model)
    return model


def train_one(asked):
    trainer = make(asked)
    if "die_in_save" in asked:
        die_while_saving(asked["die_in_save"])
    if "die_before" in asked:
        die_before(*asked["die_before"])
    return trainer.fit(resume=asked.get("resume", False)).model


def attempt(asked):
    """Return the weights of a run, or the name of the error that it is expected to end with."""
    try:
        return states.gathered((custom_loop if asked.get("custom") else train_one)(asked).state_dict())
    except SfumatoError as error:
        if not asked.get("refused"):
            raise
        return {"error": type(error).__name__}


def main(asked):
    """Run one, or several one after the other."""
    torch.set_num_threads(1)
    several = asked if isinstance(asked, list) else [asked]
    for number, one in enumerate(several):
        outcome = attempt(one)
        if "out" in one:
            torch.save(outcome, Path(one["out"]) / f"run{number}-rank{distributed.rank()}.pt")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
