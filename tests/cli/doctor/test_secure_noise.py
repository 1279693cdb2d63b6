# SPDX-License-Identifier: Apache-2.0
"""The check of noise: rarely wrong about good noise, never silent about noise that is missing or constant."""

import math
import os

import numpy as np
import pytest
from scipy.stats import binom

from sfumato.cli.doctor import secure_noise
from sfumato.cli.doctor.findings import State
from sfumato.mechanisms import opendp_noise
from sfumato.testing import seeded


def found():
    return {each.name: each for each in secure_noise.check()}


def test_this_machine_is_fine():
    assert {each.state for each in found().values()} == {State.OK}
    assert set(found()) == {"entropy", "default generator", "OpenDP", "statistics"}


@pytest.mark.parametrize("throws", [512, 4096, 131_072, 262_144])
def test_fair_coins_fail_less_often_than_stated(throws):
    """By the exact binomial distribution, not by the inequality that the check uses."""
    far = secure_noise.farthest(throws)
    outside = 2 * binom.sf(math.floor(throws / 2 + far), throws, 0.5)
    assert 0 < outside <= secure_noise.FALSE_ALARM / secure_noise._COINS


def test_the_number_of_coins_is_what_the_rate_is_divided_by():
    coins = secure_noise._coins_of_words(seeded(0)) | secure_noise._coins_of_opendp()
    assert len(coins) == secure_noise._COINS and secure_noise.unfair(coins) == []


class Stuck:
    """A generator that repeats one byte."""

    secure, seeded = True, False

    def __init__(self, byte):
        self.byte = byte

    def fill(self, out):
        out[:] = bytes([self.byte]) * len(out)


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x55, 0x37])
def test_a_generator_that_repeats_itself_is_broken(monkeypatch, byte):
    monkeypatch.setattr(secure_noise, "resolve", lambda generator: Stuck(byte))
    assert found()["statistics"].state is State.BROKEN
    assert "changes of bits" in found()["statistics"].found


@pytest.mark.parametrize(
    ("draw", "wrong"),
    [
        (lambda value: 0.0, "sizes of Laplace noise"),
        (lambda value: 1.0, "signs of Laplace noise"),
        (lambda value: float(np.random.default_rng().laplace(scale=3)), "sizes of Laplace noise"),
        (lambda value: float(np.random.default_rng().laplace(scale=0.3)), "sizes of Laplace noise"),
    ],
)
def test_noise_that_is_missing_constant_or_of_another_size_is_broken(monkeypatch, draw, wrong):
    monkeypatch.setattr(opendp_noise, "laplace", lambda kind, scale: draw)
    said = found()["statistics"]
    assert said.state is State.BROKEN and wrong in said.found


def test_a_default_that_is_not_secure_is_broken(monkeypatch):
    monkeypatch.setattr(secure_noise, "resolve", lambda generator: seeded(0))
    said = found()["default generator"]
    assert said.state is State.BROKEN and "SeededGenerator is the default" in said.found


def test_a_library_that_does_not_load_is_broken_and_the_rest_is_still_checked(monkeypatch):
    def missing(kind, scale):
        raise ImportError("no library")

    monkeypatch.setattr(opendp_noise, "laplace", missing)
    assert found()["OpenDP"].state is State.BROKEN and found()["statistics"].state is State.OK


def test_a_system_without_randomness_is_broken(monkeypatch):
    def waiting(*_):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "getrandom", waiting, raising=False)
    monkeypatch.setattr(os, "GRND_NONBLOCK", 1, raising=False)
    assert secure_noise._entropy().state is State.BROKEN


def test_a_system_that_repeats_its_randomness_is_broken(monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)
    assert secure_noise._entropy().state is State.BROKEN
