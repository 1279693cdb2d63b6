# SPDX-License-Identifier: Apache-2.0
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sfumato import Budget, Ledger
from sfumato.accounting import default_delta
from sfumato.errors import (
    BudgetExceededError,
    CalibrationError,
    InvalidParameterError,
    RelationMismatchError,
)
from sfumato.ledger.state import Progress
from sfumato.mechanisms.random import FastGenerator
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    CoordinateClipping,
    CyclicBatches,
    DpSgd,
    FixedSizeSampling,
    NoisyStep,
    PoissonSampling,
    Runtime,
    Scaling,
    ShuffledBatches,
    Trainer,
    TrainingRun,
    TruncatedPoissonSampling,
    train,
)
from sfumato.training.budget import dp_sgd_for
from sfumato.training.description import Privacy

ALPHA = 1e-6
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 2


@pytest.fixture(autouse=True)
def one_thread():
    """Small products are slower on two threads, and much slower where others use the second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_of(noise=((1.0, 4),), rate=1.0, sampling=None, relation="add-remove", **step):
    step.setdefault("clipping", Clipping(clip_norm=1.0))
    sampling = PoissonSampling(sampling_rate=rate) if sampling is None else sampling
    return DpSgd(step=NoisyStep(**step), sampling=sampling, noise=noise, relation=relation)


def linear(seed=0, outputs=2, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Linear(3, outputs, dtype=dtype)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def fit(data, mechanism, model=None, seed=0, **options):
    model = linear() if model is None else model
    options = {"public_size": 40, "delta": 1e-5, "optimizer": sgd, "generator": seeded(seed)} | options
    return Trainer(model, data, mechanism=mechanism, **options).fit()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved_by(data, mechanism, **options):
    """Return how far one run moves the weights of the same model."""
    model = linear(dtype=options.pop("dtype", torch.float32))
    before = flat(model)
    fit(data, mechanism, model=model, **options)
    return flat(model) - before


# --- what a step does ------------------------------------------------------------------------------------


def no_loss(model, x, y):
    return model(x).sum(1) * 0.0


def test_the_noise_added_has_the_stated_standard_deviation():
    model = nn.Linear(3, 8000)
    mechanism = run_of([(2.0, 1)], clipping=Clipping(clip_norm=0.5))
    before = flat(model)
    fit((X, Y), mechanism, model=model, loss=no_loss, public_size=10)
    noise = (flat(model) - before).numpy()
    stated = norm(scale=2.0 * 0.5 / 10)  # multiplier * clip norm / expected batch size
    assert kstest(noise, stated.cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=1.1 * 2.0 * 0.5 / 10).cdf).pvalue < ALPHA


def test_noise_is_fresh_at_each_step_and_in_each_run():
    mechanism = run_of([(1.0, 1)])
    first, second = (moved_by((X, Y), mechanism, loss=no_loss, generator=None) for _ in range(2))
    assert not torch.equal(first, second)
    two = moved_by((X, Y), run_of([(1.0, 2)]), loss=no_loss)
    one = moved_by((X, Y), mechanism, loss=no_loss)
    assert not torch.allclose(two, 2 * one)


def test_each_step_has_the_noise_of_its_place_in_the_schedule():
    model = nn.Linear(3, 8000)
    weights = []

    def watched(model, x, y):
        weights.append(flat(model))
        return no_loss(model, x, y)

    fit((X, Y), run_of([(1.0, 2), (3.0, 1)]), model=model, loss=watched, runtime=Runtime(check=False))
    weights.append(flat(model))
    seen = [w for i, w in enumerate(weights) if i == 0 or not torch.equal(w, weights[i - 1])]
    scales = [float((b - a).std()) * 40 for a, b in pairwise(seen)]
    assert scales == pytest.approx([1.0, 1.0, 3.0], rel=0.05)


def test_sums_are_divided_by_the_expected_size_whatever_the_size_of_the_batch():
    mechanism = run_of([(1.0, 1)])
    noise = moved_by((X[:0], Y[:0]), mechanism)
    once = moved_by((X, Y), mechanism) - noise
    twice = moved_by((torch.cat([X, X]), torch.cat([Y, Y])), mechanism) - noise
    assert torch.allclose(twice, 2 * once, atol=1e-5)
    assert torch.allclose(moved_by((X, Y), mechanism, public_size=80), (once + noise) / 2, atol=1e-5)


def test_an_empty_batch_is_a_step():
    run = fit((X, Y), run_of([(1.0, 3)], rate=1e-9))
    assert [row.step for row in run.history] == [1, 2, 3]
    assert moved_by((X[:0], Y[:0]), run_of([(1.0, 2)])).abs().min() > 0


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(width=32), min_size=3, max_size=3), st.floats(0.01, 10))
def test_one_unit_moves_the_sum_by_at_most_the_bound(row, clip_norm):
    mechanism = run_of([(1.0, 1)], clipping=Clipping(clip_norm=clip_norm))
    more = (torch.cat([X, torch.tensor([row])]), torch.cat([Y, Y[:1]]))
    difference = moved_by(more, mechanism) - moved_by((X, Y), mechanism)
    assert difference.isfinite().all()
    assert difference.norm() * 40 <= clip_norm * (1 + 1e-3) + 1e-3


def test_a_row_that_is_not_a_number_changes_nothing():
    bad = X.clone()
    bad[7] = torch.nan
    without = torch.arange(40) != 7
    mechanism = run_of([(1.0, 3)])
    expected = moved_by((X[without], Y[without]), mechanism)
    assert torch.allclose(moved_by((bad, Y), mechanism), expected, atol=1e-5)


def test_one_owner_moves_the_sum_by_at_most_the_bound_however_many_rows_it_has():
    owners = torch.zeros(40, dtype=torch.int64)
    owners[20:] = torch.arange(20) + 1
    mechanism = run_of([(1.0, 1)])
    options = {"contribution_bound": 4}
    whole = moved_by((X * 100, Y), mechanism, owners=owners, **options)
    less = moved_by((X[20:] * 100, Y[20:]), mechanism, owners=owners[20:], **options)
    assert 0 < (whole - less).norm() * 40 <= 1 + 1e-4


def test_views_are_averaged_before_clipping():
    def shift(batch, generator):
        x, y = batch
        return x + torch.arange(len(x))[:, None] % 2, y  # the second view of a row is another row

    data = (X[:1], Y[:1])
    mechanism = run_of([(1.0, 1)], clipping=Clipping(clip_norm=100.0))
    noise = moved_by((X[:0], Y[:0]), mechanism)
    views = moved_by(data, mechanism, augment=shift, views=2) - noise
    each = [moved_by((X[:1] + i, Y[:1]), mechanism) - noise for i in range(2)]
    assert torch.allclose(views, (each[0] + each[1]) / 2, atol=1e-4)


@pytest.mark.parametrize("microbatch_size", [1, 7, 40])
def test_pieces_add_up_to_the_same_step(microbatch_size):
    mechanism = run_of([(1.0, 3)])
    data = (X.double(), Y)
    pieces = moved_by(data, mechanism, runtime=Runtime(microbatch_size=microbatch_size), dtype=torch.float64)
    assert torch.allclose(pieces, moved_by(data, mechanism, dtype=torch.float64), atol=1e-12)


def test_the_clip_schedule_scales_bound_and_noise_and_leaves_the_event():
    model = nn.Linear(3, 8000)
    before = flat(model)
    run = fit((X, Y), run_of([(1.0, 1)]), model=model, loss=no_loss, clip_schedule=lambda step: 0.25)
    assert float((flat(model) - before).std()) * 40 == pytest.approx(0.25, rel=0.05)
    assert run.mechanism.event() == run_of([(1.0, 1)]).event()
    half = run_of([(1.0, 2)], clipping=Clipping(clip_norm=0.5))
    scheduled = moved_by((X, Y), run_of([(1.0, 2)]), clip_schedule=lambda step: 0.5)
    assert torch.allclose(scheduled, moved_by((X, Y), half), atol=1e-6)


def test_a_clip_schedule_that_cannot_be_is_refused_at_once():
    with pytest.raises(InvalidParameterError, match=r"clip_schedule\(2\)"):
        fit((X, Y), run_of(), clip_schedule=lambda step: 2 - step)
    adaptive = run_of(clipping=Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=5.0)))
    for mechanism in (adaptive, run_of(clipping=CoordinateClipping(coordinate_bound=1.0))):
        with pytest.raises(InvalidParameterError, match="schedule"):
            fit((X, Y), mechanism, clip_schedule=lambda step: 1.0)


STYLES = {
    "automatic": {"clipping": Clipping(clip_norm=1.0, scaling=Scaling.AUTOMATIC)},
    "global": {"clipping": Clipping(clip_norm=1.0, scaling=Scaling.GLOBAL, drop_above=2.0)},
    "per-layer": {"clipping": Clipping(clip_norm=1.0, per_layer=True)},
    "adaptive": {"clipping": Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=5.0))},
    "coordinate": {"clipping": CoordinateClipping(coordinate_bound=0.1)},
    "groups": {"clipping": Clipping(clip_norm=1.0), "group_size": 4},
    "projections": {"clipping": Clipping(clip_norm=1.0), "projections": 8},
}


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_clipping_trains_and_takes_the_steps_it_paid_for(style):
    run = fit((X, Y), run_of([(4.0, 3), (5.0, 2)], rate=0.5, **STYLES[style]))
    assert flat(run.model).isfinite().all()
    assert run.epsilon == run.mechanism.price(delta=1e-5).epsilon


SAMPLINGS = {
    "truncated": (TruncatedPoissonSampling(sampling_rate=0.2, batch_size=20, public_size=40), "add-remove"),
    "fixed": (FixedSizeSampling(batch_size=8, public_size=40), "replace-one"),
    "shuffled": (ShuffledBatches(batch_size=8, public_size=40), "zero-out"),
    "cyclic": (CyclicBatches(batch_size=8, public_size=40), "zero-out"),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_sampler_trains_under_a_relation_it_has_a_proof_for(name):
    sampling, relation = SAMPLINGS[name]
    run = fit((X, Y), run_of([(4.0, 7)], sampling=sampling, relation=relation))
    assert run.guarantee.relation.value == relation
    assert str(sampling.batch_size) in run.statement()


# --- optimizers, schedules, averages ---------------------------------------------------------------------


def test_any_optimizer_and_schedule_may_be_given():
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    run = fit(
        (X, Y),
        run_of([(1.0, 4)]),
        model=model,
        optimizer=optimizer,
        schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    )
    assert [row.learning_rate for row in run.history] == [0.1, 0.05, 0.05, 0.025]


def test_optimizers_that_cannot_go_with_private_steps_are_refused_before_anything_is_paid(tmp_path):
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5)
    )
    bad = {
        "several times": torch.optim.LBFGS,
        "does not update": lambda parameters: torch.optim.SGD(parameters[:1], lr=1.0),
        "not the model's": lambda parameters: torch.optim.SGD([*parameters, nn.Parameter(X)], lr=1.0),
    }
    for message, optimizer in bad.items():
        with pytest.raises(InvalidParameterError, match=message):
            fit((X, Y), run_of(), optimizer=optimizer, account=account, purpose="test")
    with pytest.raises(InvalidParameterError, match="learning_rate"):
        fit((X, Y), run_of(), learning_rate=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(InvalidParameterError, match="without a metric"):
        fit((X, Y), run_of(), schedule=plateau, account=account, purpose="test")
    assert account.releases() == []


def test_the_average_of_weights_is_evaluated_and_handed_over():
    model, weights = linear(), []

    def watched(model, x, y):
        weights.append(flat(model))
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    run = fit((X, Y), run_of([(1.0, 3)]), model=model, ema_decay=0.5, evaluation=(X, Y), loss=watched)
    evaluated = weights[-1]
    assert torch.equal(flat(run.model), evaluated)
    plain = fit((X, Y), run_of([(1.0, 3)]), loss=watched)
    assert not torch.allclose(flat(plain.model), evaluated)


def test_evaluation_is_exact_in_evaluation_mode_and_leaves_dropout_on_for_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    modes = []
    model[1].register_forward_hook(lambda m, i, o: modes.append(m.training))
    run = fit((X, Y), run_of([(1.0, 2)]), model=model, evaluation=(X, Y), evaluate_every=1)
    with torch.no_grad():
        outputs = model(X)
    last = run.history[-1]
    assert last.accuracy == pytest.approx(float((outputs.argmax(1) == Y).float().mean()))
    assert last.loss == pytest.approx(float(nn.functional.cross_entropy(outputs, Y)), rel=1e-6)
    assert True in modes[modes.index(False) + 1 :]  # the second step, after the first evaluation


def test_a_score_of_ones_own_is_shown_beside_a_loss_of_ones_own():
    def squared(model, x, y):
        return (model(x)[:, 0] - y).square()

    run = fit(
        (X, Y), run_of(), loss=squared, evaluation=(X, Y), score=lambda m, x, y: torch.full((len(x),), 0.5)
    )
    assert run.history[-1].accuracy == 0.5
    assert fit((X, Y), run_of(), loss=squared, evaluation=(X, Y)).history[-1].accuracy is None


def test_bfloat16_autocast_trains_to_nearly_the_same_weights():
    mechanism = run_of([(1.0, 3)])
    coarse = moved_by((X, Y), mechanism, runtime=Runtime(autocast=torch.bfloat16))
    fine = moved_by((X, Y), mechanism)
    assert 0 < (coarse - fine).norm() < 0.05 * fine.norm()
    with pytest.raises(InvalidParameterError, match="bfloat16"):
        Runtime(autocast=torch.float16)


# --- the claim -------------------------------------------------------------------------------------------


def test_digits_are_learned_at_epsilon_3():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    run = train(
        model,
        (x[:1437], y[:1437]),
        public_size=1437,
        expected_batch_size=256,
        epochs=30,
        epsilon=3,
        delta=1e-5,
        learning_rate=0.3,
        ema_decay=0.9,
        evaluation=(x[1437:], y[1437:]),
        generator=seeded(0),
    )
    assert run.accuracy is not None and run.accuracy > 0.85
    assert 2.99 < run.epsilon <= 3


def test_the_budget_stop_takes_the_largest_number_of_steps_that_is_paid_for():
    options = {
        "public_size": 40,
        "expected_batch_size": 4,
        "epsilon": 2.0,
        "delta": 1e-5,
        "noise_multiplier": 2.0,
    }
    run = train(linear(), (X, Y), steps=1000, **options)
    taken = run.mechanism.steps
    assert 1 < taken < 1000 and run.history[-1].step == taken
    assert run.epsilon <= 2.0
    longer = run_of([(2.0, taken + 1)], rate=0.1)
    assert longer.price(delta=1e-5).epsilon > 2.0
    assert train(linear(), (X, Y), steps=3, **options).mechanism.steps == 3


class Untouchable(Dataset):
    """Data that must not be read."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        raise AssertionError("the data was touched")


