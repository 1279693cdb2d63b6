# SPDX-License-Identifier: Apache-2.0
import sys
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import Clipping, PrivateGradients
from sfumato.training.engine.losses import weighted
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.step.settings import Engines, PassSettings
from sfumato.training.privacy.clipping import Clipper

X = torch.tensor([[3.0, 4.0], [0.0, 0.5], [1.0, 0.0]])


def outputs(model, x):
    return model(x).sum(1)


def passes_of(model, **options):
    clipper = Clipper(Clipping(clip_norm=1.0), dict(model.named_parameters()))
    settings = {
        "settings": PassSettings(**options),
        "projections": None,
        "generator": seeded(0),
        "expected_batch_size": 3.0,
        "step": lambda: 0,
    }
    return Passes(model, weighted(outputs), clipper, **settings)


def added(passes, batch, per_unit=1):
    found = []
    passes.run(batch, per_unit, found.append)
    return sum(sums.sums["weight"] for sums in found), len(found)


@pytest.mark.parametrize("engine", [Engines.AUTO, Engines.BOOK_KEEPING, Engines.FUNCTIONAL])
@pytest.mark.parametrize(("size", "pieces"), [(None, 1), (1, 3), (2, 2)])
def test_every_unit_is_added_once_whatever_the_pieces(engine, size, pieces):
    passes = passes_of(nn.Linear(2, 1, bias=False), engine=engine, microbatch_size=size)
    sums, count = added(passes, (None, X))
    assert torch.allclose(sums, torch.tensor([[0.6 + 1.0, 0.8 + 0.5]])) and count == pieces


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


@pytest.mark.parametrize("ends", [ValueError, SystemExit, Panic])
def test_a_unit_on_which_the_model_ends_the_program_is_left_out(ends):
    class Touchy(nn.Linear):
        def forward(self, x):
            if bool((x == 7).any()):
                raise ends("a row of 7")
            return super().forward(x)

    passes = passes_of(Touchy(2, 1, bias=False), engine=Engines.FUNCTIONAL)
    sums, _ = added(passes, (None, torch.cat([X, torch.full((1, 2), 7.0)])))
    assert torch.allclose(sums, torch.tensor([[1.6, 1.3]]))


def test_what_code_says_of_a_row_that_runs_alone_is_not_shown(capsys, recwarn):
    class Talking(nn.Linear):
        def forward(self, x):
            if bool((x == 7).any()):
                sys.stdout.write("a row of 7")
                warnings.warn("a row of 7", stacklevel=1)
            return super().forward(x)

    passes = passes_of(Talking(2, 1, bias=False), engine=Engines.FUNCTIONAL)
    passes.settle((None, X))
    capsys.readouterr(), recwarn.clear()
    sums, _ = added(passes, (None, torch.cat([X, torch.full((1, 2), 7.0)])))
    assert not capsys.readouterr().out and not recwarn.list
    assert torch.allclose(sums, torch.tensor([[1.6 + 0.5**0.5, 1.3 + 0.5**0.5]]))


class Coarse(nn.Linear):
    """Changes torch's default type for a row of 7, or fails on one before it has changed it back."""

    def __init__(self, *, fails):
        super().__init__(2, 1, bias=False)
        self.fails = fails

    def forward(self, x):
        if self.fails:
            torch.set_default_dtype(torch.float64)
            torch.nn.functional.embedding(x[:, :1].long(), x.new_zeros(7, 1))
            torch.set_default_dtype(torch.float32)
        elif bool((x == 7).any()):
            torch.set_default_dtype(torch.float64)
        return super().forward(x) @ torch.eye(1)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("engine", [Engines.AUTO, Engines.FUNCTIONAL])
def test_modes_of_torch_that_one_unit_leaves_reach_no_other_unit_and_no_caller(engine, fails):
    with pytest.warns(UserWarning, match="row by row") if not fails else nullcontext():
        passes = passes_of(Coarse(fails=fails), engine=engine)
        passes.settle((None, X))
    try:
        sevens = torch.full((1, 2), 7.0)
        sums, _ = added(passes, (None, torch.cat([sevens, X, sevens])))
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(sums, torch.tensor([[1.6, 1.3]]))


def test_a_unit_that_is_not_finite_is_left_out():
    passes = passes_of(nn.Linear(2, 1, bias=False))
    sums, _ = added(passes, (None, torch.cat([X, torch.full((1, 2), torch.inf)])))
    assert torch.allclose(sums, torch.tensor([[1.6, 1.3]]))


class Keeping(nn.Linear):
    def forward(self, x):
        self.seen = x.sum()
        return super().forward(x)


def test_a_model_that_keeps_rows_is_refused_before_anything_is_added():
    found = []
    with pytest.raises((NotPrivateError, UnsupportedModelError)):
        passes_of(Keeping(2, 1, bias=False)).run((None, X), 1, found.append)
    assert found == []


def test_a_check_refuses_parameters_that_were_unfrozen_later():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    clipper = Clipper(Clipping(clip_norm=1.0), {"weight": model.weight})
    passes = Passes(
        model, weighted(outputs), clipper, settings=PassSettings(), projections=None, generator=seeded(0),
        expected_batch_size=3.0, step=lambda: 0,
    )  # fmt: skip
    model.bias.requires_grad_(True)
    with pytest.raises(InvalidParameterError, match="frozen or unfrozen"):
        passes.settle((None, X))


def test_the_gradient_of_one_row_alone_is_not_clipped():
    assert passes_of(nn.Linear(2, 1, bias=False)).alone((None, X[:1]))["weight"].tolist() == [[3.0, 4.0]]


def test_a_rehearsal_reports_whether_gradients_are_finite():
    passes = passes_of(nn.Linear(2, 1, bias=False))
    assert passes.rehearse((None, X)) and not passes.rehearse((None, X * torch.inf))


@pytest.mark.filterwarnings("ignore:the model or the loss does something")
@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run")
def test_a_loss_that_runs_on_one_row_alone_is_not_stopped_by_measuring_memory():
    """A piece is measured on a few rows at once, but a loss that branches on a value sees one at a time."""
    model = nn.Linear(2, 1)
    gradients = PrivateGradients(
        model,
        lambda model, x, y: (model(x) * (1 + int(y))).sum(1),
        noise_multiplier=1e-9,
        expected_batch_size=1,
        clip_norm=1e3,
        generator=seeded(0),
    )
    gradients.backward(X, torch.arange(3))
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, (X * torch.tensor([[1.0], [2.0], [3.0]])).sum(0), atol=1e-4)
