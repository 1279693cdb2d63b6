# SPDX-License-Identifier: Apache-2.0
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate
from transformers import BatchEncoding
from transformers.modeling_outputs import SequenceClassifierOutput

from sfumato.testing import seeded
from sfumato.training import (
    Clipping,
    DpSgd,
    NoisyStep,
    PassSettings,
    PoissonSampling,
    PrivateGradients,
    Trainer,
    cached_features,
)
from sfumato.training.adapters.data_loader import PoissonBatches, PoissonLoader
from sfumato.training.data import rows, tree
from sfumato.training.data.units import Units

Pair = namedtuple("Pair", ["x", "y"])


class Checked(Pair):
    """A named tuple whose constructor takes other arguments, as `PackedSequence` does."""

    def __new__(cls, both):
        return super().__new__(cls, both, both)


@dataclass(frozen=True, slots=True)
class Record:
    x: Any
    y: Any


class Tokens(UserDict):
    pass


CONTAINERS = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"x": x, "y": y},
    "OrderedDict": lambda x, y: OrderedDict(x=x, y=y),
    "defaultdict": lambda x, y: defaultdict(list, x=x, y=y),
    "UserDict": lambda x, y: Tokens(x=x, y=y),
    "BatchEncoding": lambda x, y: BatchEncoding({"x": x, "y": y}),
    "ModelOutput": lambda x, y: SequenceClassifierOutput(loss=x, logits=y),
    "named tuple": Pair,
    "dataclass": Record,
}
containers = st.sampled_from(sorted(CONTAINERS))
nested = st.recursive(
    st.integers(0, 9).map(lambda i: torch.tensor([i])),
    lambda inner: st.builds(lambda kind, x, y: CONTAINERS[kind](x, y), containers, inner, inner),
    max_leaves=6,
)


def in_order(value):
    return [int(t) for t in tree.tensors(value)]


@given(nested)
def test_mapping_visits_every_tensor_in_order_and_keeps_the_structure(value):
    before = in_order(value)
    changed = tree.mapped(value, lambda t: t + 10)
    assert in_order(changed) == [i + 10 for i in before]
    assert tree.structure(changed) == tree.structure(value)
    assert in_order(value) == before  # what was given is as it was


@given(nested)
def test_refilling_puts_tensors_where_walking_finds_them(value):
    new = [torch.tensor([100 + i]) for i, _ in enumerate(tree.tensors(value))]
    assert all(a is b for a, b in zip(tree.tensors(tree.refilled(value, new)), new, strict=True))


@pytest.mark.parametrize("kind", CONTAINERS)
def test_each_container_keeps_its_type_and_its_names(kind):
    value = CONTAINERS[kind](torch.tensor([1]), {"inner": torch.tensor([2])})
    changed = tree.mapped(value, lambda t: t * 2)
    assert type(changed) is type(value) and in_order(changed) == [2, 4]
    if kind == "ModelOutput":
        assert changed.loss.item() == 2 and changed["loss"].item() == 2
    elif hasattr(value, "keys"):
        assert list(changed) == list(value)
    elif hasattr(value, "x"):
        assert changed.x.item() == 2


def test_a_named_tuple_with_a_constructor_of_its_own_is_rebuilt():
    changed = tree.mapped(Checked(torch.tensor([1])), lambda t: t + 1)
    assert type(changed) is Checked and in_order(changed) == [2, 2]


def test_a_mapping_that_cannot_be_written_to_becomes_a_dict():
    assert tree.mapped(MappingProxyType({"a": torch.tensor([1])}), int) == {"a": 1}


def test_texts_of_all_rows_do_not_travel_with_some_of_them():
    texts = ["who", "else", "is here"]
    encoding = BatchEncoding({"ids": torch.arange(3)[:, None]}, encoding=texts, n_sequences=1)
    assert encoding.encodings == texts
    assert rows.take(encoding, slice(0, 1)).encodings is None


def test_other_leaves_stay_and_are_no_tensors():
    value = ({"a": "text"}, None, 3, torch.tensor([1]))
    assert list(tree.leaves(value))[:3] == ["text", None, 3] and in_order(value) == [1]
    assert tree.mapped(value, int) == ({"a": "text"}, None, 3, 1)


def test_other_names_types_or_order_are_another_structure():
    x, y = torch.tensor([1]), torch.tensor([2])
    kinds = [CONTAINERS[kind](x, y) for kind in CONTAINERS]
    others = [{"y": x, "x": y}, {"x": x, "z": y}, (x, (y,)), (x, None), (x,)]
    found = {tree.structure(value) for value in [*kinds, *others]}
    assert len(found) == len(kinds) + len(others)


# --- those who walk through it ------------------------------------------------------------------------------

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