def test_a_budget_too_small_for_one_step_is_refused_before_the_data_is_touched(tmp_path):
    with pytest.raises(CalibrationError, match="does not pay for one step"):
        train(
            linear(),
            Untouchable(),
            public_size=40,
            expected_batch_size=4,
            steps=5,
            epsilon=0.01,
            delta=1e-5,
            noise_multiplier=0.5,
        )
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=0.1, delta=1e-6)
    )
    with pytest.raises(BudgetExceededError, match="Nothing was spent"):
        fit(Untouchable(), run_of(), account=account, purpose="too dear")
    assert account.releases() == []


def test_the_cost_so_far_is_that_of_the_steps_so_far():
    run = fit((X, Y), run_of([(2.0, 2), (3.0, 2)], rate=0.1), evaluate_every=1)
    costs = [run.mechanism.first(step).price(delta=1e-5).epsilon for step in (1, 2, 3, 4)]
    assert [row.epsilon for row in run.history] == costs
    assert costs == sorted(costs) and run.epsilon == costs[-1]


def test_a_plan_says_what_is_missing():
    clipping = Clipping(clip_norm=1.0)
    sizes = {"public_size": 40, "expected_batch_size": 4, "clipping": clipping}
    with pytest.raises(InvalidParameterError, match="epochs or steps"):
        dp_sgd_for(Privacy(**sizes, epsilon=1, delta=1e-5))
    with pytest.raises(InvalidParameterError, match="epochs or steps"):
        dp_sgd_for(Privacy(**sizes, epsilon=1, delta=1e-5, epochs=1, steps=1))
    assert dp_sgd_for(Privacy(**sizes, epsilon=1, steps=1)) == dp_sgd_for(
        Privacy(**sizes, epsilon=1, steps=1, delta=1e-2)
    )
    with pytest.raises(InvalidParameterError, match="how private"):
        dp_sgd_for(Privacy(**sizes, delta=1e-5, steps=1))
    with pytest.raises(InvalidParameterError, match="at most public_size"):
        dp_sgd_for(
            Privacy(public_size=4, expected_batch_size=5, clipping=clipping, steps=1, noise_multiplier=1.0)
        )
    assert dp_sgd_for(Privacy(**sizes, epochs=2.5, noise_multiplier=1.0)).steps == 25


