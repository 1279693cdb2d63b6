# SPDX-License-Identifier: Apache-2.0
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.training.data.rows import Grouping
from sfumato.training.engine.book_keeping import BookKeeping, BookKeepingPass
from sfumato.training.engine.rules.embedding import EmbeddingOp
from sfumato.training.engine.rules.linear import LinearOp
from sfumato.training.engine.tape.operation import Memory
from sfumato.training.engine.tape.tape import Tape
from sfumato.training.isolation.isolated_rows import Isolated

sizes = st.integers(1, 4)
any_shape = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Model(nn.Module):
    """A model that does what it is told with layers a, b and c, and an embedding of positions."""

    def __init__(self, use, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.positions = nn.Embedding(12, 3)
        self.use = use
        self.to(dtype)

    def forward(self, *batch):
        return self.use(self, *batch)


def squares(model, *batch):
    y = model(*batch).flatten(1)
    return y.square().sum(1) + y.sum(1)


def product(model, *batch):
    """A loss whose output gradient is the last part of the batch."""
    return (model(*batch[:-1]) * batch[-1]).flatten(1).sum(1)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def names_of(model):
    return [name for name, p in model.named_parameters() if p.requires_grad]


# --- agreement ----------------------------------------------------------------------------------------------


@any_shape
@given(
    steps=st.lists(sizes, max_size=2), rows=st.sampled_from([2, 4, 6]), frozen=st.sets(st.sampled_from("abc"))
)
def test_norms_sums_and_gradients_are_those_of_the_loop(agrees, steps, rows, frozen):
    model = Model(lambda m, x: m.c(m.b(m.a(x).tanh()).relu() + m.a(x)))  # a is used twice
    for name in frozen:
        getattr(model, name).weight.requires_grad_(False)
    agrees(model, squares, randn(rows, *steps, 3))


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.b(m.a(x.transpose(0, 1)).tanh()).transpose(0, 1),
        lambda m, x: m.b(m.a(x.reshape(-1, 3)).tanh()).reshape(x.shape),
        lambda m, x: m.b(x + m.positions(torch.arange(x.shape[1]))),
        lambda m, x: m.b(x + m.positions(torch.arange(x.shape[1])[None])),
        lambda m, x: m.b(x + m.a(m.positions(torch.arange(x.shape[1])))),  # a layer on what all rows share
        lambda m, x: m.b(x + m.a(m.positions(torch.arange(x.shape[1])[None]))),
        lambda m, x: m.b(x * m.a.weight.detach().sum()),
    ],
    ids=[
        "steps first",
        "flattened",
        "positions",
        "positions of one",
        "deep positions",
        "deep of one",
        "detached",
    ],
)
@pytest.mark.parametrize(
    "steps", [2, 3, 4, 5]
)  # as many as rows, as the passes that measure have, or neither
def test_rows_are_found_where_they_are(agrees, use, steps):
    agrees(Model(use), squares, randn(4, steps, 3))


def test_sequences_of_another_length_are_measured_anew(pass_agrees):
    model = Model(lambda m, x: m.b(m.a(x.reshape(-1, 3)).tanh()).reshape(x.shape))
    engine = BookKeeping(model, squares)
    for steps in (5, 7, 5, 1):
        pass_agrees(engine, model, squares, (randn(4, steps, 3),))


@pytest.mark.parametrize("steps", [4, 8])
def test_a_model_that_turns_long_sequences_around_does_not_mix_rows(pass_agrees, steps):
    def use(m, x):
        return m.a(x) if x.shape[1] < 4 else m.a(x.transpose(0, 1)).transpose(0, 1)

    model = Model(use)
    engine = BookKeeping(model, squares)
    engine.run((randn(4, 2, 3),))
    pass_agrees(engine, model, squares, (randn(4, steps, 3),))  # 4 steps are as many as there are rows


def test_a_part_under_no_grad_has_no_gradient(agrees):
    def use(m, x):
        with torch.no_grad():
            h = m.a(x)
        return m.b(h)

    agrees(Model(use), squares, randn(4, 3))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_is_left_to_the_reference(use_reentrant):
    model = Model(lambda m, x: m.c(checkpoint(lambda h: m.b(h).tanh(), m.a(x), use_reentrant=use_reentrant)))
    with pytest.raises(UnsupportedUseError, match="checkpointed"):
        BookKeeping(model, squares).run((randn(4, 3),))
    assert all(p.grad is None for p in model.parameters())


