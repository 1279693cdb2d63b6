# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import UnsupportedUseError
from sfumato.training.engine.book_keeping import BookKeeping

# The fixture is a pure function, so that it may be shared by all examples.
any_shape = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
sizes = st.integers(1, 5)
BATCH, STEPS, SOURCE, WIDTH = 4, 5, 3, 6


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def causal(steps=STEPS):
    return torch.ones(steps, steps, dtype=torch.bool).triu(1)


def squares(y):
    y = y.flatten(1)
    return y.square().sum(1) + y.sum(1)


class Attention(nn.Module):
    """A layer with its inputs, masks and options in one place."""

    def __init__(self, *, self_attention=True, masks=(), call=(), **options):
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 2, dtype=torch.float64, **options)
        for p in self.parameters():
            nn.init.normal_(p, std=0.5)  # biases start at zero, where half of the mistakes do not show
        self.self_attention, self.masks, self.call = self_attention, dict(masks), dict(call)

    def forward(self, x, k=None, v=None, padding=None):
        sources = [x, x, x] if self.self_attention else [x, k, k if v is None else v]
        if not self.layer.batch_first:
            sources = _transposed(sources)
        y, weights = self.layer(*sources, key_padding_mask=padding, **self.masks, **self.call)
        return (y if self.layer.batch_first else y.transpose(0, 1)), weights


def _transposed(sources):
    moved = {id(x): x.transpose(0, 1) for x in sources}
    return [moved[id(x)] for x in sources]


def loss(model, *inputs):
    y, weights = model(*inputs)
    return squares(y) if weights is None else squares(y) + 3 * squares(weights)


PADDING = torch.arange(SOURCE) >= torch.tensor([3, 2, 1, 3])[:, None]
SELF_PADDING = torch.arange(STEPS) >= torch.tensor([5, 2, 1, 4])[:, None]
SELF = {
    "plain": ({}, ()),
    "without weights": ({"call": {"need_weights": False}}, ()),
    "weights of each head": ({"call": {"average_attn_weights": False}}, ()),
    "no bias": ({"bias": False}, ()),
    "extra key and value": ({"add_bias_kv": True}, ()),
    "zero attention": ({"add_zero_attn": True}, ()),
    "everything added": (
        {
            "add_bias_kv": True,
            "add_zero_attn": True,
            "masks": {"attn_mask": causal()},
            "call": {"need_weights": False},
        },
        (None, None, SELF_PADDING),
    ),
    "causal": ({"masks": {"attn_mask": causal()}}, ()),
    "causal as a hint": (
        {"masks": {"attn_mask": causal(), "is_causal": True}, "call": {"need_weights": False}},
        (),
    ),
    "causal as a hint, extra key": (
        {
            "masks": {"attn_mask": causal(), "is_causal": True},
            "call": {"need_weights": False},
            "add_bias_kv": True,
        },
        (),
    ),
    "causal as a hint, padded": (
        {"masks": {"attn_mask": causal(), "is_causal": True}, "call": {"need_weights": False}},
        (None, None, SELF_PADDING),
    ),
    "mask of numbers": ({"masks": {"attn_mask": torch.linspace(-1, 1, 25).double().reshape(5, 5)}}, ()),
    "padding": ({}, (None, None, SELF_PADDING)),
}
CROSS = {
    "key is value": ({}, (randn(BATCH, SOURCE, WIDTH),)),
    "key and value differ": ({}, (randn(BATCH, SOURCE, WIDTH), randn(BATCH, SOURCE, WIDTH))),
    "padded": ({"add_bias_kv": True}, (randn(BATCH, SOURCE, WIDTH), randn(BATCH, SOURCE, WIDTH), PADDING)),
    "other widths": ({"kdim": 4, "vdim": 3}, (randn(BATCH, SOURCE, 4), randn(BATCH, SOURCE, 3))),
    "other widths, no bias": (
        {"kdim": 4, "vdim": 3, "bias": False, "call": {"need_weights": False}},
        (randn(BATCH, SOURCE, 4), randn(BATCH, SOURCE, 3), PADDING),
    ),
}
CASES = {f"self, {name}": (True, *case) for name, case in SELF.items()}
CASES |= {f"cross, {name}": (False, *case) for name, case in CROSS.items()}
every_case = pytest.mark.parametrize("case", CASES)
both_layouts = pytest.mark.parametrize("batch_first", [True, False])


