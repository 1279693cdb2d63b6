# SPDX-License-Identifier: Apache-2.0
"""Composition of (epsilon, delta) statements: basic, parallel, advanced, optimal; and amplification.

Sums are plain float64; `optimal` errs upwards by about 1e-9 relative in delta.

Guarantee  Each function returns an (epsilon, delta) that the whole composition has when each part has its
           own. Parts may be chosen after seeing the answers of earlier ones, as long as their epsilons and
           deltas were fixed in advance.
Neighbors  A part's own epsilon is taken under the relation given. Poisson sampling amplifies add-remove
           statements, and zero-out statements on sums, where a zero is as good as no unit; sampling of fixed
           size amplifies replace-one statements.
Source     Basic: Dwork and Roth 2014, Theorem 3.16. Parallel: McSherry 2009. Advanced: Dwork, Rothblum and
           Vadhan 2010, in the form of Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, Theorems 3.4 and 3.5,
           which is sharper than the original (mean loss epsilon tanh(epsilon / 2) in place of
           epsilon (e^epsilon - 1)). Optimal: the same paper, Theorem 3.3. Amplification: Balle, Barthe and
           Gaboardi 2018, arXiv:1807.01647, Theorems 8 (Poisson) and 9 (fixed size).
Not here   Gaussian noise, which has no single (epsilon, delta): `accounting.gaussian`, `rdp` and `pld`.
"""

import math
from functools import singledispatch
from typing import NoReturn, cast

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import UnsupportedEventError

__all__ = [
    "advanced",
    "advanced_epsilon",
    "amplify_fixed_size",
    "amplify_poisson",
    "basic",
    "basic_epsilon",
    "optimal",
    "optimal_epsilon",
]

Statement = tuple[float, float]  # (epsilon, delta)

_SLACK = 1e-9  # relative, on delta: covers the rounding of log-factorials up to a million parts
_UNCHANGED = ((0.0, 0.0), (math.inf, 0.0))  # sampling neither improves on nothing nor on no privacy


@in_floats
def basic(event: DpEvent, relation: Relation) -> Statement:
    """Return the sum of the parts' epsilons and deltas.

    >>> basic(events.compose(events.PureDpEvent(0.5), dp.LaplaceDpEvent(2.0)), Relation.ADD_REMOVE)
    (1.0, 0.0)
    """
    parts = _statements(event, relation)
    epsilon = math.fsum(n * e for (e, _), n in parts)
    return epsilon, min(1.0, math.fsum(n * d for (_, d), n in parts))


@in_floats
def basic_epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the epsilon of basic composition, infinite if the parts' deltas exceed `delta`."""
    _check.in_range(0, 1, delta=delta)
    epsilon, spent = basic(event, relation)
    return epsilon if spent <= delta else math.inf


@in_floats
def advanced(epsilon: float, delta: float, count: int, slack: float) -> Statement:
    """Return what `count` uses of an (epsilon, delta)-DP mechanism have together, with `slack` more delta.

    epsilon sqrt(2 k ln(1 / slack)) + k epsilon (e^epsilon - 1) / (e^epsilon + 1), and k delta + slack. It
    follows from Hoeffding's inequality for losses in [-epsilon, epsilon] with mean epsilon tanh(epsilon / 2).
    For few uses of a large epsilon it exceeds k epsilon: `advanced_epsilon` takes the smaller.

    >>> epsilon, delta = advanced(0.1, 0.0, 1000, slack=1e-6)
    >>> round(epsilon, 3), delta
    (21.618, 1e-06)
    """
    _check.non_negative(epsilon=epsilon)
    _check.in_range(0, 1, delta=delta)
    _check.count(count=count)
    _check.probability(slack=slack)
    return _advanced([((epsilon, delta), count)], slack), min(1.0, count * delta + slack)


@in_floats
def advanced_epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the epsilon of advanced composition over different parts, never above basic composition's."""
    _check.probability(delta=delta)
    parts = _statements(event, relation)
    slack = delta - basic(event, relation)[1]
    by_sum = basic_epsilon(event, delta=delta, relation=relation)
    return min(by_sum, _advanced(parts, slack)) if slack > 0 else by_sum


@in_floats
def optimal(epsilon: float, delta: float, count: int, *, target_delta: float) -> float:
    """Return the least epsilon that `count` uses of any (epsilon, delta)-DP mechanism have at `target_delta`.

    No smaller number is true for all mechanisms: this is the privacy curve of repeated randomized response.

    >>> round(optimal(0.1, 0.0, 1000, target_delta=1e-6), 3)
    19.345
    """
    _check.non_negative(epsilon=epsilon)
    _check.in_range(0, 1, delta=delta)
    _check.count(count=count)
    _check.in_range(0, 1, target_delta=target_delta)
    if delta == 1:
        return math.inf if target_delta < 1 else 0.0
    return _optimal(epsilon, count, count * math.log1p(-delta), target_delta)