def test_hooks_on_outputs_of_modules_are_respected(agrees):
    model = Model(lambda m, x: m.b(m.a(x)))
    model.a.register_forward_hook(lambda module, args, out: out * 2)
    agrees(model, squares, randn(4, 3))


def test_hooks_on_gradients_are_left_to_the_reference():
    for register in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        model = Model(lambda m, x: m.b(m.a(x)))
        getattr(model.b, register)(lambda module, *grads: None)
        with pytest.raises(UnsupportedUseError, match="hook on its gradients"):
            BookKeeping(model, squares).run((randn(4, 3),))

    def hooked(m, x):
        h = m.a(x)
        h.register_hook(lambda grad: grad * 3)
        return m.b(h)

    with pytest.raises(UnsupportedUseError, match="hook on a tensor"):
        BookKeeping(Model(hooked), squares).run((randn(4, 3),))


def test_parameters_that_no_loss_depends_on_have_zero_gradients(agrees):
    agrees(Model(lambda m, x: m.a(x) + 0 * m.b(x).detach()), squares, randn(4, 3))
    for use in (lambda m, x: x, lambda m, x: x + m.a(x).detach()):
        model = Model(use)
        run = BookKeeping(model, squares).run((randn(4, 3),))
        assert run.squared_norms([names_of(model)]).tolist() == [[0.0] * 4]


def test_dropout_is_the_same_in_norms_and_in_sums():
    model = Model(lambda m, x: m.b(F.dropout(m.a(x), 0.5)))
    run = BookKeeping(model, squares, keep_bytes=0).run((randn(6, 2, 3),))
    groups = [[name] for name in names_of(model)]
    norms = run.squared_norms(groups)
    sums = run.weighted_sums(groups, torch.eye(6, dtype=torch.float64)[0].expand(len(groups), 6))
    for (name,), norm in zip(groups, norms, strict=True):
        assert torch.allclose(sums[name].square().sum(), norm[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_moved_to_another_type_agrees(pass_agrees, dtype):
    model = Model(lambda m, x: m.b(m.a(x).tanh()))
    engine = BookKeeping(model, squares)
    engine.run((randn(4, 3),))
    model.to(dtype)
    model.use = lambda m, x: m.b(m.a(x.to(m.a.weight.dtype)).tanh())  # the stand-in tells the type of now
    tolerance = 1e-4 if dtype is torch.float32 else 1e-9
    pass_agrees(engine, model, squares, (randn(4, 3),), tolerance=tolerance)


def test_bfloat16_autocast_agrees_up_to_its_rounding(pass_agrees):
    model = Model(lambda m, x: m.b(m.a(x).tanh()).float(), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        pass_agrees(BookKeeping(model, squares), model, squares, (torch.randn(4, 2, 3),), tolerance=0.05)


# --- norms that are never too small -------------------------------------------------------------------------


def worst(model, engine, batch):
    """The largest norm of what a unit adds to a sum once it was clipped to 1, by the engine's own norms."""
    names = names_of(model)
    found = []
    for i in range(len(batch[0])):
        run = engine.run([part[i : i + 1] for part in batch])
        norm = run.squared_norms([names]).sqrt()
        assert norm.isfinite().all()
        sums = run.weighted_sums([names], 1 / norm.clamp(min=1))
        found.append(float(torch.cat([total.flatten() for total in sums.values()]).double().norm()))
    return max(found)


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), off=st.sampled_from([0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3]))
def test_cancelling_steps_never_get_a_norm_that_is_too_small(keep_bytes, size, seed, off):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(16, 16, bias=False)
    x, g = (torch.randn(3, 1, 16, generator=generator) * size for _ in range(2))
    x = torch.cat([x, -x * (1 + off * torch.randn(3, 1, 1, generator=generator))], 1)
    assert worst(model, BookKeeping(model, product, keep_bytes=keep_bytes), (x, g.expand(3, 2, 16))) < 1.001


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    off=st.sampled_from([0.0, 1e-7, 1e-5, 1e-4, 1e-3]),
    steps=st.sampled_from([(), (2,)]),
)
def test_cancelling_uses_of_one_weight_never_get_a_norm_that_is_too_small(size, seed, off, steps):
    generator = torch.Generator().manual_seed(seed)
    model = Model(lambda m, x, y: m.a(x) - m.a(y), torch.float32).requires_grad_(False)
    model.a.weight.requires_grad_(True)
    x, g = (torch.randn(3, *steps, 3, generator=generator) * size for _ in range(2))
    y = x * (1 + off * torch.randn(3, *[1 for _ in steps], 1, generator=generator))
    assert worst(model, BookKeeping(model, product, keep_bytes=0), (x, y, g)) < 1.001


