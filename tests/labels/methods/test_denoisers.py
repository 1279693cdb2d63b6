# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.methods.denoisers import AltConvDenoiser, Denoised, SelfConvDenoiser, SelfSpanDenoiser
from sfumato.labels.projection.column_generation import ColumnGeneration
from sfumato.labels.projection.gradient_products import LabelGradients
from sfumato.labels.projection.span import Span
from sfumato.testing import seeded
from sfumato.training.engine.gradients import PrivateGradients

CLASSES = 3
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, CLASSES))


def columns(model, features):
    """Form G: [parameters, rows * classes]."""
    products = LabelGradients(model.eval(), features, classes=CLASSES)
    rows, classes = torch.meshgrid(torch.arange(len(features)), torch.arange(CLASSES), indexing="ij")
    found = products.columns(rows.reshape(-1), classes.reshape(-1))
    return torch.cat([part.flatten(1) for part in found.values()], dim=1).T


def flat(gradient):
    return torch.cat([part.flatten() for part in gradient.values()])


def noisy_gradient(model, features, *, noise, seed=0):
    """Return the mean gradient of features for some labels, with and without noise."""
    labels = torch.arange(len(features)) % CLASSES
    clean = columns(model, features)[:, torch.arange(len(features)) * CLASSES + labels].mean(1)
    draws = torch.Generator().manual_seed(seed)
    noisy = clean + noise * torch.randn(len(clean), generator=draws)
    sizes = [p.numel() for p in model.parameters()]
    named = {
        name: part.view_as(p)
        for (name, p), part in zip(model.named_parameters(), noisy.split(sizes), strict=True)
    }
    return named, clean


def unsmoothed(kind):
    terms = {"smoothing": 1.0} if kind is SelfConvDenoiser else {}
    return kind(features=X, classes=CLASSES, **terms)


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("kind", [SelfSpanDenoiser, SelfConvDenoiser])
def test_a_projection_on_a_set_that_holds_the_gradient_comes_closer_to_it(kind, noise):
    model, batch = network(), X[:6]
    noisy, clean = noisy_gradient(model, batch, noise=noise)
    better = unsmoothed(kind).denoise(model, noisy, rows=torch.arange(6), generator=seeded(0))
    assert (flat(better) - clean).norm() < (flat(noisy) - clean).norm()


def test_the_hull_is_closer_than_the_span_where_noise_is_large():
    model, batch = network(), X[:6]
    noisy, clean = noisy_gradient(model, batch, noise=1.0)
    span, hull = (
        unsmoothed(kind).denoise(model, noisy, rows=torch.arange(6), generator=seeded(0))
        for kind in (SelfSpanDenoiser, SelfConvDenoiser)
    )
    assert (flat(hull) - clean).norm() < (flat(span) - clean).norm()


def test_what_is_returned_lies_in_the_hull_of_the_alternative_batch():
    model = network()
    noisy, _ = noisy_gradient(model, X, noise=0.3)
    denoiser = AltConvDenoiser(features=X, classes=CLASSES, batch_size=60, smoothing=1.0)
    better = flat(denoiser.denoise(model, noisy, rows=None, generator=seeded(0)))
    matrix = columns(model, X)
    # The nearest point of the hull has no column on its far side.
    beyond = (matrix.T - better) @ (flat(noisy) - better)
    assert beyond.max() <= 2e-3 * (flat(noisy) - better).norm() ** 2
    assert denoiser.log[-1].reached


CLIP_NORM = 0.5  # less than most gradients
CLOSE = {SelfConvDenoiser: ColumnGeneration(tolerance=1e-9), SelfSpanDenoiser: Span(tolerance=1e-9)}


def sure_network():
    """A model that is sure of what it says, so that gradients for other labels are long."""
    model = network().eval().double()
    with torch.no_grad():
        model[-1].weight.mul_(8)
    return model


def clipped_mean(model, features, labels):
    """What a step releases but for noise: the engine itself, asked for no noise to speak of."""
    private = PrivateGradients(
        model, clip_norm=CLIP_NORM, noise_multiplier=1e-12, expected_batch_size=len(features)
    )
    private.accumulate(features, labels)
    private.finish()
    return {name: p.grad.clone() for name, p in private.parameters.items()}


def projected(kind, model, gradient, rows, *, clip_norm, smoothing=1.0):
    terms = {"smoothing": smoothing} if kind is SelfConvDenoiser else {}
    denoiser = kind(features=X.double(), classes=CLASSES, clip_norm=clip_norm, solver=CLOSE[kind], **terms)
    return denoiser.denoise(model, gradient, rows=torch.arange(rows), generator=seeded(0))