def test_no_size_is_assumed_and_delta_comes_from_the_public_size():
    run = train(linear(), (X, Y), public_size=40, expected_batch_size=4, steps=1, noise_multiplier=1.0)
    assert run.guarantee.delta == default_delta(40) == 1e-2
    with pytest.raises(InvalidParameterError, match="public_size"):
        train(linear(), (X, Y), expected_batch_size=4, steps=1, noise_multiplier=1.0, delta=1e-5)
    with pytest.raises(InvalidParameterError, match="public_size"):
        fit((X, Y), run_of(), public_size=None)


def test_bad_models_losses_and_data_cost_nothing(tmp_path):
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5)
    )
    paid = {"account": account, "purpose": "test"}
    frozen = linear().requires_grad_(False)
    for model in (frozen, nn.Identity()):
        with pytest.raises(InvalidParameterError, match="no trainable parameter"):
            fit((X, Y), run_of(), model=model, **paid)
    with pytest.raises(InvalidParameterError, match="one number for the whole batch"):
        fit((X, Y), run_of(), loss=lambda m, x, y: nn.functional.cross_entropy(m(x), y), **paid)
    with pytest.raises(InvalidParameterError, match="one number for each row"):
        fit((X, Y), run_of(), loss=lambda m, x, y: m(x), **paid)
    with pytest.raises(InvalidParameterError, match=r"loader\.dataset"):
        fit(DataLoader(TensorDataset(X, Y)), run_of(), **paid)
    with pytest.raises(InvalidParameterError, match="no rows"):
        fit((X, Y), run_of(), evaluation=(X[:0], Y[:0]), **paid)
    with pytest.raises(InvalidParameterError, match=r"rows of `evaluation`: .* shapes"):
        fit((X, Y), run_of(), evaluation=(X[:, :2], Y), **paid)
    assert not any(release.spent for release in account.releases())


