# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import FastGenerator, SeededGenerator
from sfumato.testing import seeded

ALPHA = 1e-6
SAMPLE = 60_001  # more than one chunk, and odd


class Repeating:
    """A generator whose every byte is the same: the extremes of the stream."""

    secure, seeded = False, True

    def __init__(self, *word: int) -> None:
        self.pattern = b"".join(w.to_bytes(8, "little") for w in word)

    def fill(self, out: memoryview) -> None:
        out[:] = (self.pattern * (len(out) // len(self.pattern) + 1))[: len(out)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("generator", [SeededGenerator(1), FastGenerator(1)])
def test_gaussian_noise_has_the_stated_law(dtype, generator):
    noise = tensors.gaussian((SAMPLE,), stddev=2.0, generator=generator, dtype=dtype).double().numpy()
    assert kstest(noise, norm(scale=2.0).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=2.2).cdf).pvalue < ALPHA  # 10% off is caught: the test has power


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laplace_noise_has_the_stated_law(dtype):
    noise = tensors.laplace((SAMPLE,), scale=2.0, generator=seeded(2), dtype=dtype).double().numpy()
    assert kstest(noise, laplace(scale=2.0).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=2.2).cdf).pvalue < ALPHA


def test_the_secure_default_has_the_stated_law():
    assert kstest(tensors.gaussian((SAMPLE,), stddev=1.0).numpy(), norm.cdf).pvalue > ALPHA
    assert kstest(tensors.laplace((SAMPLE,), scale=1.0).numpy(), laplace.cdf).pvalue > ALPHA


def test_draws_are_independent_along_the_tensor():
    noise = tensors.gaussian((200_000,), stddev=1.0, generator=seeded(3), dtype=torch.float64)
    pairs = tensors._CHUNK  # a draw and its partner from the same radius lie this far apart
    for lag in (1, 2, pairs, 2 * pairs):
        for power in (1, 2):  # squares, too: partners share a radius but must not share a size
            a, b = noise[:-lag] ** power, noise[lag:] ** power
            assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / math.sqrt(200_000 - lag)


def test_the_tail_reaches_as_far_as_it_should():
    noise = tensors.gaussian((4_000_000,), stddev=1.0, generator=seeded(4)).abs()
    seen = int((noise > 4.5).sum())
    expected = 4_000_000 * 2 * norm.sf(4.5)  # 27.2
    assert abs(seen - expected) < 5 * math.sqrt(expected)


def test_the_smallest_uniform_gives_the_stated_cut_and_not_infinity():
    out = tensors.gaussian((2,), stddev=1.0, generator=Repeating(0), dtype=torch.float64)
    assert out[0].item() == pytest.approx(math.sqrt(2 * 64 * math.log(2)))  # 9.42
    out = tensors.laplace((1,), scale=1.0, generator=Repeating(0), dtype=torch.float64)
    assert out[0].item() == pytest.approx(64 * math.log(2))  # 44.4


EDGES = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**62]


@pytest.mark.parametrize("radius", EDGES)
@pytest.mark.parametrize("angle", EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_word_gives_infinity_or_nan(radius, angle, dtype):
    out = tensors.gaussian((2,), stddev=3.0, generator=Repeating(radius, angle), dtype=dtype)
    assert out.isfinite().all() and out.abs().max() <= 3 * 9.42
    assert tensors.laplace((2,), scale=3.0, generator=Repeating(radius, angle), dtype=dtype).isfinite().all()


def test_global_seeds_do_not_change_the_noise():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global state is what must not matter
        drawn.append(tensors.gaussian((8,), stddev=1.0))
    assert not torch.equal(*drawn)


def test_a_seed_repeats_the_noise_and_one_generator_does_not():
    generator = seeded(7)
    first, second = (tensors.gaussian((8,), stddev=1.0, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, tensors.gaussian((8,), stddev=1.0, generator=seeded(7)))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2 * tensors._CHUNK - 1, 2 * tensors._CHUNK + 1])
