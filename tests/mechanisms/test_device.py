# SPDX-License-Identifier: Apache-2.0
import importlib.util
import math
import types
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy.stats import kstest, norm

from sfumato import mechanisms
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import device as plain
from sfumato.mechanisms import tensors
from sfumato.testing import seeded

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

ALPHA = 1e-6
GPU = torch.cuda.is_available()
WHERE = "cuda" if GPU else "cpu"
KEY = bytes(range(32))
WORDS = [int.from_bytes(KEY[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
PI = np.longdouble(math.pi) + np.longdouble(1.2246467991473532e-16)

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: `pip install triton` runs the kernel here too, in its interpreter",
)


class Fixed:
    """A generator that gives the same key to every call, and counts them."""

    secure, seeded = False, True

    def __init__(self, key: bytes = KEY) -> None:
        self.key, self.asked = key, 0

    def fill(self, out: memoryview) -> None:
        self.asked += 1
        out[:] = self.key


@pytest.fixture(scope="module")
def device() -> Iterator[types.ModuleType]:
    """The module with kernels that run here: on the GPU, else a second copy of it in Triton's interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        if GPU:
            yield plain
            return
        patch.setenv("TRITON_INTERPRET", "1")
        spec = importlib.util.spec_from_file_location("interpreted_device", plain.__file__)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module._LANES = 4096  # the interpreter takes as long for many lanes as for few
        patch.setitem(globals(), "kernels", module)
        yield module


kernels = plain  # what the two kernels below call


def make_block(out, first, k0, k1, k2, k3, k4, k5, k6, k7, nonce):
    words = kernels._chacha(tl.arange(0, 1).to(tl.int64) + first, k0, k1, k2, k3, k4, k5, k6, k7, nonce)
    for i in tl.static_range(16):
        tl.store(out + i + tl.arange(0, 1), words[i].to(tl.int32, bitcast=True))


def make_radius(out, a, b):
    lane = tl.arange(0, 64)
    a, b = tl.load(a + lane), tl.load(b + lane)
    radius = kernels._radius(a.to(tl.uint32, bitcast=True), b.to(tl.uint32, bitcast=True), False)
    tl.store(out + lane, radius)


def keystream(key: bytes, nonce: int, blocks: int) -> np.ndarray:
    """ChaCha20 by a peer, from block 0: signed words, [blocks, 16]. Its nonce begins with the counter."""
    start = bytes(8) + nonce.to_bytes(4, "little") + bytes(4)
    made = Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor().update(bytes(64 * blocks))
    return np.frombuffer(made, dtype="<i4").reshape(blocks, 16)


def exact_pairs(words: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of stddev 1 and their radii in long double, [programs, 2 * pairs, lanes]."""
    words, draws, radii = words.astype(np.longdouble), [], []
    size = 16 // pairs  # words in a pair
    for a, b, c, *d in (np.moveaxis(words, 2, 0)[size * i : size * (i + 1)] for i in range(pairs)):
        x = (a + b / 2**32) / 2**32
        radius = np.sqrt(-2 * np.where(x < 0, np.log1p(x), np.log(np.where(x > 0, x, 1))))
        angle = PI * (c + (d[0] / 2**32 if d else 0)) / 2**31
        draws += [radius * np.cos(angle), radius * np.sin(angle)]
        radii += [radius, radius]
    return np.stack(draws, axis=1), np.stack(radii, axis=1)


def exact(nonce: int, count: int, dtype: torch.dtype, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = 4 if dtype == torch.float64 else 5
    programs = -(-count // (2 * pairs * lanes))
    words = keystream(KEY, nonce, programs * lanes).reshape(programs, lanes, 16)
    draws, radii = exact_pairs(words, pairs)
    return draws.reshape(-1)[:count], radii.reshape(-1)[:count]


def test_the_peer_makes_the_stream_of_rfc_8439():
    # RFC 8439, section 2.3.2: counter 1, nonce 000000090000004a00000000
    start = bytes.fromhex("01000000" + "000000090000004a00000000")
    made = Cipher(algorithms.ChaCha20(KEY, start), mode=None).encryptor().update(bytes(64))
    assert made[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"
    assert made[-16:].hex() == "b5129cd1de164eb9cbd083e8a2503c4e"


@needs_triton
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2.0**-20), (torch.float64, 2.0**-46)])
def test_noise_is_box_muller_of_the_chacha20_keystream(device, dtype, bound):
    generator = Fixed()
    parts = [torch.zeros(n, dtype=dtype, device=WHERE) for n in (12_001, 1, 0, 3000)]
    device.write_gaussian_(parts, stddev=1.0, generator=generator, add=True)
    assert generator.asked == 1  # a key for the call, a nonce for each tensor
    for nonce, part in enumerate(parts):
        draws, radii = exact(nonce, part.numel(), dtype, device._LANES)
        error = np.abs(part.cpu().numpy().astype(np.longdouble) - draws) / radii
        assert not len(error) or error.max() < bound


@needs_triton
def test_the_kernel_makes_the_block_of_rfc_8439(device):
    # section 2.3.2; the first word of its nonce is the upper half of our counter
    out = torch.zeros(16, dtype=torch.int32, device=WHERE)
    triton.jit(make_block)[(1,)](out, 0x09000000_00000001, *WORDS, 0x4A000000)
    assert out.cpu().numpy().tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@needs_triton
def test_no_word_gives_a_radius_that_is_infinite_or_nan(device):
    edges = [0, 1, -1, 2**31 - 1, -(2**31), 2**24, -(2**24), 255]
    a, b = (
        t.reshape(-1).to(WHERE)
        for t in torch.meshgrid(*2 * [torch.tensor(edges, dtype=torch.int32)], indexing="ij")
    )
    out = torch.zeros(64, device=WHERE)
    triton.jit(make_radius)[(1,)](out, a, b)
    assert out.isfinite().all() and out.min() > 0 and out.max() < 9.5 / math.sqrt(2)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_stated_law(device, dtype):
    noise = torch.zeros(60_001, dtype=dtype, device=WHERE)
    device.write_gaussian_([noise], stddev=2.0, generator=seeded(1), add=True)
    drawn = noise.double().cpu().numpy()
    assert kstest(drawn, norm(scale=2.0).cdf).pvalue > ALPHA
    assert kstest(drawn, norm(scale=2.2).cdf).pvalue < ALPHA  # 10% off is caught: the test has power
    for lag in (1, device._LANES, 2 * device._LANES):  # partners of one radius lie `_LANES` apart
        for power in (1, 2):
            a, b = drawn[:-lag] ** power, drawn[lag:] ** power
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(60_000)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_adding_and_overwriting_use_the_same_noise_whatever_the_layout(device, dtype, layout):
    base = torch.arange(600, dtype=dtype, device=WHERE).view(20, 30)
    added, written = base.clone(), base.clone()
    views = [t.T if layout == "transposed" else t for t in (added, written)]
    device.write_gaussian_(views[:1], stddev=3.0, generator=Fixed(), add=True)
    device.write_gaussian_(views[1:], stddev=3.0, generator=Fixed(), add=False)
    assert torch.allclose(added - base, written, rtol=0, atol=1e-4)
    draws, _ = exact(0, 600, dtype, device._LANES)
    assert np.allclose(views[1].cpu().numpy().reshape(-1), 3 * draws.astype(np.float64), rtol=0, atol=1e-4)


@needs_triton
def test_a_seed_repeats_the_noise_and_one_generator_does_not(device):
    generator, drawn = seeded(2), []
    for source in (generator, generator, seeded(2)):
        noise = torch.zeros(1000, device=WHERE)
        device.write_gaussian_([noise], stddev=1.0, generator=source, add=True)
        drawn.append(noise)
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


@needs_triton
def test_two_tensors_of_one_call_get_unrelated_noise(device):
    a, b = torch.zeros(20_000, device=WHERE), torch.zeros(20_000, device=WHERE)
    device.write_gaussian_([a, b], stddev=1.0, generator=seeded(3), add=True)
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / math.sqrt(20_000)


@needs_triton
def test_noise_for_a_device_tensor_comes_from_the_kernel(device, monkeypatch):
    monkeypatch.setattr(mechanisms, "device", device)
    monkeypatch.setattr(tensors, "_on_gpu", lambda tensor: True)
    noise = tensors.gaussian((600,), stddev=2.0, generator=Fixed(), device=WHERE)
    draws, _ = exact(0, 600, torch.float32, device._LANES)
    assert np.allclose(noise.cpu().numpy(), 2 * draws.astype(np.float64), rtol=0, atol=1e-5)
    parts = [torch.zeros(5, device=WHERE), torch.zeros(5, dtype=torch.float64, device=WHERE)]
    tensors.add_gaussian_many_(parts, stddev=2.0, generator=Fixed())
    assert torch.equal(parts[0], noise[:5]) and not torch.allclose(parts[1].float(), noise[:5])


def test_noise_for_a_device_tensor_is_drawn_on_the_cpu_where_triton_is_absent(monkeypatch):
    tensor = types.SimpleNamespace(is_cuda=True)
    monkeypatch.setattr(plain, "triton", None)
    assert not plain.available() and not tensors._on_gpu(tensor)
    monkeypatch.setattr(plain, "triton", object())
    assert plain.available() and tensors._on_gpu(tensor)


def test_noise_is_refused_while_a_graph_is_captured(monkeypatch):
    class Captured(torch.Tensor):
        is_cuda = True

    target = torch.zeros(3).as_subclass(Captured)
    monkeypatch.setattr(plain.torch.cuda, "device", lambda where: torch.no_grad())
    monkeypatch.setattr(plain.torch.cuda, "is_current_stream_capturing", lambda: True)
    for draw in (
        lambda: plain.write_gaussian_([target], stddev=1.0, generator=seeded(1), add=True),
        lambda: tensors.add_gaussian_(target, stddev=1.0),
        lambda: tensors.add_laplace_(target, scale=1.0),
    ):
        with pytest.raises(InvalidParameterError, match="each replay would repeat"):
            draw()
    assert target.abs().max() == 0


def test_noise_is_refused_inside_a_compiled_function(monkeypatch):
    monkeypatch.setattr(plain.torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(InvalidParameterError, match="outside the graph"):
        plain.write_gaussian_([torch.zeros(3)], stddev=1.0, generator=seeded(1), add=True)


@pytest.mark.skipif(not GPU, reason="needs a GPU to capture a graph on")
def test_a_real_capture_is_refused_and_the_device_is_never_waited_for():
    target = tensors.gaussian((1000,), stddev=1.0, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tensors.add_gaussian_many_([target, target.double()], stddev=1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        target.mul_(2.0)
        with pytest.raises(InvalidParameterError, match="each replay would repeat"):
            tensors.add_gaussian_(target, stddev=1.0)
