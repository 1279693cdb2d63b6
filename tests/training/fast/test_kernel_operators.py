# SPDX-License-Identifier: Apache-2.0
import importlib.util
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sfumato.training.fast import kernels

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: `pip install triton` runs the kernels here too, in its interpreter",
)
GPU = torch.cuda.is_available()
WHERE = "cuda" if GPU else "cpu"


class Stand:
    """What takes the place of the kernels where there is no GPU: the sums that they are to return."""

    @staticmethod
    def ghost_norm(x, g, precision):
        products = (x @ x.mT) * (g @ g.mT)
        return products.sum((1, 2)), (x.norm(dim=2) * g.norm(dim=2)).sum(1)

    @staticmethod
    def feature_norm_gradients(x, grad, mean, rstd, units):
        shifted = x if mean is None else x - mean[:, None]
        parts = (grad * shifted * rstd[:, None], grad)
        weight, bias = (part.view(units, -1, x.shape[1]).sum(1) for part in parts)
        return weight, bias

    @staticmethod
    def correlation_norm(image, factors, kernel, stride, dilation, before, precision, ghost):
        def gradient(x, g):
            return torch.nn.grad.conv2d_weight(
                x[None], (len(g), len(x), *kernel), g[None], stride, before, dilation
            )

        return torch.stack([gradient(x, g).square().sum() for x, g in zip(image, factors, strict=True)])


@pytest.fixture
def operators(monkeypatch) -> Any:
    from sfumato.training.fast import kernel_operators

    if not GPU:
        monkeypatch.setattr(kernel_operators, "triton_kernels", Stand)
    return kernel_operators


def calls():
    torch.manual_seed(0)
    x, g = torch.randn(3, 5, 4, device=WHERE), torch.randn(3, 5, 2, device=WHERE)
    flat, grad = (torch.randn(6, 4, device=WHERE) for _ in range(2))
    mean, rstd = torch.randn(6, device=WHERE), torch.rand(6, device=WHERE)
    image, factors = torch.randn(2, 3, 8, 8, device=WHERE), torch.randn(2, 5, 8, 8, device=WHERE)
    pairs = [[3, 3], [1, 1], [1, 1], [1, 1]]
    return {
        "ghost_norm": (x, g, "ieee"),
        "feature_norm_gradients": (flat, grad, mean, rstd, 3),
        "correlation_norm": (image, factors, *pairs, "ieee", False),
    }


@pytest.mark.parametrize("name", ["ghost_norm", "feature_norm_gradients", "correlation_norm"])
def test_an_operator_is_what_a_compiler_takes_it_for(operators, name):
    torch.library.opcheck(getattr(torch.ops.sfumato, name), calls()[name])


def test_an_operator_says_the_shapes_of_norms_without_a_centre_too(operators):
    x, grad, _, rstd, units = calls()["feature_norm_gradients"]
    torch.library.opcheck(torch.ops.sfumato.feature_norm_gradients, (x, grad, None, rstd, units))


def test_a_tracer_sees_kernels_and_replays_them(operators):
    x, g, _ = calls()["ghost_norm"]

    def norms(x, g):
        return kernels.ghost_norm(2 * x, g)[0]

    with kernels.seen_by_tracers():
        traced = make_fx(norms)(x, g)
        wanted = norms(x.flip(0), g)
    seen = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert any("sfumato.ghost_norm" in target for target in seen)
    torch.testing.assert_close(traced(x.flip(0), g), wanted)


def test_outside_of_a_trace_kernels_are_called_as_they_are(monkeypatch):
    monkeypatch.setattr(kernels, "_triton", lambda: Stand)
    monkeypatch.setattr(Stand, "ghost_norm", lambda x, g, precision: precision)
    assert kernels.ghost_norm(torch.ones(1, 1, 1), torch.ones(1, 1, 1)) in ("ieee", "tf32x3")