# --- the ledger ------------------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("clients", privacy_unit="client", budget=Budget(epsilon=8, delta=1e-5))


def test_a_run_is_one_release_of_its_account(account):
    run = fit(
        (X, Y),
        run_of([(4.0, 5)], rate=0.1),
        account=account,
        purpose="first net",
        delta=None,
        privacy_unit="client",
    )
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED and release.event == run.mechanism.event()
    assert release.seeded and run.reservation == release.reservation
    assert (run.privacy_unit, run.price.delta) == ("client", 1e-5)
    assert "release 1 of account 'clients'" in run.statement()  # by its place, not by the ledger's row
    assert run.recorded and "not recorded" not in run.statement()
    again = json.loads(run.to_json())
    assert (again["recorded"], again["account"], again["release_number"]) == (True, "clients", 1)


@pytest.mark.parametrize("make", [FastGenerator, lambda: FastGenerator(1), lambda: seeded(1)])
def test_noise_that_is_not_secure_is_marked_in_the_ledger(account, make):
    paid = {"account": account, "privacy_unit": "client", "delta": None}
    fit((X, Y), run_of([(9.0, 1)]), purpose="secure", generator=None, **paid)
    assert not account.statement().seeded
    fit((X, Y), run_of([(9.0, 1)]), purpose="study", generator=make(), **paid)
    assert [release.seeded for release in account.releases()] == [False, True]
    assert account.statement().seeded


