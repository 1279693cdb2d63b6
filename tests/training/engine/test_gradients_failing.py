# SPDX-License-Identifier: Apache-2.0
"""The second half of the tests of `gradients`: what fails, what is refused, and what goes on."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import (
    InvalidParameterError,
    UnsupportedModelError,
    UnsupportedUseError,
)
from sfumato.testing import seeded
from sfumato.training.data import rows
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.rules.linear import LinearOp
from sfumato.training.engine.step.settings import Engines
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping, CoordinateClipping

from ..gradients import private_gradients

SLACK = 1e-4  # float32 rounding
STYLES = {
    "flat": Clipping(clip_norm=0.5),
    "adaptive": Clipping(clip_norm=0.5, adaptive=AdaptiveClip(count_noise_multiplier=1.0)),
}
any_engine = pytest.mark.parametrize("engine", ["book-keeping", "functional", "loop"])


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


def some(rows, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 2, generator=generator, dtype=dtype) for _ in range(2))


# --- memory and failures ------------------------------------------------------------------------------------


@pytest.fixture
def holds(monkeypatch):
    """`holds(most, error)`: from now on no pass takes more rows than `most`."""

    def limit(most, error=torch.OutOfMemoryError):
        run = BookKeeping.run

        def limited(self, batch, **options):
            if rows.count(batch) > most:
                raise error("full")
            return run(self, batch, **options)

        monkeypatch.setattr(BookKeeping, "run", limited)

    return limit


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
@pytest.mark.parametrize("most", [3, 5, 8])
@pytest.mark.parametrize("style", ["flat", "adaptive"])
def test_what_does_not_fit_is_run_in_smaller_pieces_and_no_unit_counts_twice(holds, style, most, error):
    batch = some(13, dtype=torch.float64)
    whole = private_of(Two().double(), clipping=STYLES[style])
    whole.accumulate(*batch)
    wanted = clipped_sum(Two().double(), *batch)
    holds(most, error)
    private = private_of(model := Two().double(), clipping=STYLES[style])
    with pytest.warns(UserWarning, match=r"did not fit in memory; going on with microbatch_size="):
        private.accumulate(*batch)
    below = private._adaptation.below
    private.finish()
    assert private.microbatch_size <= most and torch.allclose(flat_grad(model), wanted)
    assert (below is None and whole._adaptation.below is None) or torch.equal(below, whole._adaptation.below)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private.backward(*batch)  # it has learned


def test_the_warning_does_not_tell_the_size_of_the_batch(holds):
    sizes = set()
    holds(16)
    for size in (17, 23, 32):
        private = private_of(Two().double())
        with pytest.warns(UserWarning, match=r"did not fit"):
            private.backward(*some(size, dtype=torch.float64))
        sizes.add(private.microbatch_size)
    assert sizes == {16}


def test_a_unit_that_alone_does_not_fit_is_an_error_that_leaves_nothing(holds):
    holds(2)
    private = private_of(model := Two().double(), microbatch_size=1)
    with pytest.raises(InvalidParameterError, match=r"one unit's gradients alone"):
        private.backward(*some(8, dtype=torch.float64), rows_per_unit=4)
    assert private.steps == 0 and all(p.grad is None for p in model.parameters())


class Failing(Two):
    """Two, that fails from a given call on. A class may count calls, for it does not leave with the model."""

    calls, fails_at = 0, None

    def forward(self, x):
        Failing.calls += 1
        if self.fails_at is not None and self.calls > self.fails_at:
            raise KeyboardInterrupt
        return super().forward(x)


@any_engine
def test_an_exception_in_the_middle_of_a_step_leaves_nothing_for_the_next(engine):
    model, (x, g) = Failing(torch.float64), some(6, dtype=torch.float64)
    private = private_of(model, engine=engine, microbatch_size=2, clipping=STYLES["adaptive"])
    private.backward(x, g)
    keys, before = list(model.state_dict()), {n: id(p) for n, p in model.named_parameters()}
    model.fails_at = model.calls + 1  # the first piece works (a loop's first row), the rest does not
    bound = private.bound
    with pytest.raises(KeyboardInterrupt):
        private.backward(x, g)
    assert all(p.grad is None for p in model.parameters()) or engine == "loop"
    assert list(model.state_dict()) == keys and {n: id(p) for n, p in model.named_parameters()} == before
    assert (private.steps, private.bound, private._adaptation.below) == (1, bound, None)
    model.fails_at = None
    private.backward(x[:0], g[:0])
    assert not flat_grad(model).any()


SECRET = 7777


def chain(error):
    """Return an error with all that is behind it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def labels_of(rows, label):
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
    return x, torch.full((rows,), label)


