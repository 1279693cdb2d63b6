# SPDX-License-Identifier: Apache-2.0
import copy
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import random as source
from sfumato.mechanisms.random import (
    FastGenerator,
    SecureGenerator,
    SeededGenerator,
    resolve,
    study_note,
    uniform_below,
    words,
)
from sfumato.mechanisms.tensors import gaussian
from sfumato.testing import seeded

ALPHA = 1e-6


def draw_in_child(generator) -> bytes:
    """Fork, draw 32 bytes in the child, and return them (or b'refused')."""
    return in_child(lambda: words(4, generator).tobytes())


def test_the_default_is_secure_and_not_seeded():
    assert resolve(None).secure and not resolve(None).seeded
    assert study_note(None) is None


def test_two_secure_generators_never_agree():
    assert not np.array_equal(words(4, SecureGenerator()), words(4, SecureGenerator()))


def test_global_seeds_do_not_reach_the_secure_stream():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global state is what must not matter
        drawn.append(words(4).tolist())
    assert drawn[0] != drawn[1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_repeat_its_parents_stream():
    generator = SecureGenerator()
    words(4, generator)
    inherited = draw_in_child(generator)
    own = words(4, generator).tobytes()
    assert len(inherited) == len(own) == 32
    assert inherited != own


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_children_do_not_share_a_stream():
    generator = SecureGenerator()
    words(4, generator)
    assert draw_in_child(generator) != draw_in_child(generator)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_seeded_generator_refuses_to_work_in_a_forked_child():
    assert draw_in_child(seeded(1)) == b"refused"


def test_two_threads_do_not_share_a_stream():
    generator, drawn = SecureGenerator(), []
    threads = [threading.Thread(target=lambda: drawn.append(words(4, generator).tolist())) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("generator", [SecureGenerator(), SeededGenerator(1), FastGenerator(1)])
def test_no_generator_can_be_pickled_or_copied(generator):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            attempt(generator)


def test_a_key_is_replaced_before_it_is_worn_out(monkeypatch):
    monkeypatch.setattr(source, "_BYTES_PER_KEY", 64)
    asked = []
    monkeypatch.setattr(source.os, "urandom", lambda n: asked.append(n) or bytes([len(asked)]) * n)
    generator = SecureGenerator()
    first, second = words(8, generator), words(8, generator)
    assert asked == [32, 12, 32, 12]
    assert not np.array_equal(first, second)


def test_the_stream_is_aes_256_in_counter_mode():
    # NIST SP 800-38A, F.5.5: CTR-AES256.Encrypt, whose first plaintext and ciphertext differ by the keystream
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    start = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    cipher = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228")
    out = bytearray(16)
    source._Keystream(key, start).fill(memoryview(out))
    assert bytes(out) == bytes(a ^ b for a, b in zip(plain, cipher, strict=True))


def test_the_secure_stream_is_that_of_counter_mode_from_block_2():
    # NIST SP 800-38D, section 7.1: the blocks of a 96-bit nonce are counted from 2 (block 1 makes the tag)
    key, nonce, out = bytes(range(32)), bytes(range(12)), bytearray(300_000)
    source._Keystream(key, nonce).fill(memoryview(out))
    plain = Cipher(algorithms.AES(key), modes.CTR(nonce + (2).to_bytes(4, "big"))).encryptor()
    assert bytes(out) == plain.update(bytes(300_000))


def test_a_request_longer_than_a_key_lasts_is_served_by_two_keys(monkeypatch):
    monkeypatch.setattr(source, "_BYTES_PER_KEY", 64)
    asked = []
    monkeypatch.setattr(source.os, "urandom", lambda n: asked.append(n) or bytes([len(asked)]) * n)
    drawn = words(12, SecureGenerator())
    assert asked == [32, 12, 32, 12]
    assert len(np.unique(drawn)) == 12


def test_a_key_gives_no_more_than_its_cipher_allows():
    assert 8 * source._BYTES_PER_KEY <= 2**39 - 256  # NIST SP 800-38D, section 5.2.1.1, in bits


def test_a_seed_gives_the_same_stream_everywhere():
    # a snapshot, on purpose: the stream of a seed must not change between platforms or versions
    assert words(2, seeded(0)).tolist() == [6298285927571221637, 16769782867655065870]
    assert not np.array_equal(words(2, seeded(0)), words(2, seeded(1)))


def test_long_requests_continue_the_stream_of_short_ones():
    together = words(20_000, seeded(5))
    generator = seeded(5)
    apart = np.concatenate([words(n, generator) for n in (2, 9_998, 10_000)])
    assert np.array_equal(together, apart)


def test_a_fork_of_a_seeded_generator_depends_on_seed_label_and_index_alone():
    used = seeded(5)
    first = words(4, used.fork("noise", 3)).tolist()
    words(1000, used)
    assert words(4, used.fork("noise", 3)).tolist() == first
    assert words(4, seeded(5).fork("noise", 3)).tolist() == first
    parent = words(4, seeded(5)).tolist()
    others = [(6, "noise", 3), (5, "batch", 3), (5, "noise", 4), (5, "noise ", 3), (5, "noise", 2**63 - 1)]
    drawn = [words(4, seeded(seed).fork(label, index)).tolist() for seed, label, index in others]
    assert len({tuple(d) for d in [first, parent, *drawn]}) == len(others) + 2


def test_a_fork_of_a_seeded_generator_is_the_same_everywhere():
    # a snapshot, on purpose: a run that goes on from a checkpoint must draw what it would have drawn
    assert int(words(1, seeded(0).fork("noise", 1))[0]) == 202121526306965818
    assert int(words(1, seeded(0).fork("noise", 1).fork("layer", 2))[0]) == 16231566206154505290


def test_forks_are_seeded_or_secure_as_their_parent_is():
    secure = SecureGenerator()
    assert secure.fork("noise", 1) is secure  # its stream never repeats
    child = seeded(1).fork("noise", 1)
    assert child.seeded and not child.secure and study_note(child) == study_note(seeded(1))
    assert FastGenerator(1).fork("noise", 1).seeded and not FastGenerator().fork("noise", 1).seeded


def test_a_fork_of_a_fast_generator_is_derived_from_its_seed_or_fresh():
    def drawn(seed, label, index) -> list[int]:
        return words(4, FastGenerator(seed).fork(label, index)).tolist()

    assert drawn(1, "noise", 3) == drawn(1, "noise", 3)
    different = [drawn(1, "noise", 3), drawn(1, "noise", 4), drawn(2, "noise", 3), drawn(1, "batch", 3)]
    assert len({tuple(d) for d in different}) == 4
    assert drawn(None, "noise", 3) != drawn(None, "noise", 3)
    assert FastGenerator(1, device="cpu").fork("noise", 1).torch.device.type == "cpu"


@pytest.mark.parametrize("parent", [seeded(1), FastGenerator(1)], ids=["seeded", "fast"])
@pytest.mark.parametrize(
    "wrong", [("", 1), (None, 1), ("noise", -1), ("noise", 1.0), ("noise", True), ("noise", 2**63)]
)
def test_a_fork_needs_a_label_and_a_whole_number(parent, wrong):
    with pytest.raises(InvalidParameterError, match=r"label must be|index must be"):
        parent.fork(*wrong)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_seeded_generator_cannot_be_forked_in_a_child_process():
    class Forking:
        secure, seeded = False, True

        def __init__(self) -> None:
            self.parent = seeded(1)

        def fill(self, out: memoryview) -> None:
            self.parent.fork("noise", 1).fill(out)

    assert draw_in_child(Forking()) == b"refused"


def test_generators_made_for_study_say_so():
    assert study_note(seeded(1)) == study_note(FastGenerator(1)) == "for study only: the noise was seeded"
    assert study_note(FastGenerator()) == "for study only: the noise was not cryptographic"


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1", None])
def test_a_seed_must_be_a_whole_number(wrong):
    with pytest.raises(InvalidParameterError, match="seed must be"):
        seeded(wrong)


@pytest.mark.parametrize("wrong", [0, "secure", np.random.default_rng(0), torch.Generator()])
def test_foreign_generators_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match="generator must be"):
        resolve(wrong)


@pytest.mark.parametrize("generator", [seeded(11), FastGenerator(11)])
def test_bytes_are_uniform(generator):
    counts = np.bincount(words(50_000, generator).view(np.uint8), minlength=256)
    assert chisquare(counts).pvalue > ALPHA
    skewed = np.where(np.arange(256) < 128, 1.05, 0.95) * counts.sum() / 256
    assert chisquare(counts, skewed).pvalue < ALPHA  # 5% off is caught: the test has power


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**62 + 1, 2**63])
def test_uniform_below_stays_below(bound):
    drawn = uniform_below(bound, 2000, seeded(2))
    assert drawn.min() >= 0 and int(drawn.max()) < bound