class Silent:
    """A noise source that adds nothing."""

    generator = seeded(0)

    def add_(self, sums, *, stddev, step):
        pass


def of_tuple(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def of_container(kind):
    def loss(model, batch):
        assert type(batch) is type(CONTAINERS[kind](X, Y))
        x, y = tree.tensors(batch)
        return of_tuple(model, x, y)

    return loss


def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def gradient(loss, *batch, engine):
    linear = model()
    private = PrivateGradients(
        linear,
        loss,
        clip_norm=0.5,
        noise_multiplier=1,
        expected_batch_size=1,
        noise=Silent(),
        passes=PassSettings(engine=engine),
    )
    private.backward(*batch)
    return linear.weight.grad


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_gradients_do_not_depend_on_the_container_of_a_batch(kind, engine):
    found = gradient(of_container(kind), CONTAINERS[kind](X, Y), engine=engine)
    assert torch.allclose(found, gradient(of_tuple, X, Y, engine="functional"), atol=1e-6)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_training_hands_over_rows_in_the_container_of_the_data(kind):
    run = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=1.0),
        noise=[(1.0, 2)],
        relation="add-remove",
    )
    data = (CONTAINERS[kind](X, Y),)  # of one part
    options = {"public_size": 6, "delta": 1e-5, "evaluation": data, "evaluate_every": 1}
    trainer = Trainer(model(), data, mechanism=run, loss=of_container(kind), generator=seeded(0), **options)
    plain = Trainer(
        model(), (X, Y), mechanism=run, loss=of_tuple, generator=seeded(0), **options | {"evaluation": (X, Y)}
    )
    assert torch.allclose(trainer.fit().model.weight, plain.fit().model.weight, atol=1e-6)


@pytest.mark.parametrize("kind", ["dict", "OrderedDict", "UserDict", "BatchEncoding", "ModelOutput"])
def test_a_mapping_of_tensors_is_data_by_itself(kind):
    units = Units(CONTAINERS[kind](X, Y))
    assert units.num_units == 6  # rows, and not keys
    (batch,) = units.take(torch.tensor([1, 4])).rows
    assert torch.equal(next(tree.tensors(batch)), X[[1, 4]])


@pytest.mark.parametrize("kind", CONTAINERS)
def test_blank_rows_and_augmented_ones_keep_the_container(kind):
    data = (CONTAINERS[kind](X, Y),)
    units = Units(data, augment=lambda batch, draws: tree.mapped(batch, lambda t: t + 1), views=2)
    (viewed,) = units.take(torch.tensor([0, 1]), seeded(0)).rows
    assert tree.structure(viewed) == tree.structure(data[0]) == tree.structure(units.blank(2)[0])
    assert torch.equal(next(tree.tensors(viewed)), X[[0, 0, 1, 1]] + 1)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_features_keep_the_container_of_what_goes_with_them(kind):
    backbone = nn.Linear(4, 2).requires_grad_(False)
    features, rest = cached_features(backbone, (X, CONTAINERS[kind](Y, Y)), batch_size=4)
    assert features.shape == (6, 2) and tree.structure(rest) == tree.structure(CONTAINERS[kind](Y, Y))
    assert torch.equal(next(tree.tensors(rest)), Y)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_loader_hands_over_empty_batches_in_the_same_container(kind):
    def collate(examples):
        x, y = default_collate(examples)
        return CONTAINERS[kind](x, y)

    loader = DataLoader(TensorDataset(X, Y), batch_size=1, collate_fn=collate)
    batches = PoissonBatches(Nobody(), steps_per_epoch=1, batches_per_step=1)
    (batch,) = PoissonLoader(loader, batches, batches_per_step=1, watcher=Watcher())
    assert tree.structure(batch) == tree.structure(CONTAINERS[kind](X, Y))
    assert [len(t) for t in tree.tensors(batch)] == [0, 0]


class Nobody:
    """A sampler that samples nobody."""

    def batch(self, step):
        return torch.zeros(0, dtype=torch.int64)


class Watcher:
    def begin(self):
        return 1

    def drawing(self):
        return nullcontext()

    def hand_over(self, loop, place, batch):
        pass

    def end(self, loop):
        pass


@dataclass(frozen=True)
class Named:
    x: object
    name: str = "a"


def test_every_leaf_is_changed_in_order():
    seen, one, two = [], torch.zeros(2), torch.ones(2)
    value = {"a": [one, "text"], "b": Pair(None, Named(two))}
    found = tree.changed(value, lambda leaf: seen.append(leaf) or len(seen))
    assert found == {"a": [1, 2], "b": Pair(3, Named(4, 5))}
    assert seen[0] is one and seen[1:3] == ["text", None] and seen[3] is two and seen[4] == "a"
