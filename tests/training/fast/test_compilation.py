# SPDX-License-Identifier: Apache-2.0
import shutil
import warnings

import pytest
import torch
import torch._inductor
from torch import nn

from sfumato.testing import seeded
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.fast import compilation
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping

from ..gradients import private_gradients

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile needs a C++ compiler",
)


@pytest.fixture
def only_traced(monkeypatch):
    """A pass is traced and then run as it was traced: all but the compiler, which takes its time."""
    monkeypatch.setattr(torch._inductor, "compile", lambda program, inputs, options: program)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def batch(rows):
    return torch.randn(rows, 6), torch.randint(0, 3, (rows,))


def private_of(model, **options):
    options = {"clip_norm": 0.5, **options}
    return private_gradients(
        model, noise_multiplier=1e-9, expected_batch_size=8, generator=seeded(0), **options
    )


def gradient(model):
    return torch.cat([p.grad.flatten().clone() for p in model.parameters()])


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, about itself
def test_a_compiled_step_is_the_step_with_the_parameters_of_now():
    model = network().eval()
    compiled, plain = private_of(model, compile=True), private_of(model)
    for rows in (8, 7, 8, 0):
        x, y = batch(rows)
        found = []
        for private in (compiled, plain):
            private.backward(x, y)
            found.append(gradient(model))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    assert (
        compiled._passes._replays._recordings is not None
        and len(compiled._passes._replays._recordings._recorded) == 2
    )


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch._inductor.config.patch("freezing", True)  # it makes constants of what a program holds
def test_nothing_that_changes_between_steps_is_a_constant_of_the_program():
    """Thresholds, too: noise follows them, so a program with old ones would break the bound."""
    model = network().eval()
    both = [private_of(model, clip_norm=0.05, compile=compile) for compile in (True, False)]
    x, y = batch(8)
    for factor in (1.0, 0.5, 3.0):
        found = []
        for private in both:
            private.scale_clipping(factor)
            private.backward(x.T.contiguous().T, y)  # in another layout than that of synthetic rows
            found.append(gradient(model))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)


@pytest.mark.usefixtures("only_traced")
def test_dropout_draws_anew_at_each_compiled_step():
    model = network()
    private, (x, y) = private_of(model, compile=True), batch(8)
    found = []
    for _ in range(3):
        private.backward(x, y)
        found.append(gradient(model))
    assert len(private._passes._replays._recordings._recorded) == 1
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