def test_uniform_below_is_uniform_where_a_plain_remainder_is_not():
    bound = 2**62 + 2**61  # a third of all words would wrap around onto the lower half
    low = int((uniform_below(bound, 40_000, seeded(3)) < bound // 2).sum())
    assert abs(low - 20_000) < 5 * 100  # 5 standard deviations, 6e-7
    plain = int((words(40_000, seeded(3)) % np.uint64(bound) < bound // 2).sum())
    assert abs(plain - 20_000) > 5 * 100


@pytest.mark.parametrize("wrong", [0, -1, 2**63 + 1, 1.0])
def test_uniform_below_refuses_what_is_no_bound(wrong):
    with pytest.raises(InvalidParameterError):
        uniform_below(wrong, 1)


NO_SEED = {"secure": SecureGenerator, "fast": FastGenerator}
FORKING = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@FORKING
@pytest.mark.parametrize("kind", NO_SEED)
def test_children_of_a_fork_draw_neither_each_others_noise_nor_their_parents(kind):
    generator = NO_SEED[kind]()
    words(4, generator)
    drawn = [draw_in_child(generator), draw_in_child(generator), words(4, generator).tobytes()]
    assert len(set(drawn)) == 3 and b"refused" not in drawn


@FORKING
@pytest.mark.parametrize("kind", NO_SEED)
def test_tensors_of_noise_differ_between_children_of_a_fork(kind):
    generator = NO_SEED[kind]()

    def drawn() -> bytes:
        return in_child(lambda: gaussian((4,), stddev=1.0, generator=generator).numpy().tobytes())

    assert len({drawn(), drawn(), gaussian((4,), stddev=1.0, generator=generator).numpy().tobytes()}) == 3


@FORKING
@pytest.mark.parametrize("make", [lambda: seeded(1), lambda: FastGenerator(1)], ids=["seeded", "fast"])
def test_no_seeded_generator_works_in_a_forked_child(make):
    generator = make()
    assert draw_in_child(generator) == b"refused"
    assert in_child(lambda: bytes(words(4, generator.fork("noise", 1)))) == b"refused"


@FORKING
@pytest.mark.parametrize("kind", NO_SEED)
def test_processes_of_a_forking_pool_draw_noise_of_their_own(kind):
    generator = NO_SEED[kind]()
    words(1, generator)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [
        context.Process(target=lambda: queue.put(words(2, generator).tobytes()), daemon=True)
        for _ in range(3)
    ]
    for child in children:
        child.start()
    drawn = [queue.get() for _ in children]
    for child in children:
        child.join()
    assert len({*drawn, words(2, generator).tobytes()}) == 4


class Noisy(torch.utils.data.Dataset):
    """Rows of noise from one generator, which workers of a loader inherit."""

    def __init__(self, generator):
        self._generator = generator

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return gaussian((3,), stddev=1.0, generator=self._generator)


@FORKING
@pytest.mark.parametrize("kind", NO_SEED)
def test_workers_of_a_torch_loader_draw_noise_of_their_own(kind):
    generator = NO_SEED[kind]()
    words(1, generator)
    loader = torch.utils.data.DataLoader(Noisy(generator), num_workers=2, multiprocessing_context="fork")
    rows = [tuple(row.flatten().tolist()) for _ in range(2) for row in loader]
    assert len(set(rows)) == 12


def in_child(work) -> bytes:
    """Fork, and return what `work` returns in the child (or b'refused')."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sent = work()
        except InvalidParameterError:
            sent = b"refused"
        os.write(write, sent)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    received = os.read(read, 1024)
    os.close(read)
    return received
