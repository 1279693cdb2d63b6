# SPDX-License-Identifier: Apache-2.0
import importlib.util

import pytest
import torch

from sfumato.training.engine.rules import linear
from sfumato.training.engine.rules.correlation import Correlation
from sfumato.training.fast import kernels

GPU = torch.cuda.is_available()
WHERE = "cuda" if GPU else "cpu"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: `pip install triton` runs the kernels here too, in its interpreter",
)


@pytest.mark.skipif(not GPU, reason="tensor cores are on a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("aside", [True, False])
def test_no_ghost_norm_is_too_small_where_terms_cancel(monkeypatch, dtype, tf32, aside):
    torch.manual_seed(0)
    half, g = (torch.randn(64, 20, 96, device="cuda") for _ in range(2))
    apart = 1 + 0.01 * torch.randn_like(half)
    x, g = torch.cat([half, -half * apart], 1).to(dtype), torch.cat([g, g], 1).to(dtype)
    wanted = (g.double().mT @ x.double()).square().sum((1, 2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        if aside:
            monkeypatch.setattr(kernels, "_triton", lambda: None)
        norm = linear.ghost_norm(x, g)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert bool((norm >= wanted * (1 - 1e-6)).all())
    mass = linear.mass(x, g)
    assert bool((norm - wanted <= 1e-4 * mass.square()).all())


def test_a_number_is_the_sum_of_its_parts_and_the_first_has_ten_bits():
    x = torch.randn(1000) * 10 ** torch.linspace(-30, 30, 1000)
    kept, rest = linear._parted(x)
    assert torch.equal(kept + rest, x) and bool((rest.abs() <= 2**-10 * x.abs()).all())
    assert not bool((kept.view(torch.int32) & 0x1FFF).any())


def test_the_cpu_does_without_kernels():
    x = torch.randn(2, 3, 4)
    assert not kernels.available(x, x)
    shape = Correlation((3, 3), (1, 1), (1, 1), (1, 1))
    assert not shape.is_fused(torch.randn(2, 16, 8, 8), torch.randn(2, 16, 8, 8))


@pytest.mark.parametrize("allowed", [True, False])
def test_norms_are_rounded_up_only_where_operands_are_cut(allowed):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        assert (kernels._upwards(torch.zeros(1)) > 1) is allowed
        assert kernels._upwards(torch.zeros(1, dtype=torch.bfloat16)) == 1
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
