# SPDX-License-Identifier: Apache-2.0
from collections import namedtuple
from itertools import islice

import pytest
import torch
from scipy.stats import binomtest
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import make_private
from sfumato.training.data.tree import tensors as tensors_in

from .loops import LOSS, described

ALPHA = 1e-6
DATA = TensorDataset(torch.arange(40.0)[:, None], torch.zeros(40, dtype=torch.int64))
Pair = namedtuple("Pair", ["x", "extra"])


class Rows(Dataset):
    """Rows of any kind."""

    def __init__(self, row) -> None:
        self.row = row

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index):
        return self.row


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(40))


class OwnLoader(DataLoader):
    pass


def parts_of(loader, **more):
    module = more.pop("module", nn.Linear(1, 2))
    return make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        criterion=LOSS,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        public_size=40,
        generator=more.pop("generator", seeded(2)),
        **described(more),
    )


def drawn(parts, epochs=1):
    """The rows of each batch, with the step that belongs to it."""
    for _ in range(epochs):
        for x, y in parts.data_loader:
            parts.criterion(parts.module(x), y).backward()
            parts.optimizer.step()
            yield x.flatten().tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_is_in_each_batch_independently_at_the_stated_rate(shuffle):
    parts = parts_of(DataLoader(DATA, batch_size=8, shuffle=shuffle))
    batches = list(drawn(parts, epochs=60))
    assert len(batches) == 300 and parts.privacy.steps == 300
    counts = torch.tensor([len(batch) for batch in batches]).double()
    assert binomtest(int(counts.sum()), 300 * 40, 0.2).pvalue > ALPHA
    assert 4 < counts.var() < 9.5  # of a binomial: 6.4; of batches of one size: 0
    taken = torch.zeros(40)
    for batch in batches:
        assert len(set(batch)) == len(batch)
        taken[torch.tensor(batch, dtype=torch.int64)] += 1
    assert all(binomtest(int(count), 300, 0.2).pvalue > ALPHA for count in taken)


def test_no_sample_is_drawn_twice():
    parts = parts_of(DataLoader(DATA, batch_size=8))
    epochs = [list(drawn(parts)) for _ in range(3)]
    assert len({tuple(batch) for epoch in epochs for batch in epoch}) == 15


def test_workers_hand_over_the_same_batches():
    plain = parts_of(DataLoader(DATA, batch_size=8))
    settings = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True}
    working = parts_of(DataLoader(DATA, batch_size=8, **settings))
    assert working.data_loader.num_workers == 1 and working.data_loader.prefetch_factor == 3
    batches = [list(drawn(parts, epochs=2)) for parts in (plain, working)]
    assert batches[0] == batches[1]


def test_the_epoch_is_as_long_as_the_public_size_says():
    assert len(parts_of(DataLoader(DATA, batch_size=8)).data_loader) == 5
    assert len(parts_of(DataLoader(DATA, batch_size=8), expected_batch_size=40).data_loader) == 1
    assert len(parts_of(DataLoader(DATA, batch_size=6)).data_loader) == 7


# --- empty batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "shapes"),
    [
        ((torch.zeros(2, 3), 1), [(0, 2, 3), (0,)]),
        ({"x": torch.zeros(4, dtype=torch.int32), "text": "hello"}, [(0, 4)]),
        (Pair(torch.zeros(1), {"deep": [torch.zeros(5), 1.5]}), [(0, 1), (0, 5), (0,)]),
    ],
    ids=["tuple", "dict", "nested"],
)
def test_an_empty_batch_has_the_structure_of_any_other(row, shapes):
    loader = parts_of(DataLoader(Rows(row), batch_size=8), expected_batch_size=1e-9).data_loader
    filled = next(iter(DataLoader(Rows(row), batch_size=8)))
    loader = iter(loader)
    batch = next(loader)
    assert type(batch) is type(filled)
    assert [tuple(t.shape) for t in tensors_in(batch)] == shapes
    assert [t.dtype for t in tensors_in(batch)] == [t.dtype for t in tensors_in(filled)]
    assert not isinstance(batch, dict) or batch["text"] == []