def build(case, batch_first):
    torch.manual_seed(0)
    self_attention, options, inputs = CASES[case]
    return Attention(self_attention=self_attention, batch_first=batch_first, **options), inputs


@every_case
@both_layouts
def test_the_output_is_that_of_torch(outputs, case, batch_first):
    model, inputs = build(case, batch_first)
    inputs = (randn(BATCH, STEPS, WIDTH), *inputs)
    for got, wanted in zip(outputs(model, *inputs), model(*inputs), strict=True):
        assert (got is None) == (wanted is None)
        assert got is None or torch.allclose(got, wanted, rtol=0, atol=1e-12)


@every_case
@both_layouts
def test_gradients_agree_with_the_loop(agrees, case, batch_first):
    model, inputs = build(case, batch_first)
    agrees(model, loss, randn(BATCH, STEPS, WIDTH), *inputs)


@any_shape
@given(steps=sizes, source=sizes, heads=st.integers(1, 3), per_head=st.integers(1, 4), cross=st.booleans())
def test_any_shape_agrees(agrees, steps, source, heads, per_head, cross):
    torch.manual_seed(0)
    width = heads * per_head
    layer = nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64)

    def attended(layer, x, other):
        y, _ = layer(x, other, other) if cross else layer(x, x, x)
        return squares(y)

    agrees(layer, attended, randn(BATCH, steps, width), randn(BATCH, source, width))


@pytest.mark.parametrize("per_head", [False, True])
def test_a_mask_for_each_example_agrees(agrees, per_head):
    """A mask of three axes comes example after example, with one entry a head."""

    def masked(model, x, mask):
        mask = mask.repeat_interleave(2, 0) if not per_head else mask.flatten(0, 1)
        return squares(model.layer(x, x, x, attn_mask=mask)[0])

    shape = (BATCH, 2, STEPS, STEPS) if per_head else (BATCH, STEPS, STEPS)
    agrees(Attention(batch_first=True), masked, randn(BATCH, STEPS, WIDTH), randn(*shape))


PARTS = ["in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "out_proj.weight", "out_proj.bias"]


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("only", [False, True])
def test_frozen_parts_are_left_out(agrees, part, cross, only):
    """Either this part is the only one that learns, or the only one that does not."""
    model, _ = build("self, extra key and value", batch_first=True)
    model.self_attention = not cross
    for name, p in model.layer.named_parameters():
        p.requires_grad_((name == part) == only)
    agrees(model, loss, randn(BATCH, STEPS, WIDTH), *([randn(BATCH, SOURCE, WIDTH)] if cross else []))


@pytest.mark.parametrize("part", ["q_proj_weight", "k_proj_weight", "v_proj_weight"])
def test_one_separate_projection_alone_agrees(agrees, part):
    model, inputs = build("cross, other widths", batch_first=True)
    for name, p in model.layer.named_parameters():
        p.requires_grad_(name == part)
    agrees(model, loss, randn(BATCH, STEPS, WIDTH), *inputs)


def test_a_layer_called_twice_on_different_sources_agrees(agrees):
    model, _ = build("cross, key is value", batch_first=True)

    def twice(model, x, k):
        return squares(model.layer(model.layer(x, x, x)[0], k, k)[0])

    def thrice(model, x, k):
        return squares(model.layer(model.layer(x, k, x[:, :SOURCE])[0], k, k)[0])

    agrees(model, twice, randn(BATCH, STEPS, WIDTH), randn(BATCH, SOURCE, WIDTH))
    agrees(model, thrice, randn(BATCH, STEPS, WIDTH), randn(BATCH, SOURCE, WIDTH))


def test_a_value_that_is_the_query_agrees(agrees):
    def crossed(model, x, k):
        x, k = x.transpose(0, 1), k.transpose(0, 1)
        return squares(model.layer(x, k, x)[0].transpose(0, 1))

    agrees(Attention(batch_first=False), crossed, randn(BATCH, STEPS, WIDTH), randn(BATCH, STEPS, WIDTH))


def test_sequences_folded_into_the_batch_axis_agree(agrees):
    """Rows of an image that attend within themselves, as axial attention does it."""
    model, _ = build("self, extra key and value", batch_first=True)

    def axial(model, x):
        folded = x.flatten(0, 1)
        y, _ = model.layer(folded, folded, folded)
        return squares(y.unflatten(0, x.shape[:2]))

    agrees(model, axial, randn(BATCH, 3, STEPS, WIDTH))


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_draws_what_torch_draws(outputs, need_weights):
    model = Attention(dropout=0.5, call={"need_weights": need_weights}, batch_first=True)
    x = randn(BATCH, STEPS, WIDTH)
    torch.manual_seed(1)
    wanted, _ = model(x)
    torch.manual_seed(1)
    got, _ = outputs(model, x)
    assert torch.allclose(got, wanted, rtol=0, atol=1e-12)


def test_dropout_sums_to_the_ordinary_gradient_under_the_same_draw():
    model = Attention(dropout=0.5, batch_first=True)
    x = randn(BATCH, STEPS, WIDTH)
    torch.manual_seed(1)
    run = BookKeeping(model, loss).run((x,))
    torch.manual_seed(1)
    loss(model, x).sum().backward()
    for name, p in model.named_parameters():
        assert torch.allclose(run.per_unit(name).sum(0), p.grad, rtol=0, atol=1e-9)


LAYERS = {
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True),
    "encoder, norm first": lambda: nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, batch_first=True, norm_first=True
    ),
    "encoder, batch second": lambda: Swapped(nn.TransformerEncoderLayer(8, 2, 12, 0.0)),
    "two encoders": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True), 2
    ),
}


