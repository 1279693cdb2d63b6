# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from sfumato.errors import InvalidParameterError
from sfumato.integrations.lightning.rows import PrivateBatch, StepTokens, refuse_shared_rows, rows_of
from sfumato.training.data.units import open_rows

DATA = TensorDataset(torch.arange(6.0)[:, None], torch.arange(6))


class Listed(Dataset):
    user_ids = torch.tensor([0, 0, 1, 1])

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return {"x": torch.full((2,), float(number)), "y": number}


def taken(loader, *numbers):
    (batch,) = open_rows(rows_of(loader)).take(torch.tensor(numbers))
    return batch["batch"]


def test_rows_have_the_form_in_which_the_loader_hands_them_over():
    loader = DataLoader(DATA, batch_size=6)
    mine, its = taken(loader, *range(6)), next(iter(loader))
    assert type(mine) is type(its) is list
    assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))
    listed = DataLoader(Listed(), batch_size=4)
    mine, its = taken(listed, *range(4)), next(iter(listed))
    assert list(mine) == list(its) and all(torch.equal(mine[name], its[name]) for name in its)


def test_collate_fn_sees_one_example_at_a_time():
    seen = []

    def collate(examples):
        seen.append(len(examples))
        return torch.stack([x for x, _ in examples]), {"y": torch.tensor([int(y) for _, y in examples])}

    x, y = taken(DataLoader(DATA, batch_size=3, collate_fn=collate), 4, 1)
    assert set(seen) == {1} and x.tolist() == [[4.0], [1.0]] and y["y"].tolist() == [4, 1]


def test_a_collate_fn_without_a_row_for_each_example_is_refused():
    loader = DataLoader(DATA, batch_size=3, collate_fn=lambda examples: {"mean": torch.tensor(1.0)})
    with pytest.raises(InvalidParameterError, match="one row for each example"):
        taken(loader, 0)


def test_owners_that_the_data_declare_are_kept():
    assert rows_of(DataLoader(Listed(), batch_size=2)).user_ids is Listed.user_ids


@pytest.mark.parametrize(
    ("loader", "word"),
    [
        (DataLoader(DATA, batch_size=2, sampler=WeightedRandomSampler([1.0] * 6, 6)), "sampler"),
        (DataLoader(DATA, batch_size=2, drop_last=True), "drop_last"),
        (DataLoader(DATA, batch_size=None), "batch_sampler"),
        ([DATA], "list"),
        ({"a": DataLoader(DATA, batch_size=2)}, "dict"),
    ],
)
def test_loaders_that_form_batches_in_their_own_way_are_refused(loader, word):
    with pytest.raises(InvalidParameterError, match=word):
        rows_of(loader)


def test_an_epoch_is_objects_without_content():
    tokens = StepTokens(3)
    assert len(tokens) == 3 and [type(token) for token in tokens] == [PrivateBatch] * 3
    tokens.begin = 2
    assert len(list(tokens)) == 1 and len(list(tokens)) == 3  # a resumed epoch, and the next one


@pytest.mark.parametrize(
    "use", [lambda b: b[0], len, list, lambda b: b.shape, lambda b: b.to("cpu"), lambda b: tuple(b)]
)
def test_whatever_is_asked_of_a_batch_is_refused(use):
    with pytest.raises(InvalidParameterError, match="a hook reads the batch"):
        use(PrivateBatch())
    assert repr(PrivateBatch()) == "<a private batch>"


SPLIT = random_split(DATA, [4, 2], torch.Generator().manual_seed(0))
X, Y = DATA.tensors


@pytest.mark.parametrize(
    ("private", "shown", "shared"),
    [
        (DATA, DATA, True),
        (DATA, SPLIT[0], True),
        (SPLIT[0], SPLIT[1], False),
        (Subset(DATA, [0, 1, 2]), Subset(DATA, [2, 3]), True),
        (Subset(Subset(DATA, [5, 4, 3]), [0]), Subset(DATA, [5]), True),
        (Subset(Subset(DATA, [5, 4, 3]), [0]), Subset(DATA, [0]), False),
        (TensorDataset(X[:4], Y[:4]), TensorDataset(X[4:], Y[4:]), False),
        (TensorDataset(X[:4], Y[:4]), TensorDataset(X[3:], Y[3:]), True),
        (TensorDataset(X, Y), TensorDataset(X.clone(), Y.clone()), False),
        (Listed(), DATA, False),
        (DATA, ConcatDataset([Listed(), DATA]), True),
        (ConcatDataset([Listed(), DATA]), SPLIT[0], True),
        (Subset(ConcatDataset([Listed(), DATA]), [0, 4]), Subset(DATA, [0]), True),
        (Subset(ConcatDataset([Listed(), DATA]), [0, 4]), Subset(DATA, [1]), False),
    ],
)
def test_shared_rows_are_found(private, shown, shared):
    if shared:
        with pytest.raises(InvalidParameterError, match="rows of the private training data"):
            refuse_shared_rows(private, shown)
    else:
        refuse_shared_rows(private, shown)