def test_a_module_that_cannot_run_without_rows_never_has_to():
    class Reshaping(nn.Linear):
        def forward(self, x):
            assert len(x) and x.abs().sum() > 0  # it refuses zeros, too
            return super().forward(x.reshape(-1, x.numel() // len(x)))

    module, optimizer, criterion, loader, privacy = parts_of(
        DataLoader(DATA, batch_size=8), expected_batch_size=1e-9, module=Reshaping(1, 2)
    )
    x, y = next(iter(loader))
    criterion(module(x), y).backward()
    optimizer.step()
    assert privacy.steps == 1


def test_an_empty_batch_is_a_step_of_noise_alone():
    module, optimizer, criterion, loader, privacy = parts_of(
        DataLoader(DATA, batch_size=8), expected_batch_size=1e-9
    )
    for (x, y), _ in zip(loader, range(3), strict=False):
        assert len(x) == 0
        optimizer.zero_grad()
        out = module(x)
        assert out.shape == (0, 2)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        assert loss.item() == 0
        assert all(p.grad.isfinite().all() and p.grad.any() for p in module.parameters())
    assert privacy.steps == 3


def test_an_empty_batch_may_not_be_skipped():
    loader = parts_of(DataLoader(DATA, batch_size=8), expected_batch_size=1e-9).data_loader
    with pytest.raises(InvalidParameterError, match="An empty batch is a step"):
        for _x, _ in islice(loader, 5):
            continue


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: DataLoader(DATA, batch_size=8, sampler=WeightedRandomSampler([1.0] * 40, 40)),
            "sampler of its own",
        ),
        (
            lambda: DataLoader(DATA, batch_size=8, sampler=SubsetRandomSampler(range(10))),
            "sampler of its own",
        ),
        (
            lambda: DataLoader(DATA, batch_size=8, sampler=RandomSampler(DATA, replacement=True)),
            "sampler of its own",
        ),
        (
            lambda: DataLoader(DATA, batch_size=8, sampler=RandomSampler(DATA, num_samples=7)),
            "sampler of its own",
        ),
        (lambda: DataLoader(DATA, batch_size=8, sampler=list(range(40))), "sampler of its own"),
        (
            lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 8, False)),
            "batch_sampler of its own",
        ),
        (lambda: DataLoader(DATA, batch_sampler=[[0, 1], [2]]), "batch_sampler of its own"),
        (lambda: DataLoader(DATA, batch_size=None), "no batches at all"),
        (lambda: DataLoader(DATA, batch_size=8, drop_last=True), "drop_last"),
        (lambda: DataLoader(Stream(), batch_size=8), "IterableDataset"),
        (lambda: OwnLoader(DATA, batch_size=8), "must be a torch.utils.data.DataLoader itself"),
        (lambda: parts_of(DataLoader(DATA, batch_size=8)).data_loader, "already private"),
        (lambda: DataLoader(TensorDataset(torch.zeros(0, 1)), batch_size=8), "has no rows"),
        (
            lambda: DataLoader(
                DATA, batch_size=8, collate_fn=lambda rows: torch.cat([x for x, _ in rows] * 2)
            ),
            "collate_fn must return",
        ),
        (lambda: DataLoader(Rows("text"), batch_size=8), "collate_fn must return"),
    ],
    ids=[
        "weighted",
        "subset",
        "with replacement",
        "some",
        "list",
        "batch sampler",
        "list of batches",
        "no batches",
        "drop last",
        "stream",
        "own class",
        "private",
        "empty",
        "collate",
        "no tensors",
    ],
)
def test_loaders_with_other_ideas_are_refused(make, says):
    with pytest.raises(InvalidParameterError, match=says):
        next(iter(parts_of(make()).data_loader))
