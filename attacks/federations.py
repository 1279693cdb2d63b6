# SPDX-License-Identifier: Apache-2.0
"""Attacks on every way to federate, from the view of somebody who sees the models, and from the server's.

- Somebody who sees the models of all rounds: short runs of `federate` with canary clients, with noise of the
  server and with shares of noise of the clients. Cohorts are secret, so sampling counts in the claim.
- The server: secure sums. It knows whom it asked, so every canary is asked in each round, and sampling does
  not count (`audit.federations.round_canaries`).
- Who receives a message that somebody protected alone: `attacks.federated_messages`.

Guarantee  All lower bounds together have the stated confidence.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from attacks.federated_messages import MESSAGES, Attack
from sfumato import _check
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.audit.federations.round_canaries import RoundCanaries
from sfumato.audit.runs.canaries import Canaries
from sfumato.federated import AssignedRows, IntegerNoise, LocalTraining, SecureSum, federate
from sfumato.mechanisms.random import Generator, resolve
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping

__all__ = ["federations"]

_CLIENTS, _RATE, _ROUNDS, _DELTA = 40, 0.25, 12, 1e-5
_NOISE = 1.5  # multiplier
_SUMS = 3  # in which each client takes part
_LOCAL = LocalTraining(batch_size=2, learning_rate=0.2)


def federations(
    canaries: int = 2000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Attack each way to federate once, and yield its claim with what canary clients show.

    Args:
        canaries: The number of canaries of each attack.
        confidence: The confidence of all bounds together.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        The result of each way, one after the other.

    Raises:
        InvalidParameterError: If `canaries` is not a positive whole number, or too small to show anything.

    >>> from sfumato.testing import seeded
    >>> next(federations(200, generator=seeded(0))).refuted
    False
    """
    _check.count(canaries=canaries)
    ways = _ways()
    each, source = confidence_of_each(confidence, tuple(ways)), resolve(generator)
    for index, (name, attack) in enumerate(ways.items()):
        found = attack(canaries, each, source.fork("federation", index))
        yield replace(found, subject=name, in_scores=(), out_scores=())


def _ways() -> dict[str, Attack]:
    adaptive = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=4.0))
    momentum: Any = {"optimizer": partial(torch.optim.SGD, lr=0.5, momentum=0.9)}
    outside = {
        "add-remove": _run(),
        "zero-out": _run(relation="zero-out"),
        "add-remove, adaptive clipping": _run(clipping=adaptive),
        "add-remove, momentum of the server": _run(**momentum),
        **{f"add-remove, {noise.value} shares": _run(noise=noise) for noise in IntegerNoise},
    }
    return {
        **{f"federate, seen from outside, {name}": attack for name, attack in outside.items()},
        **{f"SecureSum, {noise.value}, seen by the server": _sums(noise) for noise in IntegerNoise},
        **MESSAGES,
    }


def _run(**settings: Any) -> Attack:
    def attack(canaries: int, confidence: float, generator: Generator) -> AuditResult:
        rows = torch.ones(2 * _CLIENTS, 3), torch.arange(2 * _CLIENTS) % 2
        clients = AssignedRows(rows, torch.arange(2 * _CLIENTS) % _CLIENTS, clients=_CLIENTS)
        found = federate(
            nn.Linear(3, 2),
            clients,
            rounds=_ROUNDS,
            expected_cohort_size=_RATE * _CLIENTS,
            local=_LOCAL,
            noise_multiplier=_NOISE,
            delta=_DELTA,
            audit=Canaries(count=canaries, confidence=confidence),
            progress=False,
            evaluate_every=_ROUNDS,
            generator=generator,
            **settings,
        ).audit
        assert isinstance(found, AuditResult)
        return found

    return attack


def _sums(noise: IntegerNoise) -> Attack:
    mechanism = SecureSum(
        dimension=100, clip_norm=1.0, noise_multiplier=2.0, cohort=60, least_survivors=50, noise=noise
    )

    def attack(canaries: int, confidence: float, generator: Generator) -> AuditResult:
        settings = RoundCanaries(count=canaries, confidence=confidence)
        return settings.sums(mechanism, rounds=_SUMS, delta=_DELTA, generator=generator)

    return attack
