# SPDX-License-Identifier: Apache-2.0
import math
import threading

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm, uniform

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays, tensors
from sfumato.mechanisms.random import FastGenerator, SecureGenerator, SeededGenerator
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


class Fixed:
    """A generator that gives the bytes it was made with, once."""

    secure, seeded = False, True

    def __init__(self, given: bytes) -> None:
        self.given = given

    def fill(self, out: memoryview) -> None:
        out[:] = self.given


class Chosen:
    """A seeded stream of words a, b and c of float32 pairs, with the words a replaced, and what it gave."""

    secure, seeded = False, True

    def __init__(self, seed: int, choose=lambda a: a, *, low: bool = True) -> None:
        self.source, self.choose, self.low = seeded(seed), choose, low

    def fill(self, out: memoryview) -> None:
        drawn = bytearray(len(out))
        self.source.fill(memoryview(drawn))
        self.words = np.frombuffer(drawn, dtype="<i4").reshape(3, -1).copy()
        self.words[0] = self.choose(self.words[0])
        self.words[1] *= self.low
        out[:] = self.words.tobytes()


def tail(a: np.ndarray) -> np.ndarray:
    """Words a that leave u uniform on 2^-32 [0.5, 16.5): a radius above 6.2."""
    return 1 + (a & 0xF)


def center(a: np.ndarray) -> np.ndarray:
    """Words a that leave 1 - u uniform on 2^-32 [0.5, 16.5): a radius below 2^-13.5."""
    return -1 - (a & 0xF)


def radii(noise: torch.Tensor) -> np.ndarray:
    return torch.hypot(*noise.double().view(2, -1)).numpy()


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


@pytest.mark.parametrize(("dtype", "pairs"), [(torch.float32, tensors._PAIRS), (torch.float64, arrays.CHUNK)])
def test_draws_are_independent_along_the_tensor(dtype, pairs):  # partners of one radius lie `pairs` apart
    noise = tensors.gaussian((200_000,), stddev=1.0, generator=seeded(3), dtype=dtype).double()
    for lag in (1, 2, pairs, 2 * pairs):
        for power in (1, 2):  # squares, too: partners share a radius but must not share a size
            a, b = noise[:-lag] ** power, noise[lag:] ** power
            assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / math.sqrt(200_000 - lag)


def test_the_tail_reaches_as_far_as_it_should():
    noise = tensors.gaussian((4_000_000,), stddev=1.0, generator=seeded(4)).abs()
    seen = int((noise > 4.5).sum())
    expected = 4_000_000 * 2 * norm.sf(4.5)  # 27.2
    assert abs(seen - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_moments_are_those_of_the_normal_law(dtype):
    noise = tensors.gaussian((1_000_000,), stddev=1.0, generator=seeded(14), dtype=dtype).double()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        assert abs((noise**power).mean() - mean) < 5 * math.sqrt(variance / 1_000_000)


@pytest.mark.parametrize(
    "choose", [lambda a: a, tail, center, lambda a: a >> 16], ids=["all", "tail", "center", "few"]
)
def test_a_float32_draw_is_within_its_promise_of_exact_arithmetic_on_the_same_words(choose):
    generator = Chosen(15, choose)
    noise = tensors.gaussian((100_000,), stddev=1.0, generator=generator).numpy().astype(np.longdouble)
    a, b, c = generator.words.astype(np.longdouble)
    x = (a + b / 2**32) / 2**32
    radius = np.sqrt(-2 * np.where(x < 0, np.log1p(x), np.log(np.where(x > 0, x, 1))))
    angle = math.pi * c / 2**31
    exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)])
    assert np.max(np.abs(noise.reshape(2, -1) - exact) / radius) < 2.0**-20


def few(generator, size=700):
    return tensors.gaussian((size,), stddev=1.0, generator=generator).numpy()


