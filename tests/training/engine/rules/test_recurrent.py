# SPDX-License-Identifier: Apache-2.0
import gc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from sfumato.errors import UnsupportedUseError
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.rules.recurrences import Recurrence

# The fixture is a pure function, so that it may be shared by all examples.
any_shape = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
sizes = st.integers(1, 5)
BATCH, STEPS, WIDTH, HIDDEN = 4, 5, 3, 4

LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn tanh": nn.RNN,
    "rnn relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "lstm projected": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
}
OPTIONS = {
    "plain": {},
    "batch second": {"batch_first": False},
    "no bias": {"bias": False},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True},
    "all at once": {"num_layers": 3, "bidirectional": True, "batch_first": False},
}
every_layer = pytest.mark.parametrize("layer", LAYERS)
every_option = pytest.mark.parametrize("options", OPTIONS)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def squares(y):
    y = y.flatten(1)
    return y.square().sum(1) + y.sum(1)


class Model(nn.Module):
    """Something learns before the layer, so that its input needs a gradient too."""

    def __init__(self, layer, *, given=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layer = LAYERS[layer](WIDTH, HIDDEN, **({"batch_first": True} | options))
        self.given = given
        self.double()

    def states(self, x):
        """Initial states that depend on each example."""
        layer = self.layer
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        h0, c0 = (
            x.mean((1, 2)).sin()[None, :, None]
            * torch.linspace(0.5, 1.5, count * size).to(x).reshape(count, 1, size)
            for size in (layer.proj_size or HIDDEN, HIDDEN)
        )
        return (h0, c0) if isinstance(layer, nn.LSTM) else h0

    def forward(self, x):
        x = self.first(x)
        states = self.states(x) if self.given else None
        y, last = self.layer(x if self.layer.batch_first else x.transpose(0, 1), states)
        lasts = last if isinstance(last, tuple) else (last,)
        return y if self.layer.batch_first else y.transpose(0, 1), *(s.transpose(0, 1) for s in lasts)


def everything(model, x):
    return sum((i + 1) * squares(part) for i, part in enumerate(model(x)))


def only_the_outputs(model, x):
    return squares(model(x)[0])


def only_the_last_state(model, x):
    return squares(model(x)[1])


def only_the_cell(model, x):
    return squares(model(x)[-1])


@every_layer
@every_option
@pytest.mark.parametrize("given", [False, True])
def test_the_output_is_that_of_torch(outputs, layer, options, given):
    model = Model(layer, given=given, **OPTIONS[options])
    x = randn(BATCH, STEPS, WIDTH)
    for got, wanted in zip(outputs(model, x), model(x), strict=True):
        assert torch.allclose(got, wanted, rtol=0, atol=1e-12)


@every_layer
@every_option
@pytest.mark.parametrize("given", [False, True])
def test_gradients_agree_with_the_loop(agrees, layer, options, given):
    agrees(Model(layer, given=given, **OPTIONS[options]), everything, randn(BATCH, STEPS, WIDTH))


@every_layer
@pytest.mark.parametrize("loss", [only_the_outputs, only_the_last_state, only_the_cell])
def test_gradients_agree_when_a_part_of_the_output_is_unused(agrees, layer, loss):
    agrees(Model(layer, num_layers=2, bidirectional=True), loss, randn(BATCH, STEPS, WIDTH))


@any_shape
@given(
    steps=sizes,
    n_in=sizes,
    hidden=sizes,
    layer=st.sampled_from(["lstm", "gru", "rnn tanh", "rnn relu"]),
    bidirectional=st.booleans(),
)
def test_any_shape_agrees(agrees, steps, n_in, hidden, layer, bidirectional):
    torch.manual_seed(0)
    model = LAYERS[layer](n_in, hidden, batch_first=True, bidirectional=bidirectional, dtype=torch.float64)
    agrees(model, only_the_outputs, randn(BATCH, steps, n_in))


PARTS = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]


