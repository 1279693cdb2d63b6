# SPDX-License-Identifier: Apache-2.0
"""Each attack on messages finds bugs that are planted where its participant protects itself."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from attacks.federated_messages import MESSAGES
from sfumato.federated import ClippedNoise
from sfumato.federated.decentralized import protection
from sfumato.federated.flower import example_level, local_noise
from sfumato.federated.messages import clipped_noise
from sfumato.federated.vertical import train_split
from sfumato.mechanisms import tensors
from sfumato.testing import seeded
from sfumato.training.engine.gradients import PrivateGradients

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

CANARIES = 40
TOO_LITTLE = 3.0  # times less noise than was stated


def little_noise_of_messages(patch, module, name):
    whole = getattr(tensors, name)

    def less(values, *, stddev, generator=None):
        return whole(values, stddev=stddev / TOO_LITTLE, generator=generator)

    patch.setattr(module, name, less)


def little_noise_of_steps(patch, module):
    def less(model, loss, *, noise_multiplier, **more):
        return PrivateGradients(model, loss, noise_multiplier=noise_multiplier / TOO_LITTLE, **more)

    patch.setattr(module, "PrivateGradients", less)


def little_noise_of_a_round(patch):
    whole = example_level._round_of

    def less(mechanism, steps, rounds):
        found = whole(mechanism, steps, rounds)
        return replace(found, noise=[(noise / TOO_LITTLE, count) for noise, count in found.noise])

    patch.setattr(example_level, "_round_of", less)


def no_clipping(patch):
    patch.setattr(ClippedNoise, "clipped", lambda self, rows: rows)


def one_seed(patch):
    patch.setattr(type(seeded(0)), "fork", lambda self, label, index=0: seeded(len(label)))


of_rows = partial(little_noise_of_messages, module=clipped_noise, name="add_gaussian_")
BUGS = {
    ("LocalNoise", "little noise"): partial(
        little_noise_of_messages, module=local_noise, name="add_gaussian_many_"
    ),
    ("ExampleLevel", "little noise"): little_noise_of_a_round,
    ("ClippedUpdates", "little noise"): of_rows,
    ("ClippedUpdates", "no clipping"): no_clipping,
    ("NoisySteps", "little noise"): partial(little_noise_of_steps, module=protection),
    ("learn_top", "little noise"): of_rows,
    ("learn_top", "no clipping"): no_clipping,
    ("learn_top", "one seed for all people"): one_seed,
    ("train_split, columns", "little noise of embeddings"): of_rows,
    ("train_split, columns", "little noise of steps"): partial(little_noise_of_steps, module=train_split),
    ("train_split, labels", "little noise of what is returned"): of_rows,
    ("train_split, labels", "little noise of steps"): partial(little_noise_of_steps, module=train_split),
}


def attack_on(part):
    (found,) = (attack for name, attack in MESSAGES.items() if part in name)
    return found


@pytest.mark.parametrize(("part", "bug"), BUGS)
def test_a_planted_bug_is_found(monkeypatch, part, bug):
    BUGS[part, bug](monkeypatch)
    assert attack_on(part)(CANARIES, 0.95, seeded(1)).refuted


def test_every_attack_has_a_bug_to_find():
    assert {name for name in MESSAGES if any(part in name for part, _ in BUGS)} == set(MESSAGES)