class Swapped(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, mask=None, **options):
        return self.layer(x.transpose(0, 1), mask, **options).transpose(0, 1)


@pytest.mark.parametrize("masked", ["no mask", "causal", "causal as a hint"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoders_agree(agrees, name, masked, training):
    torch.manual_seed(0)
    mask = None if masked == "no mask" else nn.Transformer.generate_square_subsequent_mask(STEPS).double()

    def encoded(model, x):
        return squares(model(x, mask, is_causal=masked == "causal as a hint"))

    agrees(LAYERS[name]().double().train(training), encoded, randn(BATCH, STEPS, 8), tolerance=1e-8)


def test_transformer_decoders_agree(agrees):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True).double()
    mask = nn.Transformer.generate_square_subsequent_mask(STEPS).double()

    def decoded(model, x, memory):
        return squares(model(x, memory, tgt_mask=mask, tgt_is_causal=True))

    agrees(
        nn.TransformerDecoder(layer, 2),
        decoded,
        randn(BATCH, STEPS, 8),
        randn(BATCH, SOURCE, 8),
        tolerance=1e-8,
    )


def test_float32_agrees_up_to_its_rounding(agrees):
    torch.manual_seed(0)
    agrees(Attention(batch_first=True).float(), loss, torch.randn(BATCH, STEPS, WIDTH), tolerance=1e-5)


def test_bfloat16_autocast_agrees_up_to_its_rounding(agrees):
    def cast(model, *inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, *inputs).float()

    torch.manual_seed(0)
    agrees(Attention(batch_first=True).float(), cast, torch.randn(BATCH, STEPS, WIDTH), tolerance=3e-2)


def test_attention_between_examples_sees_one_row_alone(agrees):
    def mixing(model, x):
        return squares(model.layer(x, x, x)[0])

    agrees(Attention(batch_first=False), mixing, randn(BATCH, STEPS, WIDTH))


def test_keys_that_all_examples_share_agree(agrees):
    key, value = randn(1, 3, WIDTH), randn(1, 3, WIDTH)

    def shared(model, x):
        return squares(model.layer(x, key, value)[0])

    agrees(Attention(batch_first=True), shared, randn(BATCH, STEPS, WIDTH))


def test_a_mask_of_each_example_agrees(agrees):
    def masked(model, x, mask):
        return squares(model.layer(x, x, x, attn_mask=mask[0], need_weights=False)[0])

    agrees(Attention(batch_first=True), masked, randn(BATCH, STEPS, WIDTH), randn(BATCH, STEPS, STEPS))


def test_inputs_without_a_batch_agree(agrees):
    def single(model, x):
        return squares(torch.stack([model.layer(row, row, row)[0] for row in x]))

    agrees(Attention(), single, randn(BATCH, STEPS, WIDTH))


def test_a_causal_hint_without_its_mask_is_refused():
    with pytest.raises(UnsupportedUseError, match="attn_mask"):
        BookKeeping(Attention(masks={"is_causal": True}, batch_first=True), loss).run(
            (randn(BATCH, STEPS, WIDTH),)
        )
