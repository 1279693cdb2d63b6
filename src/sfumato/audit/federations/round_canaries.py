# SPDX-License-Identifier: Apache-2.0
"""An audit of a federation from the server's view: canary clients in every round, and what the server sees.

The server knows whom it asked, so sampling hides nobody from it, and no cohort is drawn here: each canary is
asked in every round. Its update is far too long, in a coordinate of its own, and is clipped, rounded and
covered by noise with the code of the federation. Half of the canaries have nothing to tell (or the opposite,
where the relation replaces a client). What the server sees of a round is passed to an `Auditor`:

- `sums`: of secure sums, the decoded sum. As many clients answer as the noise is made for, no more.
- `messages`: of local noise, each message of each client, and of gossip what a node sends.

The claim is that of the rounds without amplification by sampling.

Guarantee  Only synthetic updates are used. A true claim is called false with a probability of at most
           1 - confidence, if noise is independent and Gaussian. Integer noise is so up to its grid: sums
           with a coarse grid are refused (`_FINEST`).
Failure    A sum that wraps around is reported as a failed check ("range of the sums"): it costs accuracy and
           no privacy, but it is not the sum that was stated.
Not here   Masks and keys, how clients learn, and who is asked. The result names them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import DpEvent, dp_sgd
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.audit.evidence.results import AuditResult, CheckName, Finding, Unchecked
from sfumato.audit.runs.auditor import Auditor
from sfumato.audit.runs.score_log import require_enough
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.federated.secure_sum.simulated import round_seed, simulated_sum
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["RoundCanaries", "Send", "TakeSum"]

Floats = npt.NDArray[np.float64]
Send = Callable[
    [int, int, Tensor], Tensor
]  # client, round and update to all that leaves: [size] or [k, size]

_LONG = 1e3  # times the clip norm: an update before it is clipped
_IDLE = 4  # coordinates without a canary that are looked at, for each that has one
_FINEST = 1 / 4000  # of the noise: the distance of two values that a coordinate of a sum can have
_RANGE = "range of the sums"
_WRAPS = "sums of equal updates that are off by more than their noise"
_MADE = (CheckName.STEPS, CheckName.CANARIES, CheckName.PRICE)  # of an auditor of training
_WORDS = (("gradient canaries in one run", "canary clients"), ("step", "round"))


class TakeSum(Protocol):
    """What takes one secure sum, such as `simulated_sum` or the protocol itself."""

    def __call__(
        self, updates: Floats, mechanism: SecureSum, *, seed: int, generator: Generator | None
    ) -> Floats | None:
        """Return the decoded sum of the updates of all clients that are left; None if it is skipped."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCanaries:
    """Canary clients for what the server of a federation sees.

    Args:
        count: The number of canaries.
        confidence: The probability with which the verdict is right about right code.

    Raises:
        InvalidParameterError: If so few canaries cannot show anything at this confidence.

    >>> from sfumato.testing import seeded
    >>> mechanism = SecureSum(dimension=60, clip_norm=1.0, noise_multiplier=2.0, cohort=50,
    ...                       least_survivors=40, noise="skellam")
    >>> found = RoundCanaries(count=400).sums(mechanism, rounds=2, delta=1e-5, generator=seeded(0))
    >>> found.refuted
    False
    """

    count: int = 1000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_enough(self.count, self.confidence)

    def sums(
        self,
        mechanism: SecureSum,
        *,
        rounds: int,
        delta: float,
        take: TakeSum = simulated_sum,
        generator: Generator | None = None,
    ) -> AuditResult:
        """Let canaries take part in secure sums, and compare what the sums show with their event.

        Args:
            mechanism: The sums.
            rounds: How many sums each canary takes part in.
            delta: The delta of the guarantee.
            take: What takes a sum. Default: the simulation, which has the bits of the protocol.
            generator: Source of the clients' randomness. None uses the secure generator.

        Returns:
            The lower bound and the checks, for zero-out neighbors: that a client takes part is not hidden.

        Raises:
            InvalidParameterError: If the grid of the sums is too coarse for tests of their noise.
        """
        _check.count(rounds=rounds)
        _require_fine(mechanism)
        auditor = self._auditor(Relation.ZERO_OUT, generator)
        sources = (resolve(generator).fork("round", number) for number in range(rounds))
        decoded = [_observed(auditor, take, mechanism, source) for source in sources]

        def event(factor: float) -> DpEvent:
            return dp.SelfComposedDpEvent(mechanism.event_at(mechanism.noise_multiplier * factor), rounds)

        claim = price(event(1.0), delta=delta, relation=Relation.ZERO_OUT).guarantee("client")
        full = _equal_updates(take, mechanism, rounds, generator)
        blind = None if all(decoded) else "sums of as many clients as the noise is made for were skipped"
        subject = f"A federation whose server sees {rounds} secure sums"
        return _of_rounds(
            auditor.verdict(
                claim, event, subject=subject, steps=rounds, more=[(_RANGE, [full], _WRAPS)], blind=blind
            ),
            ("masks and keys", "sums are taken without them, with the same bits"),
        )

    def messages(
        self,
        send: Send,
        *,
        noise_multiplier: float,
        clip_norm: float,
        rounds: int,
        claim: Guarantee,
        size: int = 8,
        generator: Generator | None = None,
    ) -> AuditResult:
        """Let canaries send messages with noise of their own, and compare what they show with the claim.

        Args:
            send: Called as `send(client, round, update)`; returns what leaves: the noisy update, [size], or
                several of them, [messages, size].
            noise_multiplier: The noise of a message that is stated, divided by the clip norm.
            clip_norm: The most that an update may have in L2 norm.
            rounds: How many rounds each canary answers.
            claim: What is claimed for all messages of a client together.
            size: How many coordinates an update has.
            generator: The source of coins that decide which canaries have something to tell.

        Returns:
            The lower bound and the checks.

        Raises:
            InvalidParameterError: If a number is out of range, or messages have another shape.
        """
        _check.count(rounds=rounds, size=size)
        _check.positive(noise_multiplier=noise_multiplier, clip_norm=clip_norm)
        auditor = self._auditor(claim.relation, generator)
        own = torch.nn.functional.one_hot(torch.arange(self.count) % size, size).bool()
        updates = own * auditor.signs[:, None] * (_LONG * clip_norm)
        for number in range(rounds):
            sent = [send(client, number, update.clone()) for client, update in enumerate(updates)]
            heard = _stacked(sent, size) / clip_norm  # [clients, messages, size]
            for message in heard.unbind(1):
                auditor.observe(
                    message[own], noise=noise_multiplier, taken=auditor.seated, idle=message[~own]
                )

        def event(factor: float) -> DpEvent:
            return dp_sgd(noise_multiplier=noise_multiplier * factor, sampling_rate=1.0, steps=rounds)

        subject = f"A client that sends {rounds} messages"
        return _of_rounds(
            auditor.verdict(claim, event, subject=subject, steps=rounds),
            ("how long a client takes", "canaries take no time"),
        )

    def _auditor(self, relation: Relation, generator: Generator | None) -> Auditor:
        return Auditor(
            count=self.count,
            relation=relation,
            sampling_rate=1.0,
            confidence=self.confidence,
            generator=generator,
        )