@pytest.mark.parametrize(("x", "g"), [(1e18, 1e-23), (1e-23, 1e18), (3e18, 1e-25), (1e10, 1e-30)])
def test_a_factor_whose_square_vanishes_does_not_hide_a_gradient(x, g):
    model = nn.Linear(2, 2, bias=False)
    run = BookKeeping(model, product).run((torch.full((1, 2), x), torch.full((1, 2), g)))
    assert float(run.squared_norms([["weight"]]).sqrt()) >= 2 * x * g * 0.999


def test_a_unit_whose_terms_cancel_does_not_swallow_the_others():
    model = nn.Linear(1, 1, bias=False)
    large = torch.tensor([[1e30], [-1e30]])
    x = torch.stack([torch.ones(2, 1), large])
    run = BookKeeping(model, product, keep_bytes=0).run((x, torch.ones(2, 2, 1)))
    norms = run.squared_norms([["weight"]])
    finite = norms.isfinite()  # the second is dropped, or weighs next to nothing
    weights = torch.where(finite, 1 / norms.sqrt(), 0.0)
    assert not finite[0, 1] or float(weights[0, 1] * 2e30) < 1e5


class Shared(nn.Module):
    def __init__(self, used):
        super().__init__()
        self.used = used

    def forward(self, x):
        return self.used(torch.zeros(1, dtype=torch.long)) * x


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv1d(1, 1, 1, bias=False), (1, 2)),
        (nn.Linear(1, 1), (2, 1)),
        (Shared(nn.Embedding(1, 1)), (1, 1)),
        (nn.GroupNorm(1, 1), (1, 2)),
        (nn.LSTM(1, 1, batch_first=True), (2, 1)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_autocast_does_not_round_sums_over_a_batch(half, keep_bytes, model, shape):
    """Such a rounding would move with one unit by more than its bound."""

    def loss(model, x):
        y = model(x)
        return (y[0] if isinstance(y, tuple) else y).flatten(1).sum(1)

    x, weights = torch.ones(3001, *shape), torch.ones(1, 3001)
    names = [names_of(model)]
    with torch.autocast("cpu", half):
        run = BookKeeping(model, loss, keep_bytes=keep_bytes).run((x,))
        run.squared_norms(names)
        sums = run.weighted_sums(names, weights)
        each = {name: run.per_unit(name).double().sum(0) for name in names[0]}
    for name, found in sums.items():
        assert found.dtype is torch.float32
        assert torch.allclose(found.double(), each[name], rtol=3e-4), name  # bfloat16: 2e-3


def used(*ops):
    """A pass whose operations all use one parameter."""
    tape = Tape(ops[0].grouping, Isolated(ops[0].grouping.rows), Memory(0))
    tape.ops = list(ops)
    return BookKeepingPass(tape, {"w": torch.zeros(1)})


def a_tape(rows, keep_bytes=0):
    return Tape(Grouping(units=rows), Isolated(rows), Memory(keep_bytes))


def moved(run, units, clip_norm=1.0):
    """How far one unit moves the sum at most, over the clip norm."""
    norms = run.squared_norms([["w"]])[0].sqrt()
    found = []
    for unit in range(units):
        weights = torch.zeros(1, units)
        weights[0, unit] = (clip_norm / norms[unit]).clamp(max=1) * (1 - 2**-7)  # as `Clipper` has it
        found.append(float(run.weighted_sums([["w"]], weights)["w"].double().norm()) / clip_norm)
    return max(found)


def test_norms_of_whole_numbers_are_not_rounded_by_autocast_where_terms_cancel():
    op = LinearOp(torch.tensor([[[1.0], [1 + 2.0**-9]]]), {"weight": "w"}, a_tape(1))  # as in a recurrence
    op.grad = torch.tensor([[[1e4], [-1e4]]])
    with torch.autocast("cpu", torch.bfloat16):  # where both inputs are 1
        assert moved(used(op), 1) <= 1 + 1e-3


@pytest.mark.parametrize("gap", range(1, 16))
def test_half_precision_that_rounds_all_terms_one_way_moves_the_sum_by_at_most_the_clip_norm(gap):
    torch.manual_seed(0)
    large = 1024 * (1 + torch.randint(0, 16, (256,)) / 128)
    g = torch.stack([large, -large + 8 * gap], 1)[..., None] * (1 + torch.randint(0, 128, (256, 1, 1)) / 128)
    op = LinearOp(torch.ones(256, 2, 1).bfloat16(), {"weight": "w"}, a_tape(256))
    op.grad = g.bfloat16()
    assert moved(used(op), 256) <= 1 + 1e-3


@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
def test_weights_too_small_for_float16_are_not_rounded_up(vectors, keep_bytes):
    shape = (1, 4) if vectors == 1 else (1, vectors, 4)
    op = LinearOp(torch.full(shape, 100.0).half(), {"weight": "w"}, a_tape(1, keep_bytes))
    op.grad = torch.full(shape, 50.0).half()
    assert max(moved(used(op), 1, clip_norm=0.5**i) for i in range(1, 14)) <= 1
    assert max(moved(used(op), 1, clip_norm=0.7 * 0.5**i) for i in range(1, 14)) <= 1


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_tied_tables_whose_uses_cancel_stay_within_the_bound_under_autocast(half, seed):
    torch.manual_seed(seed)
    tokens, g = torch.tensor([[0, 1, 2]]), 1e3 * torch.randn(1, 3, 16).bfloat16().float()
    table = EmbeddingOp(
        tokens, torch.Size((3, 16)), {"weight": "w"}, a_tape(1), padding_idx=None, shared=False
    )
    table.grad = g
    if half:  # the output layer, whose gradient is kept in 16 bits
        other = LinearOp(-torch.ones(1, 2, 16).bfloat16(), {"weight": "w"}, a_tape(1, 1 << 30))
        other.grad = 1e3 * torch.rand(1, 2, 3).bfloat16()
        table.grad = (other.grad.float().mT @ torch.ones(1, 2, 16)).reshape(1, 3, 16)
    else:
        other = EmbeddingOp(
            tokens, torch.Size((3, 16)), {"weight": "w"}, a_tape(1), padding_idx=None, shared=False
        )
        other.grad = -g + 3 * torch.randn_like(g)
    with torch.autocast("cpu", torch.bfloat16):
        assert moved(used(table, other), 1) <= 1 + 1e-3


# --- refusals and failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.b(x + m.positions(torch.arange(x.shape[1])).unsqueeze(0)),
        lambda m, x: torch.cat([x, m.positions(torch.arange(2)).unsqueeze(0).expand(len(x), -1, -1)], 1),
        lambda m, x: x + m.positions(torch.arange(x.shape[1])).unsqueeze(0),
    ],
)
def test_a_shared_result_that_is_unsqueezed_agrees(agrees, use):
    agrees(Model(use), squares, randn(4, 5, 3))