@in_floats
def optimal_epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the optimal composition of parts that all have one epsilon (their deltas may differ)."""
    _check.in_range(0, 1, delta=delta)
    parts = _statements(event, relation)
    epsilons = {e for (e, _), _ in parts}
    if len(epsilons) > 1:
        raise UnsupportedEventError(
            f"optimal composition is computed for parts of one epsilon, but this event has {len(epsilons)} "
            "different ones (the general case is #P-hard). Use advanced_epsilon, or the PLD accountant."
        )
    if not parts or epsilons == {math.inf}:
        return basic_epsilon(event, delta=delta, relation=relation)
    log_kept = math.fsum(n * math.log1p(-d) for (_, d), n in parts)
    return _optimal(epsilons.pop(), sum(n for _, n in parts), log_kept, delta)


@in_floats
def amplify_poisson(epsilon: float, delta: float, sampling_rate: float) -> Statement:
    """Return what an add-remove statement becomes when each unit is in with chance `sampling_rate`.

    >>> epsilon, delta = amplify_poisson(1.0, 1e-5, sampling_rate=0.01)
    >>> round(epsilon, 6), round(delta, 12)
    (0.017037, 1e-07)
    """
    return _amplify(epsilon, delta, sampling_rate)


@in_floats
def amplify_fixed_size(epsilon: float, delta: float, source_size: int, sample_size: int) -> Statement:
    """Return what a replace-one statement becomes on a uniform sample of `sample_size` of `source_size`."""
    _check.count(source_size=source_size, sample_size=sample_size)
    return _amplify(epsilon, delta, sample_size / source_size)


def _amplify(epsilon: float, delta: float, rate: float) -> Statement:
    _check.non_negative(epsilon=epsilon)
    _check.in_range(0, 1, delta=delta)
    _check.rate(sampling_rate=rate)
    if rate == 1:
        return epsilon, delta
    if epsilon < 1:
        return math.log1p(rate * math.expm1(epsilon)), rate * delta
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + epsilon)), rate * delta


# --- the (epsilon, delta) of one part --------------------------------------------------------------------


def _statements(event: DpEvent, relation: Relation) -> list[tuple[Statement, int]]:
    return [(_statement(leaf, relation), n) for leaf, n in events.leaves(event).items()]


@singledispatch
def _statement(event: DpEvent, relation: Relation) -> Statement:
    raise UnsupportedEventError(
        f"{type(event).__name__} has no (epsilon, delta) of its own to compose under {relation.value}. "
        "Use the RDP or PLD accountant, or state it as an ApproximateDpEvent with a proven (epsilon, delta)."
    )


@_statement.register
def _(event: dp.NonPrivateDpEvent, relation: Relation) -> Statement:
    return math.inf, 0.0


@_statement.register
def _(event: dp.LaplaceDpEvent, relation: Relation) -> Statement:
    return relation.diameter / event.noise_multiplier, 0.0


@_statement.register
def _(event: dp.DiscreteLaplaceDpEvent, relation: Relation) -> Statement:
    return relation.diameter * event.sensitivity * event.noise_parameter, 0.0


@_statement.register
def _(event: dp.RandomizedResponseDpEvent, relation: Relation) -> Statement:
    require_replacement(event, relation)
    return math.log1p((1 - event.noise_parameter) * event.num_buckets / event.noise_parameter), 0.0


@_statement.register(events.PureDpEvent)
@_statement.register(events.ExponentialDpEvent)
@_statement.register(events.SparseVectorDpEvent)
def _(
    event: events.PureDpEvent | events.ExponentialDpEvent | events.SparseVectorDpEvent, relation: Relation
) -> Statement:
    return event.epsilon, 0.0


@_statement.register
def _(event: events.ApproximateDpEvent, relation: Relation) -> Statement:
    return event.epsilon, event.delta


@_statement.register
def _(event: events.ParallelDpEvent, relation: Relation) -> Statement:
    require_disjoint_parts(event, relation)
    parts = [basic(part, relation) for part in event.events]
    return max((e for e, _ in parts), default=0.0), max((d for _, d in parts), default=0.0)


@_statement.register
def _(event: events.SelectionDpEvent, relation: Relation) -> Statement:
    """(2 + shape) epsilon for pure parts: Papernot and Steinke 2022, Corollary 3; geometric: 3 epsilon."""
    parts = [basic(part, relation) for part in event.events]
    if any(delta > 0 for _, delta in parts):
        raise UnsupportedEventError(
            "a selection among runs that have a delta of their own is not priced: use parts with pure or "
            "Renyi costs."
        )
    return (2 + max(0.0, event.shape)) * max(epsilon for epsilon, _ in parts), 0.0


@_statement.register
def _(event: dp.PoissonSampledDpEvent, relation: Relation) -> Statement:
    inner = basic(event.event, relation)
    if event.sampling_probability == 1 or inner in _UNCHANGED:
        return inner
    # The proof compares the unit with no unit. A zero in its place may still be counted, except in a sum.
    if relation.replaces or (relation is Relation.ZERO_OUT and not _is_noisy_sum(event.event)):
        _refuse_amplification(event, relation)
    return amplify_poisson(*inner, event.sampling_probability)


@_statement.register
def _(event: dp.SampledWithoutReplacementDpEvent, relation: Relation) -> Statement:
    inner = basic(event.event, relation)
    if event.sample_size == event.source_dataset_size or inner in _UNCHANGED:
        return inner
    # The proof compares the sample that has the unit with one that has another unit in its place. A promise
    # about labels alone says nothing of that, except for noise on sums, which any unit moves alike.
    if not (relation is Relation.REPLACE_ONE or (relation.replaces and _is_noisy_sum(event.event))):
        _refuse_amplification(event, relation)
    return amplify_fixed_size(*inner, event.source_dataset_size, event.sample_size)


def require_replacement(event: DpEvent, relation: Relation) -> None:
    """Refuse randomized response if a unit may be absent: a missing report reveals its absence."""
    if not relation.replaces:
        raise UnsupportedEventError(
            f"{type(event).__name__} cannot be priced under {relation.value}: a unit that is absent sends no "
            "report, which no noise hides. State the account for replace-one or replace-label neighbors."
        )


def require_disjoint_parts(event: DpEvent, relation: Relation) -> None:
    """Refuse parallel composition if one neighbor may touch two parts."""
    if relation is Relation.REPLACE_ONE:
        raise UnsupportedEventError(
            f"{type(event).__name__} cannot be priced under replace-one: a replaced unit may leave one part "
            "and enter another. Compose the parts one after the other, or use add-remove neighbors."
        )


def _is_noisy_sum(event: DpEvent) -> bool:
    return all(isinstance(e, dp.LaplaceDpEvent | dp.DiscreteLaplaceDpEvent) for e in events.leaves(event))


def _refuse_amplification(event: DpEvent, relation: Relation) -> NoReturn:
    raise UnsupportedEventError(
        f"no theorem amplifies {event} under {relation.value}. Poisson sampling amplifies add-remove "
        "statements (zero-out for noise on sums), fixed-size sampling replace-one statements. Use one of "
        "these, or charge the event inside without its sampling, which is always sound."
    )


# --- the formulas ----------------------------------------------------------------------------------------


def _advanced(parts: list[tuple[Statement, int]], slack: float) -> float:
    mean = math.fsum(n * e * math.tanh(e / 2) for (e, _), n in parts)
    return mean + math.sqrt(2 * math.log(1 / slack) * math.fsum(n * e * e for (e, _), n in parts))


def _optimal(epsilon: float, count: int, log_kept: float, target_delta: float) -> float:
    """Invert delta = 1 - kept (1 - d(epsilon)), d being the privacy curve of `count` randomized responses."""
    if target_delta == 1:
        return 0.0
    allowed = -math.expm1(math.log1p(-target_delta) - log_kept) * (1 - _SLACK)
    if not allowed >= 0:
        return math.inf
    lies = np.arange((count + 1) // 2)  # positive losses only: (count - 2 lies) epsilon
    losses = np.asarray((count - 2 * lies) * epsilon, dtype=np.float64)
    log_p = (
        gammaln(count + 1) - gammaln(lies + 1) - gammaln(count - lies + 1)
        - lies * epsilon - count * np.log1p(np.exp(-epsilon))
    )  # fmt: skip
    return _epsilon_of_losses(losses, log_p, allowed, rounding=1e-15 * float(1 + gammaln(count + 1)))


def _log_sum(logs: npt.NDArray[np.float64]) -> float:
    return float(cast(float, logsumexp(logs)))


def _epsilon_of_losses(
    losses: npt.NDArray[np.float64], log_p: npt.NDArray[np.float64], delta: float, rounding: float
) -> float:
    """Return the epsilon at which sum_i p_i (1 - e^{epsilon - loss_i})_+ equals delta; losses decrease."""

    def log_delta(epsilon: float, size: int) -> float:
        with np.errstate(divide="ignore"):
            gaps = np.log(-np.expm1(np.minimum(0.0, epsilon - losses[:size])))
        return _log_sum(log_p[:size] + gaps)

    if delta == 0 or losses[0] == 0:
        return float(losses[0])
    target = math.log(delta)
    if log_delta(0.0, losses.size) <= target:
        return 0.0
    low, high = 0, losses.size  # d(losses[low]) <= delta, and delta < d at the next corner or at 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log_delta(float(losses[middle]), middle) <= target else (low, middle)
    # Between two corners the curve is P - e^epsilon Q, with P and Q the mass of the losses above.
    log_mass_p = _log_sum(log_p[: low + 1])
    log_mass_q = _log_sum(log_p[: low + 1] - losses[: low + 1])
    remainder = -math.expm1(target - log_mass_p)
    if not remainder > 0:
        return float(losses[low])
    inside = log_mass_p - log_mass_q + math.log(remainder) + rounding
    return min(max(0.0, inside), float(losses[low]))
