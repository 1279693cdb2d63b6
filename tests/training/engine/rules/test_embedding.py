# SPDX-License-Identifier: Apache-2.0
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import UnsupportedModelError, UnsupportedUseError
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.rules.embedding import EmbeddingOp

sizes = st.integers(1, 6)
# The fixture is a pure function, so that it may be shared by all examples.
any_shape = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def squares(model, *batch):
    y = model(*batch).flatten(1)
    return y.square().sum(1) + y.sum(1)


def words(*shape, count=7):
    """Tokens of few kinds, so that rows repeat them."""
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


@any_shape
@given(st.lists(sizes, max_size=2), sizes, sizes, st.sampled_from([None, 0, -1]))
def test_embedding_agrees_with_the_loop_for_any_shape(agrees, steps, count, features, padding_idx):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(count, features, padding_idx=padding_idx), nn.Tanh()).double()
    agrees(model, squares, words(4, *steps, count=count))


class Language(nn.Module):
    """Tokens and their positions; the output layer is the table itself if `tied`."""

    def __init__(self, *, tied=False, positions_with_batch_axis=False):
        super().__init__()
        self.words, self.positions, self.head = nn.Embedding(7, 3), nn.Embedding(9, 3), nn.Linear(3, 7)
        self.with_batch_axis = positions_with_batch_axis
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        places = self.positions(places[None] if self.with_batch_axis else places)
        return self.head(torch.tanh(self.words(tokens) + places))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("with_batch_axis", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_positions_that_all_rows_share_agree(agrees, steps, with_batch_axis, tied):
    model = Language(tied=tied, positions_with_batch_axis=with_batch_axis).double()
    agrees(model, squares, words(4, steps))


class Counted(nn.Module):
    """A table whose padding row is counted from the end."""

    def __init__(self, function):
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 3))
        self.function = function

    def forward(self, tokens):
        return self.function(tokens, self.table, padding_idx=-2)


@pytest.mark.parametrize("function", [F.embedding, F.embedding_bag], ids=["single", "bag"])
def test_a_padding_row_counted_from_the_end_agrees(agrees, function):
    agrees(Counted(function).double(), squares, words(4, 9))


class Repeated(nn.Module):
    """The same positions for all rows, one of them twice."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(7, 3), nn.Embedding(9, 3)

    def forward(self, tokens):
        return self.words(tokens) * self.positions(torch.tensor([1, 4, 1]))


def test_shared_positions_that_repeat_agree(agrees):
    agrees(Repeated().double(), squares, words(4, 3))


class HeadFirst(Language):
    """The table is a linear map before it is looked up."""

    def forward(self, tokens):
        return self.head(tokens[:, :3].to(self.head.weight.dtype))[:, None, :3] * self.words(tokens)


@pytest.mark.parametrize("model", [Language, HeadFirst])
def test_a_tied_table_is_never_built_for_each_unit(agrees, model):
    agrees(model(tied=True).double(), squares, words(4, 6))
    names = ["words.weight", "head.bias"]
    with patch.object(EmbeddingOp, "per_unit", side_effect=AssertionError("a table for each unit")):
        run = BookKeeping(model(tied=True), squares, keep_bytes=0).run((words(4, 6),))
        run.squared_norms([names])
        run.weighted_sums([names], torch.ones(1, 4))


class Thrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 3)

    def forward(self, tokens):
        return self.words(tokens) * self.words(tokens.flip(1))[:, :1] - self.words(torch.arange(5) % 2)


def test_a_table_used_three_times_agrees(agrees):
    agrees(Thrice().double(), squares, words(4, 5))


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 3)

    def forward(self, tokens):
        return self.words(tokens.T).relu_().transpose(0, 1)


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_rows_on_the_second_axis_agree(agrees, steps):
    agrees(TimeFirst().double(), squares, words(4, steps))


@pytest.mark.parametrize(
    "options",
    [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}],
    ids=lambda o: next(iter(o)),
)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_options_that_mix_examples_or_change_the_table_are_refused_by_name(layer, options):
    with pytest.raises(UnsupportedModelError, match=f"'weight' has {next(iter(options))} set"):
        BookKeeping(layer(7, 3, **options), squares).run((words(4, 2),))


class Bags(nn.Module):
    """Bags as a rectangle of tokens, or as a list of tokens with offsets: bags of 2, 0 and 3 tokens."""

    def __init__(self, *, ragged, weighted=False, **options):
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 3, **options)
        self.ragged, self.weighted = ragged, weighted

    def forward(self, tokens, weights):
        weights = weights if self.weighted else None
        if not self.ragged:
            return self.bag(tokens, per_sample_weights=weights)
        offsets = torch.tensor([0, 2, 2, 5] if self.bag.include_last_offset else [0, 2, 2])
        each = [
            self.bag(row, offsets, weights if weights is None else weights[i]) for i, row in enumerate(tokens)
        ]
        return torch.stack(each)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("padding_idx", [None, 1, -7])
@pytest.mark.parametrize("last", [False, True])
def test_bags_agree(agrees, ragged, mode, padding_idx, last):
    torch.manual_seed(0)
    options = {"mode": "mean" if mode == "mean" else "sum", "padding_idx": padding_idx}
    model = Bags(ragged=ragged, weighted=mode == "weighted", include_last_offset=last and ragged, **options)
    agrees(model.double(), squares, words(4, 5), torch.randn(4, 5).double())


def test_bags_chosen_by_a_mask_are_left_to_the_reference():
    def chosen(model, tokens):
        return squares(model, tokens[tokens > 2][None])

    with pytest.raises(UnsupportedUseError, match="index by a mask"):
        BookKeeping(nn.EmbeddingBag(7, 3), chosen).run((words(4, 5),))


def test_a_bag_of_nothing_but_padding_has_a_zero_gradient():
    run = BookKeeping(nn.EmbeddingBag(7, 3, padding_idx=2), squares).run((torch.tensor([[2, 2], [2, 1]]),))
    first, second = run.squared_norms([["weight"]])[0]
    assert first == 0
    assert second > 0


def test_bags_of_largest_rows_agree(agrees):
    torch.manual_seed(0)
    agrees(nn.EmbeddingBag(7, 3, mode="max").double(), squares, words(4, 2))


def test_a_parameter_as_the_weights_of_a_frozen_table_agrees(agrees):
    table = torch.randn(7, 3).double()

    def weighed(model, tokens):
        return F.embedding_bag(tokens, table, per_sample_weights=model.weight[:1], mode="sum").square().sum(1)

    agrees(nn.Linear(3, 3, bias=False).double(), weighed, words(4, 3))


def test_float32_agrees_up_to_its_rounding(agrees):
    torch.manual_seed(0)
    agrees(Language(tied=True), squares, words(4, 8), tolerance=1e-5)


def under_autocast(model, tokens):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(tokens)
    y = y.float().flatten(1)
    return y.square().sum(1) + y.sum(1)


def test_bfloat16_autocast_agrees_up_to_its_rounding(agrees):
    torch.manual_seed(0)
    agrees(Language(tied=True), under_autocast, words(4, 8), tolerance=2e-2)