def test_rows_that_are_picked_by_their_values_are_refused():
    model = Model(lambda m, x: x.index_put((x[:, 0] > 0,), m.a(x[x[:, 0] > 0])))
    x = torch.tensor([[1.0, 0, 0], [2, 0, 0], [3, 0, 0], [-2, 0, 0]], dtype=torch.float64)
    with pytest.raises(UnsupportedUseError, match=r"index by a mask"):
        BookKeeping(model, squares).run((x,))


def test_the_number_of_rows_in_the_batch_cannot_be_seen(agrees):
    agrees(Model(lambda m, x: m.a(m.b(x)) if len(x) < 3 else m.b(m.a(x))), squares, randn(4, 3))


def test_a_model_that_changed_its_order_since_is_measured_anew(pass_agrees):
    model = Model(lambda m, x: m.a(m.b(x)))
    engine = BookKeeping(model, squares)
    engine.run((randn(4, 3),))
    model.use = lambda m, x: m.b(m.a(x).tanh())
    pass_agrees(engine, model, squares, (randn(4, 3),))


@pytest.mark.parametrize(
    "use", [lambda m, x: m.a(x * m.b.weight.sum()), lambda m, x: m.a(x @ (m.b.weight * 2))]
)
def test_a_parameter_that_meets_rows_in_an_expression_agrees(agrees, use):
    agrees(Model(use), squares, randn(4, 3))