# --- sums -------------------------------------------------------------------------------------------------


def _require_fine(mechanism: SecureSum) -> None:
    stddev = mechanism.noise_multiplier * mechanism.l2_bound  # in steps of the grid
    if not 2 / math.sqrt(mechanism.size) <= _FINEST * stddev:
        raise InvalidParameterError(
            f"sums of bits={mechanism.bits} have a grid so coarse that their noise is not nearly Gaussian, "
            "and tests of noise do not hold. Audit sums with more bits: the code is the same."
        )


def _width(mechanism: SecureSum) -> int:
    """Return how many canaries are in one sum: each has a coordinate, and is one of the clients left."""
    return min(mechanism.dimension, mechanism.least_survivors)


def _groups(signs: Tensor, mechanism: SecureSum) -> Iterator[Floats]:
    """Yield the updates of each sum: canaries, and clients that add noise alone."""
    for part in signs.double().split(_width(mechanism)):
        updates = np.zeros((mechanism.least_survivors, mechanism.dimension))
        np.fill_diagonal(updates[: len(part), : len(part)], part.numpy() * _LONG * mechanism.clip_norm)
        yield updates


def _observed(auditor: Auditor, take: TakeSum, mechanism: SecureSum, source: Generator) -> bool:
    """Take the sums of a round, and pass them to an auditor; return whether all of them were decoded."""
    width, bound = _width(mechanism), mechanism.bound_at(mechanism.noise_multiplier)
    own: list[Floats] = []
    idle: list[Floats] = []
    decoded = True
    for place, updates in enumerate(_groups(auditor.signs, mechanism)):
        found = _taken(take, updates, mechanism, source.fork("sum", place))
        decoded = decoded and found is not None
        shown = np.zeros(mechanism.dimension) if found is None else found / bound
        own.append(shown[: min(width, auditor.count - place * width)])
        idle.append(shown[width : (1 + _IDLE) * width])
    auditor.observe(
        torch.from_numpy(np.concatenate(own)),
        noise=mechanism.noise_multiplier,
        taken=auditor.seated,
        idle=torch.from_numpy(np.concatenate(idle)),
    )
    return decoded