@pytest.mark.parametrize("layer", ["lstm", "gru", "rnn tanh"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("only", [False, True])
def test_frozen_parts_are_left_out(agrees, layer, part, only):
    """Either this part is the only one that learns, or the only one that does not."""
    model = Model(layer)
    for name, p in model.named_parameters():
        p.requires_grad_((name == f"layer.{part}") == only)
    agrees(model, everything, randn(BATCH, STEPS, WIDTH))


def test_a_frozen_layer_between_two_that_learn_agrees(agrees):
    model = Model("lstm", num_layers=3)
    for name, p in model.layer.named_parameters():
        p.requires_grad_(not name.endswith("l1"))
    agrees(model, everything, randn(BATCH, STEPS, WIDTH))


def test_a_projection_that_learns_alone_agrees(agrees):
    model = Model("lstm projected")
    for name, p in model.named_parameters():
        p.requires_grad_(name == "layer.weight_hr_l0")
    agrees(model, everything, randn(BATCH, STEPS, WIDTH))


@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_a_layer_called_twice_agrees(agrees, layer):
    model = Model(layer)

    def twice(model, x):
        y, states = model.layer(x)
        return squares(model.layer(x.flip(1) + y.mean(2, keepdim=True), states)[0])

    agrees(model, twice, randn(BATCH, STEPS, WIDTH))


def test_sequences_folded_into_the_batch_axis_agree(agrees):
    def folded(model, x):
        return squares(model.layer(x.flatten(0, 1))[0].unflatten(0, x.shape[:2]))

    agrees(Model("lstm"), folded, randn(BATCH, 2, STEPS, WIDTH))


@every_layer
def test_dropout_between_layers_sums_to_the_ordinary_gradient_under_the_same_draw(layer):
    model = Model(layer, num_layers=2, dropout=0.5, batch_first=False)
    x = randn(BATCH, STEPS, WIDTH)
    engine = BookKeeping(model, everything)
    engine.run((x,))  # measures the layout, so that the next pass draws once
    torch.manual_seed(1)
    run = engine.run((x,))
    torch.manual_seed(1)
    everything(model, x).sum().backward()
    for name, p in model.named_parameters():
        assert torch.allclose(run.per_unit(name).sum(0), p.grad, rtol=0, atol=1e-9), name


def test_dropout_is_off_in_evaluation(agrees):
    agrees(Model("lstm", num_layers=2, dropout=0.5).eval(), everything, randn(BATCH, STEPS, WIDTH))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@every_layer
def test_float32_agrees_up_to_its_rounding(agrees, layer):
    agrees(Model(layer).float(), everything, torch.randn(BATCH, STEPS, WIDTH), tolerance=1e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@every_layer
def test_bfloat16_autocast_agrees_with_float32_up_to_its_rounding(agrees, layer):
    """The recurrence itself runs in float32, so the loop without autocast is the honest reference."""
    model, x = Model(layer).float(), torch.randn(BATCH, STEPS, WIDTH)

    def cast(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return everything(model, x).float()

    run = BookKeeping(model, cast).run((x,))
    everything(model, x).sum().backward()
    for name, p in model.named_parameters():
        assert (run.per_unit(name).sum(0) - p.grad).norm() < 3e-2 * p.grad.norm(), name


def test_the_model_is_itself_again_afterwards():
    model, x = Model("lstm"), randn(BATCH, STEPS, WIDTH)
    before, weights = model(x)[0], list(model.layer._flat_weights)
    BookKeeping(model, everything).run((x,))
    assert all(a is b for a, b in zip(weights, model.layer._flat_weights, strict=True))
    assert torch.equal(before, model(x)[0])


def test_packed_sequences_are_refused_with_the_way_out():
    def packed(model, x, lengths):
        _, (h, _) = model.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return squares(h[0])

    batch = (randn(BATCH, STEPS, WIDTH), torch.tensor([2, 5, 1, 4]))
    with pytest.raises(UnsupportedUseError, match=r"packed sequences"):
        BookKeeping(Model("lstm"), packed).run(batch)


@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_recurrence_along_the_batch_sees_one_row_alone(agrees, layer):
    def mixing(model, x):
        return squares(model.layer(x)[0])

    agrees(Model(layer, batch_first=False), mixing, randn(BATCH, STEPS, WIDTH))


@pytest.mark.parametrize("learns", ["layer.weight_ih_l0", "layer.weight_hh_l0"])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_output_changed_in_place_is_refused(learns, seen, batch_first):
    def careless(model, x):
        y, _ = model.layer(x if batch_first else x.transpose(0, 1))
        with torch.set_grad_enabled(seen):
            y.mul_(2)
        return squares(y if batch_first else y.transpose(0, 1))

    model = Model("lstm", batch_first=batch_first)
    for name, p in model.named_parameters():
        p.requires_grad_(name == learns)
    with pytest.raises((UnsupportedUseError, RuntimeError), match=r"in place"):
        BookKeeping(model, careless).run((randn(BATCH, STEPS, WIDTH),))


def test_weights_stay_where_they_are_when_cudnn_would_move_them():
    model = Model("lstm")
    places = [p.data_ptr() for p in model.parameters()]

    def on_a_gpu(model, x):
        moved = torch._cudnn_rnn_flatten_weight(
            model.layer._flat_weights, 4, WIDTH, 2, HIDDEN, 0, 1, True, False
        )
        assert moved is None
        return everything(model, x)

    BookKeeping(model, on_a_gpu).run((randn(BATCH, STEPS, WIDTH),))
    assert places == [p.data_ptr() for p in model.parameters()]


@every_layer
def test_no_recurrence_outlives_its_pass(layer):
    BookKeeping(Model(layer), everything).run((randn(BATCH, STEPS, WIDTH),))
    gc.collect()
    assert not any(Recurrence in type(found).__mro__ for found in gc.get_objects())
