# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training.engine.functional import Functional
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping, CoordinateClipping, Scaling
from sfumato.training.privacy.sampling import PoissonSampling

from ..gradients import private_gradients

SLACK = 1e-4  # float32 rounding
ALPHA = 1e-6
ADAPT = AdaptiveClip(count_noise_multiplier=1.0)
STYLES = {
    "flat": Clipping(clip_norm=0.5),
    "per layer": Clipping(clip_norm=0.5, per_layer=True),
    "layer norms": Clipping(layer_norms={"a": 0.3, "b": 2.0}),
    "global": Clipping(clip_norm=0.5, scaling=Scaling.GLOBAL, drop_above=3.0),
    "automatic": Clipping(clip_norm=0.5, scaling=Scaling.AUTOMATIC),
    "adaptive": Clipping(clip_norm=0.5, adaptive=ADAPT),
    "coordinate": CoordinateClipping(coordinate_bound=0.1),
}
ENGINES = ["book-keeping", "functional", "loop"]
any_style = pytest.mark.parametrize("style", STYLES)
any_engine = pytest.mark.parametrize("engine", ENGINES)
hostile = st.sampled_from([0.0, 1e-45, 1e-23, 0.1, -3.0, 1e10, 1e18, 3e38, math.inf, -math.inf, math.nan])
numbers = hostile | st.floats(width=32)


class Two(nn.Module):
    """Two layers side by side. Under `product`, a row's gradient is the outer product of its two parts."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)
        self.to(dtype)

    def forward(self, x):
        return torch.cat([self.a(x), self.b(x)], -1)


def product(model, x, g):
    return (model(x) * g).flatten(1).sum(1)


class Silent:
    """A noise source that adds nothing, and remembers what it was asked for."""

    def __init__(self):
        self.generator = seeded(0)
        self.asked = []

    def add_(self, sums, *, stddev, step):
        self.asked.append((stddev, step))


def private_of(model, loss=product, *, engine="book-keeping", clipping=STYLES["flat"], **options):
    options = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 1.0,
        "noise": Silent(),
        "check": False,
        **options,
    }
    kind = "functional" if engine == "loop" else engine
    private = private_gradients(model, loss, clipping=clipping, engine=kind, **options)
    if engine == "loop":
        private._passes._engine = Functional(model, private._passes._loss, vectorized=False)
    return private


def clipped_sum(model, *batch, loss=product, rows_per_unit=1, row_weights=None, **options):
    """The clipped sum of a batch, as one vector."""
    private_of(model, loss, **options).backward(*batch, rows_per_unit=rows_per_unit, row_weights=row_weights)
    return flat_grad(model)


def flat_grad(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


def bound_of(clipping):
    return private_of(Two(), clipping=clipping).bound


def batch_of(rows):
    rows = torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)
    return rows[:, :2], rows[:, 2:]


def some(rows, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 2, generator=generator, dtype=dtype) for _ in range(2))


# --- what one unit can do -----------------------------------------------------------------------------------


@any_style
@any_engine
@settings(max_examples=12, deadline=None)
@given(rows=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=3))
def test_one_unit_moves_the_sum_by_at_most_the_bound_whatever_its_gradient(engine, style, rows):
    options = {"engine": engine, "clipping": STYLES[style]}
    with_it = clipped_sum(Two(), *batch_of(rows), **options)
    without = clipped_sum(Two(), *batch_of(rows[1:]), **options)
    assert float((with_it - without).norm()) <= bound_of(STYLES[style]) * (1 + SLACK)


@any_style
@any_engine
def test_the_sum_is_that_of_a_loop_over_clipped_units(loop, engine, style):
    model, batch = Two(torch.float64), some(5, dtype=torch.float64)
    clipping, gradients = STYLES[style], loop(model, product, batch)
    wanted = []
    for unit in range(5):
        parts = {name: g[unit] for name, g in gradients.items()}
        if style == "coordinate":
            wanted.append(torch.cat([p.clamp(-0.1, 0.1).flatten() for p in parts.values()]))
            continue
        layers = [["a.weight", "a.bias"], ["b.weight", "b.bias"]]
        groups = [list(parts)] if style in ("flat", "global", "automatic", "adaptive") else layers
        limits = {1: [0.5], 2: [0.3, 2.0] if style == "layer norms" else [0.5 / math.sqrt(2)] * 2}[
            len(groups)
        ]
        for group, limit in zip(groups, limits, strict=True):
            size = float(torch.cat([parts[name].flatten() for name in group]).norm())
            factor = min(1, limit / size)
            factor = {"global": limit / 3.0 * (size <= 3.0), "automatic": limit / (size + 0.01)}.get(
                style, factor
            )
            for name in group:
                parts[name] = parts[name] * factor
        wanted.append(torch.cat([p.flatten() for p in parts.values()]))
    found = clipped_sum(model, *batch, engine=engine, clipping=clipping)
    assert torch.allclose(found, torch.stack(wanted).sum(0), atol=1e-9)


class Adaptive(nn.Module):
    """Sends a row to the words of its label's cluster alone."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 8), nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8], div_value=2.0)

    def forward(self, x, y):
        return -self.out(self.layer(x), y).output