def test_every_element_gets_noise_of_its_own(size):
    noise = tensors.gaussian((size,), stddev=1.0, generator=seeded(8), dtype=torch.float64)
    assert noise.shape == (size,) and noise.unique().numel() == size


@pytest.mark.parametrize(
    ("add", "fresh"),
    [
        (lambda t, g: tensors.add_gaussian_(t, stddev=2.0, generator=g), tensors.gaussian),
        (lambda t, g: tensors.add_laplace_(t, scale=2.0, generator=g), tensors.laplace),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_adding_in_place_adds_the_same_noise_whatever_the_layout(add, fresh, layout):
    base = torch.arange(60_000, dtype=torch.float64)
    tensor = {
        "contiguous": lambda: base.clone().view(200, 300),
        "transposed": lambda: base.clone().view(300, 200).T,
        "strided": lambda: base.clone().view(200, 300)[:, ::2],
    }[layout]()
    before = tensor.clone()
    size = {"stddev" if fresh is tensors.gaussian else "scale": 2.0}
    noise = fresh(tensor.shape, **size, generator=seeded(9), dtype=torch.float64)
    assert add(tensor, seeded(9)) is tensor
    assert torch.equal(tensor, before + noise)


def test_adding_to_a_parameter_that_requires_grad_works_and_leaves_no_graph():
    weight = torch.zeros(5, requires_grad=True)
    tensors.add_gaussian_(weight, stddev=1.0)
    assert weight.is_leaf and weight.grad_fn is None and weight.abs().min() > 0


def test_noise_like_a_tensor_has_its_shape_type_and_device():
    like = torch.zeros(3, 4, dtype=torch.float64)
    noise = tensors.gaussian(like, stddev=1.0)
    assert (noise.shape, noise.dtype, noise.device) == (like.shape, like.dtype, like.device)
    assert like.abs().max() == 0


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, None, "1", True])
def test_a_noise_size_that_is_not_positive_is_refused(wrong):
    for call in (
        lambda: tensors.gaussian((2,), stddev=wrong),
        lambda: tensors.add_gaussian_(torch.zeros(2), stddev=wrong),
    ):
        with pytest.raises(InvalidParameterError, match="stddev must be"):
            call()
    for call in (
        lambda: tensors.laplace((2,), scale=wrong),
        lambda: tensors.add_laplace_(torch.zeros(2), scale=wrong),
    ):
        with pytest.raises(InvalidParameterError, match="scale must be"):
            call()


def test_noise_that_could_overflow_the_type_is_refused():
    with pytest.raises(InvalidParameterError, match="overflow"):
        tensors.gaussian((2,), stddev=1e38, dtype=torch.float32)
    assert tensors.gaussian((2,), stddev=1e38, dtype=torch.float64).isfinite().all()
    assert tensors.laplace((2,), scale=5e36, dtype=torch.float32, generator=Repeating(0)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_coarse_types_are_refused(dtype):
    with pytest.raises(InvalidParameterError, match="float32 or float64"):
        tensors.add_gaussian_(torch.zeros(2, dtype=dtype), stddev=1.0)


def test_an_audit_of_the_gaussian_tensor_stays_below_the_claim_and_catches_weak_noise(epsilon_lower_bound):
    trials, claim, delta = 400_000, 1.0, 0.12693674  # stddev 1, sensitivity 1: Balle and Wang, Theorem 8

    def audit(stddev: float, seed: int) -> float:
        noise = tensors.gaussian((2, trials), stddev=stddev, generator=seeded(seed))
        with_unit, without = (noise[0] + 1 > 1.5).sum(), (noise[1] > 1.5).sum()
        return epsilon_lower_bound(int(with_unit), int(without), trials, delta)

    assert 0.8 < audit(1.0, 12) <= claim
    assert audit(0.9, 13) > claim