def test_few_secure_draws_have_the_stated_law_and_none_is_given_twice():
    generator = SecureGenerator()
    noise = np.concatenate([few(generator) for _ in range(2 * tensors._AHEAD // 700)])
    assert len(np.unique(noise)) > 0.99 * noise.size  # some of so many float32 are equal by chance
    assert kstest(noise, norm.cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=1.05).cdf).pvalue < ALPHA
    for lag in (1, 350, 700, tensors._AHEAD // 2):
        a, b = noise[:-lag], noise[lag:]
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(a.size)


def test_a_seed_gives_few_draws_as_it_gives_many():
    few(SecureGenerator())
    assert np.array_equal(few(seeded(5)), few(seeded(5)))


def test_numpy_is_as_exact_as_the_promise_for_float32_assumes():
    def spread(low: float, high: float) -> np.ndarray:  # over all floats between two, evenly by their bits
        first, last = (int(np.float32(end).view(np.int32)) for end in (low, high))
        return np.linspace(first, last, 1_000_003).astype(np.int32).view(np.float32)

    uniform, angle = spread(2.0**-65, 1 - 2.0**-24), spread(2.0**-40, math.pi)
    exact = np.log(uniform.astype(np.float64))
    assert np.max(np.abs(np.log(uniform) - exact) / np.abs(exact)) < 2.0**-21.8
    for function in (np.cos, np.sin):
        assert np.max(np.abs(function(angle) - function(angle.astype(np.float64)))) < 2.0**-23.75


@pytest.mark.parametrize(
    ("choose", "word"),
    [(tail, lambda half_square: np.exp(-half_square)), (center, lambda half_square: -np.expm1(-half_square))],
    ids=["tail", "center"],
)
def test_the_float32_tail_and_center_have_the_right_law_and_no_atoms(choose, word):
    def words_of(**which) -> np.ndarray:
        noise = tensors.gaussian((60_000,), stddev=1.0, generator=Chosen(16, choose, **which))
        return word(radii(noise) ** 2 / 2) * 2**32

    law = uniform(loc=0.5, scale=16).cdf
    assert kstest(words_of(), law).pvalue > ALPHA
    assert len(np.unique(words_of())) > 29_000
    assert kstest(words_of(low=False), law).pvalue < ALPHA  # 32 bits alone would leave 16 radii here


def test_the_smallest_uniform_gives_the_stated_cut_and_not_infinity():
    out = tensors.gaussian((2,), stddev=1.0, generator=Repeating(0), dtype=torch.float64)
    assert out[0].item() == pytest.approx(math.sqrt(2 * 64 * math.log(2)))  # 9.42
    out = tensors.gaussian((2,), stddev=1.0, generator=Repeating(0), dtype=torch.float32)
    assert out[0].item() == pytest.approx(math.sqrt(2 * 65 * math.log(2)))  # 9.49
    out = tensors.laplace((1,), scale=1.0, generator=Repeating(0), dtype=torch.float64)
    assert out[0].item() == pytest.approx(64 * math.log(2))  # 44.4


EDGES = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**62]


@pytest.mark.parametrize("radius", EDGES)
@pytest.mark.parametrize("angle", EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_word_gives_infinity_or_nan(radius, angle, dtype):
    out = tensors.gaussian((2,), stddev=3.0, generator=Repeating(radius, angle), dtype=dtype)
    assert out.isfinite().all() and out.abs().max() <= 3 * (9.42 if dtype == torch.float64 else 9.5)
    assert tensors.laplace((2,), scale=3.0, generator=Repeating(radius, angle), dtype=dtype).isfinite().all()


@pytest.mark.parametrize("a", [0, 1, -1, 2**31 - 1, -(2**31), 2**24, -(2**24)])
@pytest.mark.parametrize("b", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_no_float32_word_gives_infinity_or_nan(a, b):
    words = np.array([[a], [b], [-(2**31)]], dtype="<i4")
    out = tensors.gaussian((2,), stddev=1.0, generator=Fixed(words.tobytes()))
    assert out.isfinite().all() and 0 < out.abs().max() < 9.5


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


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2 * arrays.CHUNK - 1, 2 * arrays.CHUNK + 1])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_tensors_share_one_draw_in_their_order(dtype):
    sizes = [(3,), (0,), (200, 300), (2 * tensors._PAIRS + 1,), (), (7, 1)]
    parts = [torch.ones(size, dtype=dtype) for size in sizes]
    parts[2] = parts[2].T  # not contiguous: gets the same draws, in its own order
    whole = torch.ones(sum(part.numel() for part in parts), dtype=dtype)
    assert tensors.add_gaussian_many_(parts, stddev=2.0, generator=seeded(18)) is None
    tensors.add_gaussian_(whole, stddev=2.0, generator=seeded(18))
    assert torch.allclose(torch.cat([part.reshape(-1) for part in parts]), whole, rtol=0, atol=1e-5)
    assert (whole != 1).all()


def test_many_tensors_of_two_types_get_noise_each_and_a_seed_repeats_it():
    drawn = []
    for _ in range(2):
        parts = [torch.zeros(40_000, dtype=t) for t in (torch.float64, torch.float32, torch.float64)]
        tensors.add_gaussian_many_(parts, stddev=1.0, generator=seeded(19))
        drawn.append(torch.cat([part.double() for part in parts]))
    assert torch.equal(*drawn) and kstest(drawn[0].numpy(), norm.cdf).pvalue > ALPHA
    assert abs(torch.corrcoef(drawn[0].view(3, -1)) - torch.eye(3)).max() < 5 / math.sqrt(40_000)


def test_many_tensors_with_a_fast_generator_get_noise_each():
    parts = [torch.zeros(30_000), torch.zeros(30_000)]
    tensors.add_gaussian_many_(parts, stddev=2.0, generator=FastGenerator(3))
    assert kstest(torch.cat(parts).numpy(), norm(scale=2).cdf).pvalue > ALPHA
    assert not torch.equal(*parts)


def test_no_tensor_is_changed_when_one_of_many_is_refused():
    good = torch.zeros(5)
    with pytest.raises(InvalidParameterError, match="float32 or float64"):
        tensors.add_gaussian_many_([good, torch.zeros(2, dtype=torch.float16)], stddev=1.0)
    assert good.abs().max() == 0
    tensors.add_gaussian_many_([], stddev=1.0)


def test_a_seed_gives_the_same_float32_noise_everywhere():
    # a snapshot, on purpose: the noise of a seed must not change between platforms or versions
    noise = tensors.gaussian((4,), stddev=1.0, generator=seeded(0))
    assert noise.tolist() == pytest.approx([-0.674730, 0.532829, 1.104992, -1.365765], abs=2e-6)


def test_the_number_of_threads_does_not_change_the_noise():
    before, drawn = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            drawn.append(tensors.gaussian((500_001,), stddev=1.0, generator=seeded(20)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_threads_that_draw_at_once_do_not_mix_their_noise():
    drawn: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def draw(seed: int) -> None:
        generator = seeded(seed)
        drawn[seed] = [tensors.gaussian((20_000,), stddev=1.0, generator=generator) for _ in range(20)]

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, together in list(drawn.items()):
        draw(seed)
        assert all(torch.equal(a, b) for a, b in zip(together, drawn[seed], strict=True))


def test_buffers_made_in_inference_mode_or_for_another_default_device_serve_everywhere():
    failed = []

    def draw() -> None:
        try:
            target = torch.zeros(9)
            with torch.inference_mode(), torch.device("meta"):
                tensors.add_gaussian_(target.clone(), stddev=1.0)
            assert tensors.add_gaussian_(target, stddev=1.0).abs().min() > 0
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=draw)  # a new thread has no buffers yet
    thread.start()
    thread.join()
    assert not failed


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
        lambda: tensors.add_gaussian_many_([torch.zeros(2)], stddev=wrong),
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


def test_noise_that_could_vanish_in_the_type_is_refused():
    with pytest.raises(InvalidParameterError, match="vanish"):
        tensors.add_gaussian_(torch.zeros(2), stddev=1e-40)
    assert tensors.gaussian((2,), stddev=1e-40, dtype=torch.float64).abs().min() > 0
    noise = tensors.gaussian(
        (SAMPLE,), stddev=2e-38, generator=seeded(21)
    )  # half of it below the normal range
    assert kstest(noise.double().numpy(), norm(scale=2e-38).cdf).pvalue > ALPHA


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
