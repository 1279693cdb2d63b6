# SPDX-License-Identifier: Apache-2.0
import importlib.util
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sfumato.training.fast import kernels

GPU = torch.cuda.is_available()
WHERE = "cuda" if GPU else "cpu"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: `pip install triton` runs the kernels here too, in its interpreter",
)


@pytest.fixture(scope="module")
def compiled() -> Iterator[types.ModuleType]:
    """The kernels on the GPU, else a second copy of them in Triton's interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        if not GPU:
            patch.setenv("TRITON_INTERPRET", "1")
        path = Path(kernels.__file__).with_name("triton_kernels.py")
        spec = importlib.util.spec_from_file_location("interpreted_kernels", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@needs_triton
@pytest.mark.parametrize(
    ("units", "steps", "n_in", "n_out"), [(2, 1, 3, 5), (3, 40, 17, 65), (1, 150, 70, 9)]
)
def test_the_ghost_norm_is_that_of_the_gradient(compiled, units, steps, n_in, n_out):
    torch.manual_seed(0)
    x, g = torch.randn(units, steps, n_in, device=WHERE), torch.randn(units, steps, n_out, device=WHERE)
    wanted = (g.double().mT @ x.double()).square().sum((1, 2))
    norm, mass = compiled.ghost_norm(x, g, "ieee")
    torch.testing.assert_close(norm.double(), wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mass, (x.norm(dim=2) * g.norm(dim=2)).sum(1), rtol=1e-5, atol=1e-4)


@needs_triton
def test_a_step_more_changes_the_ghost_norm(compiled):
    x, g = torch.ones(1, 33, 2, device=WHERE), torch.ones(1, 33, 2, device=WHERE)
    fewer = compiled.ghost_norm(x[:, :32].contiguous(), g[:, :32].contiguous(), "ieee")
    assert compiled.ghost_norm(x, g, "ieee")[0].item() == pytest.approx(4 * 33**2)
    assert fewer[0].item() == pytest.approx(4 * 32**2)
    assert fewer[1].item() == pytest.approx(2 * 32)


@needs_triton
@pytest.mark.parametrize(("units", "per_unit", "width"), [(1, 1, 1), (3, 5, 7), (2, 130, 200)])
@pytest.mark.parametrize("centered", [True, False])
def test_gradients_of_a_norm_over_features_are_those_of_the_sums(compiled, units, per_unit, width, centered):
    torch.manual_seed(0)
    x, grad = (torch.randn(units * per_unit, width, device=WHERE) for _ in range(2))
    mean, rstd = torch.randn(units * per_unit, device=WHERE), torch.rand(units * per_unit, device=WHERE)
    weight, bias = compiled.feature_norm_gradients(x, grad, mean if centered else None, rstd, units)
    shifted = x - mean[:, None] if centered else x
    wanted = (grad * shifted * rstd[:, None]).view(units, per_unit, width).sum(1)
    torch.testing.assert_close(weight, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bias, grad.view(units, per_unit, width).sum(1), rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "stride", "dilation", "before"),
    [
        (3, 5, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
        (4, 17, (8, 6), (3, 2), (2, 1), (1, 2), (1, 0)),
        (20, 3, (5, 5), (1, 1), (2, 2), (1, 1), (0, 0)),
    ],
)
@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16]
)  # the interpreter has no products of bfloat16
def test_the_norm_of_a_correlation_is_that_of_its_gradient(
    compiled, channels, outputs, size, kernel, stride, dilation, before, ghost, dtype
):
    torch.manual_seed(0)
    image = torch.randn(2, channels, *size, device=WHERE).to(dtype).float()
    weight = torch.randn(outputs, channels, *kernel, device=WHERE, requires_grad=True)
    out = torch.nn.functional.conv2d(image, weight, None, stride, before, dilation)
    factors = torch.randn_like(out).to(dtype).float()
    wanted = [
        torch.autograd.grad((out[i] * factors[i]).sum(), weight, retain_graph=True)[0].square().sum()
        for i in (0, 1)
    ]
    given = (image.to(dtype), factors.to(dtype))
    found = compiled.correlation_norm(*given, kernel, stride, dilation, before, "ieee", ghost)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-3)
