# SPDX-License-Identifier: Apache-2.0
import copy
import os
import pickle
import threading

import numpy as np
import pytest
import torch
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
from sfumato.testing import seeded

ALPHA = 1e-6


def draw_in_child(generator) -> bytes:
    """Fork, draw 32 bytes in the child, and return them (or b'refused')."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sent = words(4, generator).tobytes()
        except InvalidParameterError:
            sent = b"refused"
        os.write(write, sent)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    received = os.read(read, 64)
    os.close(read)
    return received


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
    assert asked == [32, 16, 32, 16]
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


def test_a_seed_gives_the_same_stream_everywhere():
    # a snapshot, on purpose: the stream of a seed must not change between platforms or versions
    assert words(2, seeded(0)).tolist() == [6298285927571221637, 16769782867655065870]
    assert not np.array_equal(words(2, seeded(0)), words(2, seeded(1)))


def test_long_requests_continue_the_stream_of_short_ones():
    together = words(20_000, seeded(5))
    generator = seeded(5)
    apart = np.concatenate([words(n, generator) for n in (2, 9_998, 10_000)])
    assert np.array_equal(together, apart)


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