def test_operators_do_not_swallow_the_reason_of_a_refusal():
    def use(m, x):
        return torch.func.vmap(lambda row: row * m.b.weight.sum())(x)

    with pytest.raises(UnsupportedUseError, match=r"'b.weight'"):
        BookKeeping(Model(use), squares).run((randn(4, 3),))


def test_an_error_of_the_model_itself_is_named_without_what_it_says():
    def wrong(m, x):
        raise ValueError("row 7 says 3.14")

    with pytest.raises(UnsupportedUseError, match=r"ValueError") as caught:
        BookKeeping(Model(wrong), squares).run((randn(4, 3),))
    assert "3.14" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: torch.zeros(len(x), 3, dtype=x.dtype).copy_(m.a(x)),
        lambda m, x: torch.zeros_like(x).index_add(0, torch.arange(len(x)), m.a(x)),
        lambda m, x: _written(m.a(x), x.new_empty(len(x), 2, 3)),
        lambda m, x: _written(m.a(x), torch.full((len(x), 2, 3), 1.0, dtype=x.dtype)),
    ],
)
def test_rows_written_into_tensors_that_the_model_makes_agree(agrees, use):
    agrees(Model(use), squares, randn(4, 3))


def _written(h, into):
    into[:, 0] = h
    into[:, 1] = 2 * h
    return into


def test_a_number_put_where_a_mask_is_true_agrees(agrees):
    def use(m, x):
        h = m.a(x).clone()
        h[x > 0] = 0.5
        return m.b(h)

    agrees(Model(use), squares, randn(4, 3))


def test_a_tensor_of_all_rows_that_a_pass_writes_into_is_left_to_the_reference():
    total = torch.zeros(3, dtype=torch.float64)
    model = Model(lambda m, x: m.a(x + total.add_(x[0])))
    with pytest.raises(UnsupportedUseError, match="all rows share"):
        BookKeeping(model, squares).run((randn(4, 3),))
    assert not total.any()


def test_a_loss_already_averaged_is_refused():
    with pytest.raises(InvalidParameterError, match=r"reduction='none'"):
        BookKeeping(Model(lambda m, x: m.a(x)), lambda m, x: m(x).mean()).run((randn(4, 3),))


@pytest.mark.parametrize("fails", [False, True])
def test_model_and_tape_are_left_as_they_were(fails):
    model = Model(lambda m, x: m.b(m.a(x)))
    before, keys = {n: id(p) for n, p in model.named_parameters()}, list(model.state_dict())
    held = []

    def loss(m, x):
        y = m(x)
        held.append(weakref.ref(y))
        if fails:
            raise ValueError("in the loss")
        return y.square().sum(1)

    engine = BookKeeping(model, loss)
    try:
        engine.run((randn(4, 3),))
    except UnsupportedUseError:
        assert fails
    assert {n: id(p) for n, p in model.named_parameters()} == before and list(model.state_dict()) == keys
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    gc.collect()
    assert all(reference() is None for reference in held)  # no activation outlives the pass
    assert not any(hasattr(tracked, "tape") for tracked in engine._tracked.values())


def test_a_pass_draws_once():
    model = Model(lambda m, x: m.b(F.dropout(m.a(x), 0.5)))
    engine, x = BookKeeping(model, squares), randn(4, 3)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(engine.run((x,)).per_unit("a.weight"))
    assert torch.equal(*found)