def _taken(take: TakeSum, updates: Floats, mechanism: SecureSum, source: Generator) -> Floats | None:
    return take(updates, mechanism, seed=round_seed(source, 0), generator=source)


def _equal_updates(take: TakeSum, mechanism: SecureSum, rounds: int, generator: Generator | None) -> Finding:
    """Compare sums in which all invited clients have the same update with what they should be."""
    clients, bound = mechanism.cohort, mechanism.bound_at(mechanism.noise_multiplier)
    update = np.zeros(mechanism.dimension)
    update[0] = mechanism.clip_norm
    noise = mechanism.noise_multiplier * bound * math.sqrt(clients / mechanism.least_survivors)
    stddev = math.hypot(noise, math.sqrt(clients) / mechanism.scale)  # an update is rounded by less than 1
    p_value = 1.0
    for number in range(rounds):
        source = resolve(generator).fork("equal updates", number)
        found = _taken(take, np.tile(update, (clients, 1)), mechanism, source)
        off = math.inf if found is None else float(np.abs(found - clients * update).max())
        p_value = min(p_value, 2 * rounds * mechanism.dimension * float(ndtr(-off / stddev)))
    message = "the modulus is too small: sums of equal updates are not what they should be"
    return Finding(p_value=p_value, message=message, observations=rounds * mechanism.dimension)


# --- messages, and words ----------------------------------------------------------------------------------


def _stacked(sent: list[Tensor], size: int) -> Tensor:
    """Return messages as [clients, messages of each, size]."""
    heard = [message.detach().double().reshape(-1, size) for message in sent]
    if len({len(each) for each in heard}) > 1:
        raise InvalidParameterError("send must return as many messages for one client as for another.")
    return torch.stack(heard)


def _of_rounds(result: AuditResult, *beside: tuple[str, str]) -> AuditResult:
    """Return a result in words for rounds, with what it does not cover."""
    made = (*_MADE, _RANGE)
    not_made = [each for each in result.unchecked if each.name in made]
    others = (*beside, ("how clients learn, and who is asked", "canaries are made-up updates of every round"))
    return replace(
        result,
        bounds=tuple(replace(bound, attack=_said(bound.attack)) for bound in result.bounds),
        checks=tuple(
            replace(check, name=_said(check.name), message=_said(check.message), sees=_said(check.sees))
            for check in result.checks
        ),
        unchecked=(
            *(Unchecked(name=_said(each.name), why=_said(each.why)) for each in not_made),
            *(Unchecked(name=name, why=why) for name, why in others),
        ),
    )


def _said(words: str) -> str:
    for before, after in _WORDS:
        words = words.replace(before, after)
    return words