@pytest.mark.parametrize(("factor", "used"), [(1.5, True), (10.0, False)])
def test_a_pass_that_draws_is_compared_by_its_size(monkeypatch, factor, used):
    def scaled(run, batch):
        def other(given):
            total, sums = run(given)
            return total * factor, sums

        return other

    monkeypatch.setattr(compilation, "_compiled", scaled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        private_of(network(), compile=True).backward(*batch(8))
    assert any("does not agree" in str(w.message) for w in caught) is not used


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize("scheduled", [True, False])
def test_a_compiled_step_follows_its_thresholds(scheduled):
    model = network().eval()
    adaptive = None if scheduled else AdaptiveClip(count_noise_multiplier=1.0, learning_rate=1.0)
    clipping = Clipping(clip_norm=0.05, adaptive=adaptive)
    both = [
        private_of(model, clip_norm=None, clipping=clipping, compile=compile) for compile in (True, False)
    ]
    bounds = []
    for rows, factor in ((8, 1.0), (7, 0.5), (8, 3.0), (8, 0.1)):
        x, y = batch(rows)
        found = []
        for private in both:
            if scheduled:
                private.scale_clipping(factor)
            private.backward(x, y)
            found.append(gradient(model))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
        assert both[0].bound == pytest.approx(both[1].bound)
        bounds.append(both[0].bound)
    assert len(set(bounds)) == 4


@pytest.mark.usefixtures("only_traced")
def test_products_that_were_not_cast_are_not_cast_when_compiled():
    model = network().eval()
    x, y = batch(8)
    found = []
    for compile in (True, False):
        private = private_of(model, compile=compile)
        with torch.autocast("cpu", torch.bfloat16):
            private.backward(x, y)
            private.backward(x, y)
        found.append(gradient(model))
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-3)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_unit_that_is_not_finite_adds_nothing_to_a_compiled_step(bad):
    model = network().eval()
    compiled, plain = private_of(model, compile=True), private_of(model)
    x, y = batch(8)
    compiled.backward(x, y)
    x[3, 2] = bad
    found = []
    for private in (compiled, plain):
        private.backward(x, y)
        found.append(gradient(model))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("installed", "capability", "says"),
    [
        (True, (9, 0), None),
        (False, (9, 0), "Triton is not installed"),
        (True, (6, 1), "no code for this GPU"),
    ],
)
def test_a_gpu_without_triton_has_no_compiler(monkeypatch, installed, capability, says):
    monkeypatch.setattr(compilation.kernels, "installed", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = compilation.no_compiler(torch.device("cuda"))
    assert found is None if says is None else says in found


def test_a_disk_without_room_is_named_wherever_the_compiler_hides_it():
    try:
        try:
            raise OSError(28, "no space left on /home/4711")
        except OSError as error:
            raise RuntimeError("backend failed: 4711") from error
    except RuntimeError as error:
        found = compilation.reason_of(error)
    assert "files cannot be written" in found and "4711" not in found
    assert compilation.reason_of(ValueError("4711")) == "ValueError; set TORCH_LOGS=dynamo to see more"


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 1e9 else self.layer(2 * x)


def test_a_model_that_decides_by_its_values_runs_as_it_is_with_a_warning():
    model = Deciding()
    compiled, plain = private_of(model, compile=True), private_of(model)
    x, y = batch(8)
    with pytest.warns(UserWarning, match="looks at values.*row by row"):
        compiled.backward(x, y)
    found = gradient(model)
    with pytest.warns(UserWarning, match="row by row"):
        plain.backward(x, y)
    torch.testing.assert_close(found, gradient(model))


def test_what_does_not_agree_with_its_pass_is_not_used(monkeypatch):
    def halved(run, batch):
        def wrong(given):
            total, sums = run(given)
            return total / 2, sums

        return wrong

    monkeypatch.setattr(compilation, "_compiled", halved)
    model = network().eval()
    compiled, plain = private_of(model, compile=True), private_of(model)
    x, y = batch(8)
    with pytest.warns(UserWarning, match="does not agree"):
        compiled.backward(x, y)
    found = gradient(model)
    plain.backward(x, y)
    torch.testing.assert_close(found, gradient(model))


def test_a_failing_compiler_is_not_quoted(monkeypatch):
    def fail(run, batch):
        raise RuntimeError("secret 4711")

    monkeypatch.setattr(compilation, "_compiled", fail)
    model = network()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        private_of(model, compile=True).backward(*batch(8))
    assert any("RuntimeError" in str(w.message) for w in caught)
    assert not any("4711" in str(w.message) for w in caught)


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("clipping", [Clipping(clip_norm=0.5), Clipping(clip_norm=0.5, per_layer=True)])
@pytest.mark.parametrize("how", ["whole", "part", "in place"])
def test_a_model_that_is_compiled_already_is_trained_as_it_is_written(how, clipping):
    model = network().eval()
    wrapped = torch.compile(model) if how == "whole" else model
    if how == "part":
        model[0] = torch.compile(model[0])
    if how == "in place":
        model.compile()
    x, y = batch(8)
    private_of(wrapped, clip_norm=None, clipping=clipping).backward(x, y)
    found = gradient(model)
    twin = network().eval()
    private_of(twin, clip_norm=None, clipping=clipping).backward(x, y)
    torch.testing.assert_close(found, gradient(twin), rtol=1e-4, atol=1e-6)
    assert wrapped(x).shape == (8, 3)


def test_a_row_that_is_not_finite_does_not_double_the_others_at_a_new_shape(monkeypatch):
    """The first pass of each shape is compiled, which repeats it: its rows must still be added once."""
    totals = []
    noised = PrivateGradients._noised

    def watched(self, noise_multiplier):
        totals.append(torch.cat([total.flatten().clone() for total in self._sums.flat()]))
        return noised(self, noise_multiplier)

    monkeypatch.setattr(PrivateGradients, "_noised", watched)
    for rows in (20, 12):
        found = []
        for compiled in (False, True):
            model = nn.Linear(3, 2, bias=False)
            nn.init.zeros_(model.weight)
            private = private_gradients(
                model, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=20, compile=compiled
            )
            x = torch.cat([torch.full((rows, 3), 10.0), torch.full((1, 3), 1e30)])
            totals.clear()
            private.backward(x, torch.zeros(rows + 1, dtype=torch.int64))
            found.append(totals[-1])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        assert found[0].norm() <= rows + 1


def images_and_network():
    """A network whose first layer unfolds its images, and whose second sees small planes."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 4, 4), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 16, 3))
    return model, torch.randn(8, 1, 16, 16), torch.randint(3, (8,))


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("per_layer", [False, True])
def test_a_compiled_step_of_images_is_the_step_also_with_channels_last(monkeypatch, per_layer):
    monkeypatch.setattr(compilation, "_CHANNELS_LAST", ("cpu",))
    model, x, y = images_and_network()
    clipping = {"clipping": Clipping(clip_norm=0.5, per_layer=per_layer), "clip_norm": None}
    compiled, plain = private_of(model, compile=True, **clipping), private_of(model, **clipping)
    found = []
    for private in (compiled, plain):
        private.backward(x, y)
        found.append(gradient(model))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
