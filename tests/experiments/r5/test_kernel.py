# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.experiments.r5 import kernel
from sfumato.experiments.r5.tasks import with_seed
from sfumato.training import Clipping, PrivateGradients, Scaling

ROWS = 12
STYLES = {
    "flat": Clipping(clip_norm=0.5),
    "layerwise": Clipping(clip_norm=0.5, per_layer=True),
    "global": Clipping(clip_norm=0.5, scaling=Scaling.GLOBAL, drop_above=1.0),
    "global layerwise": Clipping(clip_norm=0.5, per_layer=True, scaling=Scaling.GLOBAL, drop_above=0.7),
}


def network():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()


@pytest.fixture
def problem():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, generator=source).double()
    y = 3 * torch.randn(ROWS, generator=source).double()
    return with_seed(network, 0), x, y


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_clipped_sums_are_those_of_the_training_engine(problem, style):
    model, x, y = problem
    found = kernel.tangents(model, x)
    errors = found.outputs - y
    sums = found.moved(errors, kernel.factors(style, found, errors))
    private = PrivateGradients(
        model,
        lambda model, x, y: (model(x).flatten() - y).square() / 2,
        clipping=style,
        noise_multiplier=1e-12,
        expected_batch_size=1,
    )
    private.backward(x, y)
    for layer in ("0", "2"):
        engine = torch.cat([p.grad.flatten() for n, p in model.named_parameters() if n.startswith(layer)])
        assert torch.allclose(sums[layer], engine, atol=1e-6)


def test_the_matrix_governs_the_loss(problem):
    model, x, y = problem
    found = kernel.tangents(model, x)
    errors = found.outputs - y
    slope = float(errors @ found.matrix(kernel.factors(STYLES["flat"], found, errors)) @ errors) / ROWS**2
    losses = kernel.descend(model, x, y, style=STYLES["flat"], learning_rate=1e-4, steps=2)
    assert (losses[0] - losses[1]) / 1e-4 == pytest.approx(slope, rel=1e-3)


def test_flat_clipping_loses_symmetry_and_keeps_positive_eigenvalues(problem):
    model, x, y = problem
    found = kernel.tangents(model, x)
    errors = found.outputs - y
    whole = kernel.spectrum(found.matrix(kernel.factors(None, found, errors)))
    flat = kernel.spectrum(found.matrix(kernel.factors(STYLES["flat"], found, errors)))
    assert whole.semi_definite and not flat.semi_definite
    assert flat.asymmetry > 0.01 and flat.form < 0 and flat.real > -1e-9


def test_a_row_moves_private_sums_by_the_clip_norm_and_those_of_a_batch_factor_by_more(problem):
    model, x, y = problem
    found = kernel.tangents(model, x)
    errors = found.outputs - y
    assert all(kernel.reach(style, found, errors) <= 0.5 + 1e-9 for style in STYLES.values())
    assert kernel.reach(kernel.BatchFactor(0.5), found, errors) > 0.6