@pytest.mark.parametrize("clip_norm", [None, CLIP_NORM], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("kind", [SelfSpanDenoiser, SelfConvDenoiser])
@pytest.mark.parametrize("labels", [[0] * 6, [2] * 6, [0, 1, 2, 0, 1, 2], [1, 1, 1, 0, 2, 0]], ids=str)
def test_a_gradient_without_noise_is_its_own_projection(kind, labels, clip_norm):
    model = sure_network()
    clean = clipped_mean(model, X[:6].double(), torch.tensor(labels))
    moved = flat(projected(kind, model, clean, 6, clip_norm=clip_norm)) - flat(clean)
    assert moved.norm() <= 1e-4 * flat(clean).norm()


def test_columns_of_a_row_that_are_scaled_alike_would_not_hold_the_gradient():
    """The test above has power: this was the set until a row's columns were left as they are."""
    model, features, labels = sure_network(), X[:6].double(), torch.tensor([1, 1, 1, 0, 2, 0])
    clean = clipped_mean(model, features, labels)
    matrix = columns(model, features).T.reshape(6, CLASSES, -1)
    second = model(features).topk(2).indices[:, 1]
    scales = (CLIP_NORM / matrix.norm(dim=2)[torch.arange(6), second]).clamp(max=1).view(-1, 1, 1)

    class Alike(LabelGradients):
        _scales = property(lambda _: scales[:, :, 0].expand(-1, CLASSES), lambda *_: None)

    found = CLOSE[SelfConvDenoiser].solve(Alike(model, features, classes=CLASSES), clean)
    assert (flat(found.gradient) - flat(clean)).norm() > 0.1 * flat(clean).norm()


def test_replacing_any_one_label_moves_the_released_sum_by_at_most_two_clip_norms():
    model, rows = network().eval().double(), 4
    features = X[:rows].double()
    sums = {
        labels: rows * flat(clipped_mean(model, features, torch.tensor(labels)))
        for labels in itertools.product(range(CLASSES), repeat=rows)
    }
    moves = [
        (sums[labels] - sums[other]).norm()
        for labels, other in itertools.combinations(sums, 2)
        if sum(a != b for a, b in zip(labels, other, strict=True)) == 1
    ]
    assert len(moves) == CLASSES**rows * rows * (CLASSES - 1) / 2
    assert max(moves) <= 2 * CLIP_NORM * (1 + 1e-9)
    assert max(moves) > 1.5 * CLIP_NORM  # one clip norm, as for an added row, would not do


def test_smoothing_mixes_in_the_mean_of_all_columns():
    model, batch = network(), X[:6]
    noisy, _ = noisy_gradient(model.double(), batch.double(), noise=0.3)
    plain, smooth = (
        flat(projected(SelfConvDenoiser, model, noisy, 6, clip_norm=None, smoothing=share))
        for share in (1.0, 0.75)
    )
    even = columns(model, batch.double()).mean(1)
    assert torch.allclose(smooth, 0.75 * plain + 0.25 * even, atol=1e-6)


def test_what_is_smoothed_is_said():
    plain, smooth = (
        AltConvDenoiser(features=X, classes=CLASSES, batch_size=5, smoothing=s) for s in (1.0, 0.75)
    )
    assert "evenly" not in plain.statement()
    assert "share of 0.25 of its weights" in smooth.statement()


@pytest.mark.parametrize(
    ("solver", "early"),
    [(Span(), False), (Span(most_iterations=1, most_columns=0), True)],
    ids=["whole", "early"],
)
def test_the_run_says_how_far_projections_can_be_from_the_nearest_points(solver, early):
    model = network()
    noisy, _ = noisy_gradient(model, X[:6], noise=0.3)
    denoiser = SelfSpanDenoiser(features=X, classes=CLASSES, solver=solver)
    assert "proven to be" not in denoiser.statement()
    better = denoiser.denoise(model, noisy, rows=torch.arange(6), generator=seeded(0))
    matrix = columns(model, X[:6]).double()
    wanted = matrix @ (torch.linalg.pinv(matrix, rtol=1e-6) @ flat(noisy).double())
    away = (flat(better).double() - wanted).norm() / flat(noisy).norm()
    assert away <= denoiser.log[-1].distance + 1e-5
    assert ("1 of 1 projections stopped before their tolerance" in denoiser.statement()) == early
    assert denoiser.log[-1].reached != early and (denoiser.log[-1].distance > 0.1) == early
    assert "of the length of the noisy gradient" in denoiser.statement()


def test_alternative_batches_are_drawn_afresh_from_all_rows(monkeypatch):
    seen = []

    class Noting(LabelGradients):
        def __init__(self, model, features, **more):
            seen.append(features)
            super().__init__(model, features, **more)

    monkeypatch.setattr("sfumato.labels.methods.denoisers.LabelGradients", Noting)
    model = network()
    noisy, _ = noisy_gradient(model, X, noise=0.3)
    denoiser = AltConvDenoiser(features=X, classes=CLASSES, batch_size=20)
    for step in range(30):
        denoiser.denoise(model, noisy, rows=None, generator=seeded(step))
    assert all(len(rows.unique(dim=0)) == 20 for rows in seen)
    assert len(torch.cat(seen).unique(dim=0)) == 60


def test_the_average_of_noisy_gradients_has_the_stated_weights():
    denoiser = AltConvDenoiser(features=X, classes=CLASSES, averaging=0.5, batch_size=5)
    given = [{"w": torch.tensor([value])} for value in (1.0, 3.0, 11.0)]
    found = [float(denoiser._averaged(gradient)["w"]) for gradient in given]
    assert found == pytest.approx([1.0, (0.5 * 1 + 3) / 1.5, (0.25 * 1 + 0.5 * 3 + 11) / 1.75])


def test_without_averaging_each_gradient_stands_alone():
    denoiser = AltConvDenoiser(features=X, classes=CLASSES, averaging=0.0, batch_size=5)
    assert [float(denoiser._averaged({"w": torch.tensor([v])})["w"]) for v in (1.0, 3.0)] == [1.0, 3.0]


def test_the_state_is_all_that_is_remembered():
    model = network()
    noisy, _ = noisy_gradient(model, X, noise=0.3)
    first = AltConvDenoiser(features=X, classes=CLASSES, batch_size=20, averaging=0.8)
    first.denoise(model, noisy, rows=None, generator=seeded(0))
    second = AltConvDenoiser(features=X, classes=CLASSES, batch_size=20, averaging=0.8)
    second.load_state_dict(first.state_dict())
    one, two = (flat(d.denoise(model, noisy, rows=None, generator=seeded(1))) for d in (first, second))
    assert torch.equal(one, two) and first.log == second.log


def test_the_model_keeps_its_mode_and_its_gradients():
    model = network().train()
    noisy, _ = noisy_gradient(model, X, noise=0.3)
    model.train()
    AltConvDenoiser(features=X, classes=CLASSES, batch_size=20).denoise(
        model, noisy, rows=None, generator=seeded(0)
    )
    assert model.training and all(p.grad is None for p in model.parameters())


def test_a_batch_of_no_rows_changes_nothing():
    model = network()
    noisy, _ = noisy_gradient(model, X, noise=0.3)
    for rows in (None, torch.zeros(0, dtype=torch.int64)):
        denoiser = SelfConvDenoiser(features=X, classes=CLASSES)
        better = denoiser.denoise(model, noisy, rows=rows, generator=seeded(0))
        assert better is noisy


def test_which_of_them_show_the_batch():
    assert SelfSpanDenoiser(features=X, classes=2).reveals_batches
    assert SelfConvDenoiser(features=X, classes=2).reveals_batches
    assert not AltConvDenoiser(features=X, classes=2, batch_size=5).reveals_batches


@pytest.mark.parametrize(
    ("terms", "advice"),
    [
        ({"classes": 1}, "2 or more"),
        ({"batch_size": 61}, "smaller"),
        ({"averaging": 1.0}, "averaging"),
        ({"averaging": float("nan")}, "averaging"),
        ({"batch_size": 0}, "batch_size"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"smoothing": 1.5}, "smoothing"),
        ({"smoothing": float("nan")}, "smoothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(terms, advice):
    with pytest.raises(InvalidParameterError, match=advice):
        AltConvDenoiser(**({"features": X, "classes": CLASSES, "batch_size": 20} | terms))


def test_no_feature_is_in_the_repr():
    said = repr(AltConvDenoiser(features=X, classes=CLASSES, batch_size=20))
    assert "tensor" not in said and "batch_size=20" in said


def test_a_distance_that_is_not_known_is_not_certified():
    denoiser = SelfSpanDenoiser(features=torch.zeros(4, 2), classes=2)
    for distances in ((0.01, math.nan), (math.nan, 0.01), (math.inf,)):
        denoiser.log[:] = [Denoised(iterations=1, distance=d, gap=None, reached=True) for d in distances]
        assert (
            f"distance of 1 of {len(distances)} projections to the nearest point is not known"
            in denoiser.statement()
        )
        assert "within" not in denoiser.statement()
    denoiser.log[:] = [Denoised(iterations=1, distance=0.01, gap=None, reached=True)]
    assert "within 1% of" in denoiser.statement()