class Hypernetwork(nn.Module):
    """Makes the weights of its layer from codes, which all rows share."""

    def __init__(self):
        super().__init__()
        self.codes, self.make = nn.Embedding(3, 5), nn.Linear(5, 4)

    def forward(self, x, y):
        return F.cross_entropy(F.linear(x, self.make(self.codes(torch.arange(3)))), y % 3, reduction="none")


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x, y):
        packed = pack_padded_sequence(x[..., None], y % 4 + 1, batch_first=True, enforce_sorted=False)
        return F.cross_entropy(self.out(self.rnn(packed)[1][0]), y % 3, reduction="none")


@pytest.mark.filterwarnings("ignore:.*Going on with the functional engine", "ignore:There is a performance")
@pytest.mark.parametrize("labels", [[0, 5, 9, 0, 5, 9], [9, 9, 5, 5, 0, 0], [0, 0, 0, 0, 5, 9]], ids=str)
@pytest.mark.parametrize("kind", [Adaptive, Hypernetwork, Packed])
def test_whatever_the_fast_engine_cannot_do_is_the_clipped_sum_of_the_loop(loop, kind, labels):
    torch.manual_seed(0)
    model, batch = kind().double(), (torch.randn(6, 4, dtype=torch.float64), torch.tensor(labels))
    found = clipped_sum(model, *batch, loss=lambda m, *rows: m(*rows), engine="auto", check=True)
    each = torch.cat([g.flatten(1) for g in loop(model, lambda m, *rows: m(*rows), batch).values()], 1)
    wanted = (each * (0.5 / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    assert torch.allclose(found, wanted, atol=1e-9)


@any_style
@any_engine
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_a_row_that_is_not_finite_changes_nothing_for_the_others(engine, style, bad):
    x, g = some(4)
    spoilt = torch.cat([x[:2], torch.tensor([[bad, 0.0]]), x[2:]])
    options = {"engine": engine, "clipping": STYLES[style]}
    found = clipped_sum(Two(), spoilt, torch.cat([g[:2], torch.ones(1, 2), g[2:]]), **options)
    wanted = clipped_sum(Two(), x, g, **options)
    if style == "coordinate":  # clipped on their own, the finite coordinates are left
        wanted = wanted + clipped_sum(Two(), spoilt[2:3], torch.ones(1, 2), **options)
        assert found.isfinite().all()
    assert torch.allclose(found, wanted, atol=1e-6)


@any_engine
def test_a_step_in_which_all_units_are_dropped_is_a_step_with_noise(engine):
    noise = Silent()
    private = private_of(model := Two(), engine=engine, noise=noise)
    private.backward(torch.full((3, 2), math.nan), torch.ones(3, 2))
    assert not flat_grad(model).any() and noise.asked == [(0.5, 0)] and private.steps == 1


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_one_unit_moves_a_sum_over_groups_by_at_most_twice_the_bound(rows, seed):
    def grouped(rows):
        """The sum over groups, whoever is in them being drawn as for all of the rows."""
        noise = Silent()
        noise.generator = seeded(seed)
        options = {"group_size": 2, "expected_batch_size": 6.0, "noise": noise}
        return clipped_sum(Two(), *batch_of(rows), **options) * 6

    moved = grouped(rows) - grouped(rows[:-1])  # the last one: the others are drawn into the same groups
    assert float(moved.norm()) <= 2 * 0.5 * (1 + SLACK)


def test_groups_are_averages_of_their_members():
    x, g = some(6, dtype=torch.float64)
    huge = Clipping(clip_norm=1e9)
    options = {"clipping": huge, "group_size": 3, "expected_batch_size": 6.0}
    whole = clipped_sum(Two(torch.float64), x, g, **options) * 6
    assert torch.allclose(whole, clipped_sum(Two(torch.float64), x, g, clipping=huge) / 3)


# --- pieces, units and padding ------------------------------------------------------------------------------


@any_style
@any_engine
@pytest.mark.parametrize("microbatch_size", [1, 2, 3, 100])
def test_pieces_add_up_to_the_whole(engine, style, microbatch_size):
    model, batch = Two(torch.float64), some(5, dtype=torch.float64)
    options = {"engine": engine, "clipping": STYLES[style]}
    whole = clipped_sum(model, *batch, **options)
    assert torch.allclose(clipped_sum(model, *batch, microbatch_size=microbatch_size, **options), whole)


def test_parts_given_one_by_one_add_up_to_one_step():
    model, (x, g) = Two(torch.float64), some(5, dtype=torch.float64)
    private = private_of(model)
    for part in (slice(0, 2), slice(2, 2), slice(2, 5)):
        private.accumulate(x[part], g[part])
    private.finish()
    found = flat_grad(model)
    assert private.steps == 1 and torch.allclose(found, clipped_sum(model, x, g))


@any_engine
@pytest.mark.parametrize("microbatch_size", [None, 1, 2])
def test_the_rows_of_a_unit_are_added_before_they_are_clipped(loop, engine, microbatch_size):
    model, batch = Two(torch.float64), some(6, dtype=torch.float64)
    units = loop(model, product, batch, 3)
    flat = torch.cat([g.flatten(1) for g in units.values()], 1)
    wanted = (flat * (0.5 / flat.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    options = {"engine": engine, "microbatch_size": microbatch_size}
    assert torch.allclose(clipped_sum(model, *batch, rows_per_unit=3, **options), wanted)


@any_engine
def test_row_weights_multiply_gradients_before_they_are_clipped(engine):
    model, (x, g) = Two(torch.float64), some(4, dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.01])
    found = clipped_sum(model, x, g, row_weights=weights, engine=engine)
    assert torch.allclose(found, clipped_sum(model, x, g * weights[:, None].double(), engine=engine))


@any_style
@any_engine
def test_padding_contributes_nothing(engine, style):
    model, (x, g) = Two(torch.float64), some(4, dtype=torch.float64)
    more = [torch.cat([part, torch.full((3, 2), 7.0).double()]) for part in (x, g)]
    weights = torch.tensor([1.0] * 4 + [0.0] * 3)
    options = {"engine": engine, "clipping": STYLES[style]}
    found = clipped_sum(model, *more, row_weights=weights, **options)
    assert torch.allclose(found, clipped_sum(model, x, g, **options))


@pytest.mark.parametrize("group_size", [1, 2])
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0.0, 0.1, 100.0, math.nan]), min_size=1, max_size=5),
    pad=st.integers(0, 3),
)
def test_padding_is_not_in_the_count_of_units_below_a_threshold(group_size, sizes, pad):
    def below(sizes, pad):
        x = torch.tensor([[size, 0.0] for size in sizes] + [[0.0, 0.0]] * pad)
        weights = torch.tensor([1.0] * len(sizes) + [0.0] * pad)
        options = {"clipping": STYLES["adaptive"], "group_size": group_size, "expected_batch_size": 4.0}
        private = private_of(Two(), **options)
        private.accumulate(x, torch.tensor([[0.1, 0.0]]).expand(len(x), 2), row_weights=weights)
        return 0.0 if private._adaptation.below is None else float(private._adaptation.below)

    # One unit more takes the place of padding, and moves the count by what the noise is sized for.
    moved = below(sizes, pad) - below(sizes[:-1], pad + 1)
    assert abs(moved) <= 0.5 * (1 if group_size == 1 else 2)
    if group_size == 1:  # a unit that is dropped counts as one above
        assert below(sizes, pad) == sum(0.5 if size < 1 else -0.5 for size in sizes)


