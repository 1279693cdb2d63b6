# SPDX-License-Identifier: Apache-2.0
"""Attacks on every way to federate, from the view of somebody who sees the models, and from the server's.

- Somebody who sees the models of all rounds: short runs of `federate` with canary clients, with noise of the
  server and with shares of noise of the clients. Cohorts are secret, so sampling counts in the claim.
- The server: secure sums, and messages of clients with noise of their own. It knows whom it asked, so every
  canary is asked in each round, and sampling does not count (`audit.federations.round_canaries`).

`ExampleLevel` and gossip with `NoisySteps` are DP-SGD at the client, which `attacks.trainers` attacks.

Guarantee  All lower bounds together have the stated confidence.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.price import price
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.audit.federations.round_canaries import RoundCanaries
from sfumato.audit.runs.canaries import Canaries
from sfumato.federated import (
    AssignedRows,
    ClippedNoise,
    ClippedUpdates,
    IntegerNoise,
    LazyRows,
    LocalTraining,
    SecureSum,
    federate,
)
from sfumato.federated.decentralized.node import Node
from sfumato.federated.flower import LocalNoise
from sfumato.mechanisms.random import Generator, resolve
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping

__all__ = ["federations"]

Attack = Callable[[int, float, Generator], AuditResult]  # canaries, confidence, randomness

_CLIENTS, _RATE, _ROUNDS, _DELTA = 40, 0.25, 12, 1e-5
_NOISE = 1.5  # multiplier
_MESSAGES, _SIZE = 3, 8  # of each client, and coordinates of each
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
        "LocalNoise, seen by the server": _local,
        "gossip, ClippedUpdates, seen by neighbors": _gossip,
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
        return settings.sums(mechanism, rounds=_MESSAGES, delta=_DELTA, generator=generator)

    return attack


def _local(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what the mod of a client lets leave."""
    mod: Any = LocalNoise(clip_norm=0.5, rounds=_MESSAGES, epsilon=4.0, delta=_DELTA, generator=generator)

    def send(client: int, number: int, update: Tensor) -> Tensor:
        sent = {"weight": update}
        mod._randomize(sent, generator.fork("client", client).fork("round", number))
        return sent["weight"]

    return RoundCanaries(count=canaries, confidence=confidence).messages(
        send,
        noise_multiplier=mod.noise_multiplier,
        clip_norm=0.5,
        rounds=_MESSAGES,
        claim=mod.guarantee,
        size=_SIZE,
        generator=generator,
    )


def _gossip(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what nodes of a graph send: the noisy update of a node whose one row is its update."""
    noise = ClippedNoise.calibrated(epsilon=4.0, delta=_DELTA, releases=_MESSAGES)
    protection = ClippedUpdates(noise=noise, local=LocalTraining(learning_rate=1.0, loss=_itself))
    asked = [torch.zeros(1, _SIZE)]  # the row of the node that speaks
    rows = LazyRows(lambda _: tuple(asked), clients=1, like=(torch.zeros(0, _SIZE),))
    model = nn.Linear(_SIZE, 1, bias=False)
    speak, nodes = protection.open(model, rows, node=0, generator=generator), dict[int, Node]()

    def send(client: int, number: int, update: Tensor) -> Tensor:
        asked[:] = [update.float()[None]]
        node = nodes.setdefault(client, Node(client, {client: 1.0}, torch.zeros(_SIZE), speak))
        before, message = node.state, node.message(client * _MESSAGES + number)  # each has noise of its own
        node.mix({client: message})
        return before - message

    claim = price(protection.event(_MESSAGES), delta=_DELTA, relation=protection.relation)
    return RoundCanaries(count=canaries, confidence=confidence).messages(
        send,
        noise_multiplier=noise.noise_multiplier,
        clip_norm=noise.clip_norm,
        rounds=_MESSAGES,
        claim=claim.guarantee(protection.privacy_unit),
        size=_SIZE,
        generator=generator,
    )


def _itself(model: nn.Module, rows: Tensor) -> Tensor:
    """Return a loss whose gradient at each row is that row."""
    return model(rows)[:, 0]
