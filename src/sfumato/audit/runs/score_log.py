# SPDX-License-Identifier: Apache-2.0
"""Which canaries are in, their scores over the steps of a run, and the lower bounds that the scores give.

Each canary is in or out by a fair coin. The coins are thrown again while there are too few canaries on one
side. That rule depends on the sizes of the two sides alone, so each subset of a given size remains equally
likely. `one_run.ranks` needs nothing else, because it is stated for given sizes. Bounds that count guesses
(`one_run.binary_guesses`, `one_run.f_dp`) need plain coins, and are not used here.

The score of a canary is the sum over steps of the log likelihood ratio of what was released along its
direction: the canary is in, or it is out. Two bounds use the scores: the ranks of all of them
(`one_run.ranks`) and the highest ones (`claim_limits.bound_of_tail`).

Guarantee  Given which canaries are in, the scores of different canaries are independent if sampling takes
           units independently or on a public schedule. The bounds then hold with their confidence. Wrong code
           cannot make them invalid, whatever the scores become: it can only make them larger.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.evidence import claim_limits, one_run
from sfumato.audit.evidence.results import LowerBound
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve, words

__all__ = ["RANKS_SHARE", "ScoreLog", "halves", "least_canaries", "require_enough"]

Numbers = npt.NDArray[np.float64]

RANKS_SHARE = 0.9  # of the error of an audit, for the ranks of canaries
_ATTACK = "ranked scores of gradient canaries in one run"
_HIGHEST = "highest scores of gradient canaries in one run"
_UNCERTIFIED = "in epsilons of the claim's accountant, which has no lower bound for this event"


class ScoreLog:
    """The scores of canaries so far.

    >>> log = ScoreLog(torch.tensor([True, False]), Relation.ADD_REMOVE, sampling_rate=1.0)
    >>> log.add(torch.tensor([1.0, 0.0], dtype=torch.float64), noise=1.0)
    >>> log.inside.tolist(), log.outside.tolist()
    ([0.5], [-0.5])
    """

    def __init__(self, present: Tensor, relation: Relation, *, sampling_rate: float) -> None:
        self._present, self._relation, self._rate = present, relation, sampling_rate
        self._scores = torch.zeros(len(present), dtype=torch.float64)

    @property
    def inside(self) -> Numbers:
        """The scores of canaries that are in."""
        return self._scores[self._present].numpy()

    @property
    def outside(self) -> Numbers:
        """The scores of canaries that are out."""
        return self._scores[~self._present].numpy()

    def add(self, seen: Tensor, *, noise: float, counted: Tensor | None = None) -> None:
        """Add a step: what was released along each direction; `counted` limits it to some canaries."""
        evidence = self._evidence(seen, noise)
        self._scores += evidence if counted is None else evidence * counted

    def _evidence(self, seen: Tensor, noise: float) -> Tensor:
        """Return log likelihood ratios of in over out, for contributions in multiples of the bound."""
        there = _log_ratio(seen, noise, self._rate)
        return there - _log_ratio(-seen, noise, self._rate) if self._relation.replaces else there

    def ranked(self, claim: Guarantee, event: Callable[[float], DpEvent], confidence: float) -> LowerBound:
        """Return the bound that the ranks of all scores give."""
        area = one_run.ranks(self.inside, self.outside, confidence=confidence)
        shown = claim_limits.bound_of_area(area, event, delta=claim.delta, relation=claim.relation)
        return LowerBound(
            epsilon=shown.epsilon,
            delta=claim.delta,
            confidence=confidence,
            attack=_ATTACK if shown.certified else f"{_ATTACK}, {_UNCERTIFIED}",
            trials=len(self._present),
        )

    def highest(
        self, claim: Guarantee, event: Callable[[float], DpEvent], confidence: float
    ) -> LowerBound | None:
        """Choose a threshold by half of the canaries, and count those above it among the others."""
        found = one_run.highest(self._scores.numpy(), self._present.numpy())
        if found is None:
            return None
        shown = claim_limits.bound_of_tail(
            found, event, delta=claim.delta, relation=claim.relation, confidence=confidence
        )
        return LowerBound(
            epsilon=shown.epsilon,
            delta=claim.delta,
            confidence=confidence,
            attack=_HIGHEST if shown.certified else f"{_HIGHEST}, {_UNCERTIFIED}",
            trials=found.positives + found.negatives,
        )

    def state_dict(self) -> Tensor:
        """Return the scores."""
        return self._scores.clone()

    def load_state_dict(self, state: Tensor) -> None:
        """Go on from what `state_dict` returned."""
        self._scores = state.clone()


def least_canaries(confidence: float) -> int:
    """Return the least number of canaries on each side with which an audit can show anything."""
    return one_run.least_canaries(1 - RANKS_SHARE * (1 - confidence))


def require_enough(count: int, confidence: float) -> None:
    """Raise unless so many canaries can show something."""
    _check.count(count=count)
    _check.probability(confidence=confidence)
    least = 4 * least_canaries(confidence)
    if count < least:
        raise InvalidParameterError(
            f"{count} canaries can show nothing at confidence {confidence:g}: use at least {least}, better "
            "1000."
        )


def halves(count: int, least: int, generator: Generator | None) -> Tensor:
    """Return who is in: by fair coins, thrown again while fewer than `least` are in or out.

    With 4 * `least` canaries, the fewest there may be, that happens about once in 100 times.
    """
    source, attempt = resolve(generator), 0
    present = _coins(count, source.fork("canaries", attempt))
    while not least <= int(present.sum()) <= count - least:
        attempt += 1
        present = _coins(count, source.fork("canaries", attempt))
    return present


def _coins(count: int, generator: Generator) -> Tensor:
    return torch.from_numpy((words(count, generator) >> 63).astype(bool))


def _log_ratio(seen: Tensor, noise: float, rate: float) -> Tensor:
    """Return log(1 - rate + rate exp((seen - 1/2) / noise^2)), of a unit that is in with chance `rate`."""
    present = (seen - 0.5) / noise**2
    if rate == 1.0:
        return present
    return torch.logaddexp(present + math.log(rate), torch.tensor(math.log1p(-rate), dtype=seen.dtype))