def torchs_cross_entropy(model, x, y):
    """A loss of the user's: ours ignores a label that is no class."""
    return F.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("check", [True, False])
@any_engine
def test_a_row_on_which_the_loss_fails_contributes_nothing_and_no_error_tells_of_it(engine, check):
    private = private_of(model := Two(), torchs_cross_entropy, engine=engine, check=check)
    x, y = labels_of(4, 1)
    y[2] = SECRET
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private.backward(x, y)
        found, kept = flat_grad(model).clone(), [0, 1, 3]
        private.backward(x[kept], y[kept])
        assert torch.allclose(found, flat_grad(model), rtol=1e-5) and float(found.norm()) > 0
        private.backward(*labels_of(4, SECRET))
    assert private.steps == 3 and not flat_grad(model).any()


class Talkative(Two):
    """Two, that says what it does not like."""

    def forward(self, x):
        if bool((x > 100).any()):
            raise KeyError(f"row {x.max()}")
        return super().forward(x)


def test_a_row_that_a_model_of_the_users_refuses_contributes_nothing():
    private = private_of(model := Talkative(torch.float64), engine="auto")
    x, g = some(4, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"functional engine, row by row"):
        private.backward(torch.cat([x, x + SECRET]), torch.cat([g, g]))
    assert torch.allclose(flat_grad(model), clipped_sum(Two(torch.float64), x, g))


class Refused(Two):
    """Two, of which a part was replaced after it was rehearsed: that is no row's fault."""

    def forward(self, x):
        if not hasattr(self.a, "weight"):
            raise LookupError("no weight")
        return super().forward(x)


@any_engine
def test_what_fails_later_whatever_the_rows_are_is_an_error_all_the_same(engine):
    private = private_of(model := Refused(), engine=engine)
    private.backward(*some(4))
    del model.a.weight
    with pytest.raises((LookupError, AttributeError, InvalidParameterError, UnsupportedUseError)):
        private.backward(*some(4))
    assert private.steps == 1


@pytest.mark.parametrize("style", ["flat", "adaptive"])
@any_engine
def test_a_unit_that_fails_counts_as_one_without_a_gradient(engine, style):
    """Both are left out, whole units at a time, and do not move the count of an adaptive threshold apart."""
    x, y = labels_of(6, 1)
    options = {"engine": engine, "clipping": STYLES[style]}
    failing, lacking = (private_of(Two(), torchs_cross_entropy, **options) for _ in range(2))
    failing.accumulate(x, y.index_fill(0, torch.tensor([3]), SECRET), rows_per_unit=2)
    lacking.accumulate(x.index_fill(0, torch.tensor([3]), math.nan), y, rows_per_unit=2)
    below = [private._adaptation.below for private in (failing, lacking)]
    assert style == "flat" or torch.equal(*below)
    for name, sums in failing._sums._views.items():
        assert torch.allclose(sums, lacking._sums._views[name], rtol=1e-5)