# --- noise, denominator, event ------------------------------------------------------------------------------


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(20_000))
        self.unused = nn.Parameter(torch.zeros(100))

    def forward(self, x):
        return x * self.w


def first(model, x):
    return model(x)[:, 0]


@any_engine
@pytest.mark.parametrize("rows", [0, 2])
def test_noise_has_the_stated_stddev_also_for_an_empty_batch_and_unused_parameters(engine, rows):
    model = Wide()
    options = {"noise": None, "generator": seeded(0), "noise_multiplier": 3.0, "expected_batch_size": 4.0}
    private_of(model, first, engine=engine, **options).backward(torch.zeros(rows, 20_000))
    found = torch.cat([model.w.grad[1:], model.unused.grad]).numpy()
    assert kstest(found, norm(scale=3.0 * 0.5 / 4).cdf).pvalue > ALPHA
    assert kstest(found, norm(scale=1.1 * 3.0 * 0.5 / 4).cdf).pvalue < ALPHA


@any_style
def test_noise_comes_once_a_step_sized_for_the_bound(style):
    noise = Silent()
    private = private_of(Two(), clipping=STYLES[style], noise=noise, noise_multiplier=3.0, microbatch_size=2)
    for step, rows in enumerate((5, 0, 3)):
        bound = private.bound
        private.backward(*some(rows))
        assert noise.asked[step] == (3.0 * bound, step) and len(noise.asked) == step + 1