def test_an_exception_while_training_leaves_the_run_spent(account):
    calls = []

    def failing(model, x, y):
        calls.append(1)
        if len(calls) > 12:
            raise RuntimeError("a bug")
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    with pytest.raises(RuntimeError, match="a bug"):
        fit(
            (X, Y), run_of([(9.0, 30)]), loss=failing, account=account, purpose="fails", privacy_unit="client"
        )
    (release,) = account.releases()
    assert release.progress is Progress.BEGUN


def test_labels_out_of_range_are_not_told_and_the_run_finishes(account):
    fit(
        (X, torch.full((40,), 7777)),
        run_of([(9.0, 30)]),
        loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),  # fails; ours ignores them
        account=account,
        purpose="labels",
        privacy_unit="client",
    )
    assert account.releases()[0].progress is Progress.COMMITTED


def test_a_report_that_cannot_be_written_whole_is_not_there(tmp_path, monkeypatch):
    opened = Path.open

    def full(self, mode="r", *args, **options):
        file = opened(self, mode, *args, **options)
        if self.name == "run.json.part":
            with file:
                file.write(b"{")
            raise OSError("the disk is full")
        return file

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Path, "open", full)
        fit((X, Y), run_of(), folder=tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
    fit((X, Y), run_of(), folder=tmp_path / "other")
    assert json.loads((tmp_path / "other" / "run.json").read_text())["steps"] == 4
    assert not list((tmp_path / "other").glob("*.part"))


def test_a_run_can_take_all_that_its_account_has_left(account):
    options = {"public_size": 40, "expected_batch_size": 4, "steps": 10, "account": account}
    options["privacy_unit"] = "client"  # each row is another one
    train(linear(), (X, Y), purpose="half", noise_multiplier=3.0, **options)
    run = train(linear(), (X, Y), purpose="the rest", **options)
    assert account.remaining().fraction < 0.01
    assert run.epsilon < 8  # the two together are within the budget, whatever the accountant
    assert len(account.releases()) == 2


def test_an_account_of_another_relation_or_unit_refuses(account):
    with pytest.raises(RelationMismatchError):
        sampling = FixedSizeSampling(batch_size=4, public_size=40)
        run = run_of(sampling=sampling, relation="replace-one")
        fit((X, Y), run, account=account, purpose="test", privacy_unit="client")
    with pytest.raises(InvalidParameterError, match="whose the rows are"):
        fit((X, Y), run_of(), account=account, purpose="test")
    with pytest.raises(InvalidParameterError, match="protects one 'client'"):
        fit((X, Y), run_of(), account=account, purpose="test", privacy_unit="visit")
    with pytest.raises(InvalidParameterError, match="purpose"):
        fit((X, Y), run_of(), account=account)
    with pytest.raises(InvalidParameterError, match="account"):
        fit((X, Y), run_of(), purpose="test")


# --- what is said of it ----------------------------------------------------------------------------------


def test_the_statement_says_what_was_done_and_for_whom():
    clipping = Clipping(clip_norm=0.5, per_layer=True, adaptive=AdaptiveClip(count_noise_multiplier=9.0))
    mechanism = run_of([(2.0, 3), (3.0, 1)], rate=0.25, clipping=clipping)
    run = fit((X, Y), mechanism, evaluation=(X, Y), owners=Y, contribution_bound=2)
    said = run.statement()
    for part in (
        "4 noisy steps",
        "each user with probability 0.25",
        "L2 norm of 0.5, layer by layer",
        "followed a quantile",
        "standard deviation 2 then 3",
        "divided by 10, a public number",
        "1e-05)-differential privacy for one user, add-remove neighbors",
        "hyper-parameter tuning is not charged",
        "not protected",
        "For study only: the noise was seeded.",
    ):
        assert part in said, part
    assert not run.recorded and "Not recorded in a ledger: nothing adds its cost" in said
    secure = fit((X, Y), run_of([(2.0, 1)]), generator=None).statement()
    assert "study" not in secure and "not protected" not in secure
    assert "not cryptographic" in fit((X, Y), run_of([(2.0, 1)]), generator=FastGenerator()).statement()


def test_the_json_holds_the_guarantee_the_event_and_the_history():
    facts = json.loads(fit((X, Y), run_of([(2.0, 2)], rate=0.1), evaluation=(X, Y)).to_json())
    assert facts["relation"] == "add-remove" and facts["steps"] == 2 and facts["epsilon"] > 0
    assert facts["event"]["event"]["sampling_probability"] == 0.1
    assert facts["recorded"] is False and facts["account"] is None
    shown = {"step", "epsilon", "learning_rate", "loss", "accuracy"}
    assert [set(row) for row in facts["history"]] == [shown, shown]
    assert math.isfinite(facts["history"][-1]["loss"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"owners": Y, "contribution_bound": 2, "privacy_unit": "person"},
            "At most 2 rows of one person count",
        ),
        (
            {"privacy_unit": "person"},
            "Each row was taken for another person; whether that is so was not checked.",
        ),
        ({}, None),
    ],
    ids=["owners", "declared", "rows"],
)
def test_the_statement_and_the_card_say_what_a_unit_has_of_rows(tmp_path, options, says):
    run = fit((X, Y), run_of(), folder=tmp_path / "run", **options)
    loaded = TrainingRun.load(tmp_path / "run")
    for text in (run.statement(), run.card().to_markdown(), loaded.statement()):
        assert says is None or says in text
        assert says is not None or ("rows of one" not in text and "taken for another" not in text)