class Rejecting(nn.Module):
    """Refuses some rows with an error of ours that was made of one which quotes a row."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2).double()

    def forward(self, x):
        try:
            raise RuntimeError(f"row {SECRET}")
        except RuntimeError as error:
            raise UnsupportedModelError("not this one") from error


@any_engine
def test_an_error_of_ours_does_not_carry_the_one_it_was_made_of(engine):
    private = private_of(Rejecting(), engine=engine)
    with pytest.raises(UnsupportedModelError, match=r"not this one") as caught:
        private.backward(*some(4, dtype=torch.float64))
    assert all("77" not in str(error) for error in chain(caught.value))


def test_what_fails_whatever_the_rows_are_is_told_as_it_is():
    private = private_of(Two())
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(1x7") as caught:
        private.backward(torch.full((5, 7), float(SECRET)), torch.zeros(5, 2))
    assert len(list(chain(caught.value))) == 1  # said of a row of zeros, not of private ones


@pytest.mark.parametrize("count", [0, 1, 6])
@pytest.mark.parametrize("value", [1.0, math.nan, 1e30])
def test_the_self_check_is_made_whatever_the_rows_are_and_however_many(monkeypatch, count, value):
    wrong = LinearOp.per_unit
    monkeypatch.setattr(LinearOp, "per_unit", lambda op, slot: wrong(op, slot) * 2)
    x, g = some(count, dtype=torch.float64)
    with pytest.raises(UnsupportedModelError, match=r"a.weight"):
        private_of(Two(torch.float64), check=True).accumulate(x * value, g)


class Breaking(Silent):
    def add_(self, sums, *, stddev, step):
        super().add_(sums, stddev=stddev, step=step)
        if len(self.asked) == 1:
            raise KeyboardInterrupt


def test_an_exception_while_noise_is_added_leaves_nothing_for_the_next_step():
    private = private_of(model := Two(), noise=Breaking())
    with pytest.raises(KeyboardInterrupt):
        private.backward(*some(4))
    assert private.steps == 0 and all(p.grad is None for p in model.parameters())
    private.backward(*some(0))
    assert not flat_grad(model).any()


def test_a_step_is_counted_before_its_gradient_is_seen(monkeypatch):
    private = private_of(model := Two(), clipping=STYLES["adaptive"])
    monkeypatch.setattr(private._clipper, "adapt", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        private.backward(*some(4))
    assert private.steps == 1 and all(p.grad is None for p in model.parameters())


def test_no_sum_without_noise_is_in_a_grad_between_steps():
    private = private_of(model := Two())
    private.backward(*some(4))
    private.accumulate(*some(4))
    assert all(p.grad is None for p in model.parameters())
    private.finish()
    assert float(flat_grad(model).norm()) > 0


# --- models -------------------------------------------------------------------------------------------------


def test_a_model_that_moves_to_another_type_after_construction_goes_on():
    model, batch = Two(), some(4, dtype=torch.float64)
    private = private_of(model)
    private.backward(*some(4))
    model.double()
    private.backward(*batch)
    assert flat_grad(model).dtype is torch.float64
    assert torch.allclose(flat_grad(model), clipped_sum(model, *batch))


def test_frozen_parameters_have_no_gradient_and_no_part_in_the_norm():
    model, batch = Two(torch.float64), some(4, dtype=torch.float64)
    model.b.requires_grad_(False)
    private = private_of(model)
    private.backward(1000 * batch[0], batch[1])
    assert model.b.weight.grad is None and list(private.parameters) == ["a.weight", "a.bias"]
    assert private_of(model, clipping=CoordinateClipping(coordinate_bound=1.0)).bound == pytest.approx(
        math.sqrt(3)
    )


@pytest.mark.parametrize("freeze", [True, False])
def test_parameters_frozen_or_unfrozen_after_construction_are_refused(freeze):
    model = Two()
    model.b.requires_grad_(freeze)
    private = private_of(model, check=True)
    model.b.requires_grad_(not freeze)
    with pytest.raises(InvalidParameterError, match=r"frozen or unfrozen"):
        private.backward(*some(4))


class Dropping(Two):
    def forward(self, x):
        return super().forward(F.dropout(x, 0.5, self.training))


@any_engine
def test_dropout_is_clipped_like_anything_else_and_the_check_does_not_mind(engine):
    private = private_of(model := Dropping(), engine=engine, check=True)
    for _ in range(20):
        private.backward(*(1000 * part for part in some(1)))
        assert float(flat_grad(model).norm()) <= 0.5 * (1 + SLACK)


@any_engine
def test_bfloat16_autocast_keeps_the_bound_whatever_the_batch(engine):
    x, g = torch.ones(1025, 2), torch.ones(1025, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with_it = clipped_sum(Two(), x, g, engine=engine)
        without = clipped_sum(Two(), x[1:], g[1:], engine=engine)
    assert float((with_it - without).norm()) <= 0.5 * 1.01  # the rounding of one unit, not of a thousand


@pytest.mark.parametrize("projections", [1, 20])
def test_projections_drop_what_is_not_finite_and_add_noise_once(projections):
    x, g = some(4, dtype=torch.float64)
    x[1] = math.nan
    noise = Silent()
    options = {"clipping": Clipping(clip_norm=1e9), "noise": noise}  # so large that nothing is clipped
    private = private_of(model := Two(torch.float64), engine="auto", projections=projections, **options)
    private.backward(x, g)
    assert noise.asked == [(1e9, 0)] and private.engine == "Projections"
    kept = (x[[0, 2, 3]], g[[0, 2, 3]])
    assert torch.allclose(flat_grad(model), clipped_sum(model, *kept, clipping=options["clipping"]))


# --- engines and the self-check -----------------------------------------------------------------------------


class Odd(Two):
    def forward(self, x):
        return super().forward(x) * (2 if bool((x > 0).any()) else 1)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("compile", [True, False])
def test_auto_goes_on_with_the_functional_engine_where_rows_cannot_be_isolated(check, compile):
    private = private_of(model := Odd(torch.float64), engine="auto", check=check, compile=compile)
    assert private.engine == "BookKeeping"
    with pytest.warns(UserWarning, match=r"functional engine, row by row, which is slow"):
        private.backward(*some(4, dtype=torch.float64))
    found = flat_grad(model)
    assert private.engine == "Functional"
    assert torch.allclose(found, clipped_sum(model, *some(4, dtype=torch.float64), engine="loop"))
    with pytest.raises(UnsupportedUseError, match=r"looks at values"):
        clipped_sum(Odd(), *some(4), engine="book-keeping")


class Centered(Two):
    def forward(self, x):
        return super().forward(x - x.mean(0)) + super().forward(x)


@pytest.mark.parametrize("options", [{}, {"projections": 3}, {"group_size": 2, "expected_batch_size": 2.0}])
def test_a_model_that_mixes_rows_is_trained_as_if_each_were_alone(options):
    options = {"check": True, "engine": "auto", "clipping": Clipping(clip_norm=1e9)} | options
    private = private_of(model := Centered(torch.float64), **options)
    x, g = some(4, dtype=torch.float64)
    private.backward(x, g)
    found = flat_grad(model)
    total = sum(product(model, x[i : i + 1], g[i : i + 1]) for i in range(4)) / options.get("group_size", 1)
    total = total / options.get("expected_batch_size", 1)
    wanted = torch.cat([p.flatten() for p in torch.autograd.grad(total, list(model.parameters()))])
    assert torch.allclose(found, wanted)


def test_the_check_is_made_once_and_can_be_left_out(monkeypatch):
    calls = []
    monkeypatch.setattr("sfumato.training.engine.passes.self_check", lambda *args: calls.append(1) or True)
    private = private_of(Two(), check=True)
    for _ in range(3):
        private.backward(*some(4))
    private_of(Two(), check=False).backward(*some(4))
    private_of(Two(), check=True, engine="functional").backward(*some(4))
    assert calls == [1]


def test_batch_norm_that_was_frozen_and_is_set_to_training_is_refused_at_the_next_step():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)).eval()
    private = private_of(model, check=False)
    private.backward(*some(4))
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"1 \(BatchNorm1d\).*fix"):
        private.backward(*some(4))
    assert private.steps == 1


def test_a_rehearsal_keeps_nothing_and_raises_what_would_fail():
    private = private_of(model := Two(), check=True)
    state = torch.get_rng_state()
    assert private.rehearse(*some(2))
    assert not private.rehearse(torch.full((2, 2), math.nan), some(2)[1])
    assert torch.equal(torch.get_rng_state(), state)
    private.backward(*some(0))
    assert not flat_grad(model).any() and private.steps == 1
    with pytest.raises(RuntimeError):
        private.rehearse(torch.zeros(2, 7), torch.zeros(2, 2))


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"expected_batch_size": -1.0}, "expected_batch_size"),
        ({"microbatch_size": 0}, "microbatch_size"),
        ({"group_size": 0}, "group_size"),
        ({"clip_norm": 1.0}, "either clip_norm or clipping"),
        ({"clipping": None}, "either clip_norm or clipping"),
        ({"cuda_graphs": True, "projections": 3}, "Leave cuda_graphs and compile out"),
        ({"generator": seeded(0)}, "noise source has a generator of its own"),
        ({"projections": 3, "clipping": CoordinateClipping(coordinate_bound=1.0)}, "Clip by norm"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        private_of(Two(), **options)


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match=r"'magic'"):
        private_of(Two(), engine="magic")
    assert private_of(Two(), engine=Engines.FUNCTIONAL).engine == "Functional"


@pytest.mark.parametrize(
    ("loss", "batch", "message"),
    [
        (lambda m, x, g: product(m, x, g).mean(), some(4), r"one number for the whole batch"),
        (lambda m, x, g: m(x), some(4), r"one number for each row of the batch"),
        (lambda m, x, g: 1.0, some(4), r"returned a float"),
        (product, (some(4)[0], some(3)[1]), r"Move the batch axis to the front"),
        (product, (some(4)[0], "text"), r"holds a str"),
        (product, (), r"holds no tensor"),
    ],
)
@any_engine
def test_batches_and_losses_of_the_wrong_shape_are_refused_without_a_private_number(
    engine, loss, batch, message
):
    private = private_of(Two(), loss, engine=engine)
    with pytest.raises(InvalidParameterError, match=message) as error:
        private.backward(*batch)
    assert private.steps == 0 and not any(digit in str(error.value) for digit in "3456789")


def test_a_batch_with_a_part_of_a_unit_is_refused():
    with pytest.raises(InvalidParameterError, match=r"whole units of rows_per_unit=3.*row_weights of 0"):
        private_of(Two()).backward(*some(4), rows_per_unit=3)


def test_row_weights_of_another_length_are_refused():
    with pytest.raises(InvalidParameterError, match=r"same number of rows"):
        private_of(Two()).backward(*some(4), row_weights=torch.ones(3))


def test_a_model_with_nothing_trainable_or_with_batch_norm_is_refused():
    with pytest.raises(InvalidParameterError, match=r"no trainable parameter"):
        private_of(Two().requires_grad_(False))
    with pytest.raises(UnsupportedModelError, match=r"BatchNorm1d.*fix"):
        private_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_a_parameter_that_was_replaced_is_refused():
    private = private_of(model := Two())
    model.a.weight = nn.Parameter(torch.zeros(1, 2))
    with pytest.raises(InvalidParameterError, match=r"'a.weight'.*replaced"):
        private.backward(*some(4))


class Standardized(Two):
    def forward(self, x):
        return super().forward(x) / x.std(0).sum()


class Normalized(Two):
    def forward(self, x):
        return super().forward(x / x.norm(dim=1, keepdim=True))


@any_engine
@pytest.mark.filterwarnings("ignore:std")
def test_a_model_without_a_finite_gradient_on_any_row_alone_is_refused(engine):
    private = private_of(model := Standardized(torch.float64), engine=engine, check=True)
    with pytest.raises(UnsupportedModelError, match=r"deviation over the batch"):
        private.backward(*some(6, dtype=torch.float64))
    assert private.steps == 0 and all(p.grad is None for p in model.parameters())


@any_engine
def test_a_model_that_has_no_gradient_on_rows_of_zeros_is_trained(engine):
    private = private_of(Normalized(torch.float64), engine=engine, check=True)
    private.backward(*some(6, dtype=torch.float64))
    assert private.steps == 1


# --- a history that cannot be changed -----------------------------------------------------------------------


def test_what_was_done_cannot_be_edited():
    private = private_of(Two())
    private.backward(*some(4))
    for name, value in {"steps": 0, "history": (), "step": None, "bound": 0.0}.items():
        with pytest.raises(AttributeError):
            setattr(private, name, value)
    private.noise_multiplier = 5.0  # of the steps to come
    private.backward(*some(4))
    assert private.history == ((1.0, 1), (5.0, 1)) and private.steps == 2


def test_a_checkpoint_does_not_replace_steps_that_were_taken():
    first, second = private_of(Two()), private_of(Two())
    first.backward(*some(4))
    second.load_state_dict(first.state_dict())
    assert second.history == first.history
    with pytest.raises(InvalidParameterError, match="took no step yet"):
        first.load_state_dict(private_of(Two()).state_dict())
    assert first.steps == 1


def test_a_step_is_counted_with_the_noise_that_it_got():
    class Raising(Silent):
        def add_(self, sums, *, stddev, step):
            super().add_(sums, stddev=stddev, step=step)
            private.noise_multiplier = 100.0

    private = private_of(Two(), noise=Raising())
    private.backward(*some(4))
    assert private.history == ((1.0, 1),)