def test_noise_is_fresh_at_every_step():
    model = Two()
    private = private_of(model, noise=None, generator=seeded(0))
    found = []
    for _ in range(3):
        private.backward(*some(0))
        found.append(flat_grad(model))
    assert len({tuple(f.tolist()) for f in found}) == 3


def test_the_denominator_is_public_whatever_the_size_of_the_batch():
    model, batch = Two(torch.float64), some(5, dtype=torch.float64)
    whole = clipped_sum(model, *batch)
    assert torch.allclose(clipped_sum(model, *batch, expected_batch_size=8.0) * 8, whole)


@pytest.mark.parametrize("group_size", [1, 4])
def test_the_event_is_that_of_the_steps_taken_with_the_noise_they_had(group_size):
    private = private_of(Two(), group_size=group_size, expected_batch_size=4.0)
    taken = [2.0, 2.0, 1.5, 2.0]
    for noise in taken:
        private.noise_multiplier = noise
        private.backward(*some(3))
    sensitivity = 1 if group_size == 1 else 2
    alone = [dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise / sensitivity)) for noise in taken]
    wanted = price(dp.ComposedDpEvent(alone), delta=1e-5, relation="add-remove")
    found = price(private.event(PoissonSampling(sampling_rate=0.1)), delta=1e-5, relation="add-remove")
    assert found.epsilon == pytest.approx(wanted.epsilon, rel=1e-3)


def test_a_clip_schedule_scales_bound_noise_and_thresholds_alike_and_is_saved():
    model, (x, g) = Two(), some(3)
    noise = Silent()
    private = private_of(model, noise=noise, clipping=STYLES["per layer"])
    before = private.step.event(1.0)
    private.scale_clipping(3.0)
    assert private.bound == pytest.approx(1.5) and private.step.event(1.0) == before
    private.backward(100 * x[:1], g[:1])
    assert noise.asked == [(pytest.approx(1.5), 0)] and float(flat_grad(model).norm()) == pytest.approx(1.5)
    other = private_of(model, clipping=STYLES["per layer"])
    other.load_state_dict(private.state_dict())
    assert other.bound == private.bound and other._clipper.thresholds == private._clipper.thresholds
    private.scale_clipping(1.0)
    assert private.bound == 0.5


@pytest.mark.parametrize("style", ["adaptive", "coordinate"])
def test_a_schedule_needs_a_fixed_norm(style):
    with pytest.raises(InvalidParameterError, match=r"scales a fixed clip norm"):
        private_of(Two(), clipping=STYLES[style]).scale_clipping(2.0)


@pytest.mark.parametrize("group_size", [1, 2])
def test_thresholds_adapt_towards_the_quantile(group_size):
    adaptive = AdaptiveClip(count_noise_multiplier=0.1, quantile=0.5)
    options = {"clipping": Clipping(clip_norm=0.1, adaptive=adaptive), "group_size": group_size}
    private = private_of(Two(), expected_batch_size=64.0, **options)
    x = torch.tensor([[math.sqrt(8.0), 0.0]]).expand(64, 2)  # with the bias, every gradient has norm 3
    for _ in range(80):
        private.backward(x, torch.tensor([[1.0, 0.0]]).expand(64, 2))
    assert private.bound == pytest.approx(3.0, rel=0.35)  # averages of pairs are 3 too


@pytest.mark.parametrize(("group_size", "sensitivity", "expected"), [(1, 1.0, 7.0), (2, 2.0, 4)])
def test_the_count_gets_noise_for_what_one_unit_moves_and_is_a_share_of_all_groups(
    monkeypatch, group_size, sensitivity, expected
):
    options = {"clipping": STYLES["adaptive"], "group_size": group_size, "expected_batch_size": 7.0}
    private = private_of(Two(), **options)
    told = {}
    monkeypatch.setattr(private._clipper, "adapt", lambda below, **options: told.update(options))
    private.backward(*some(3))
    assert (told["sensitivity"], told["expected_batch_size"]) == (sensitivity, expected)


def test_steps_and_thresholds_are_saved_and_taken_up_again():
    private = private_of(Two(), clipping=STYLES["adaptive"])
    for _ in range(3):
        private.backward(*some(4))
    other = private_of(Two(), clipping=STYLES["adaptive"])
    other.load_state_dict(private.state_dict())
    assert (other.steps, other.bound) == (3, private.bound)
    sampling = PoissonSampling(sampling_rate=0.1)
    assert other.event(sampling) == private.event(sampling)
    noise = other._noise
    other.backward(*some(4))
    assert noise.asked[0][1] == 3  # a seeded stream goes on where it was
