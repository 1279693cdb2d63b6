# SPDX-License-Identifier: Apache-2.0
"""The keys that enough units share, found by a noisy threshold.

Guarantee  Each key is released or not by its own mechanism, which is (e, d)-DP if one unit is added to the
           key or removed from it. The number of its units gets noise X on -m ... m, with probability
           proportional to exp(-e |x|), and the key is released if the sum is above m. A key without units is
           never released; a key of one unit is released with P(X = m) = d; a key of 2m + 1 or more units
           always is. A unit has at most `contribution_bound` different keys that count, so it changes that
           many of these mechanisms, and twice as many if it is replaced. Their composition is charged.
           Proof of (e, d): between n and n + 1 units, P(n + X > m) changes by a factor of at most exp(e)
           where both sums can be reached, and the one value of X that only the larger sum reaches has
           probability d. The same holds for the key not being released.
           No mechanism that is (e, d)-DP for each key releases keys more often. m is the smallest number
           whose d is at most the requested one; d itself is charged. The noise is drawn exactly: discrete
           Laplace noise, drawn again if it is beyond m.
Edge cases Units are counted in the engine and counts are streamed, so only the released keys must fit into
           memory. Keys are sorted, as the order in which an engine finds them may reveal how large they are.
           Texts are different keys if they differ at all (`collations`). Values that Python cannot hold, such
           as a date of the year 20000, are not keys, however many units have them (`engine_values`). Nor are
           whole numbers of 2^63 or more, and texts with the character NUL: no query can name them.
Source     Desfontaines, Voss, Gipson, Mandayam 2020, arXiv:2006.03684.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting import composition
from sfumato.accounting.calibrate import search
from sfumato.accounting.events import ApproximateDpEvent, DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.random import Generator
from sfumato.statistics.arrays import Integers
from sfumato.statistics.columns.table_columns import column
from sfumato.statistics.contributions.owned_rows import Expression, OwnedRows, described
from sfumato.statistics.query import Answer
from sfumato.statistics.release import Parts, key_labels
from sfumato.statistics.sources.engine_values import comparable, writable

__all__ = ["KeyDiscovery", "KeyThreshold", "Keyed", "key_columns"]

_DIGITS = 60  # decimal digits in the computation of m
_DEAREST = 700.0  # an epsilon beyond which exp overflows float64


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyThreshold:
    """The mechanism for one key, which is released if enough units have it; (epsilon, at most delta).

    >>> KeyThreshold(epsilon=1.0, delta=1e-5).threshold
    11
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.in_range(0, _DEAREST, epsilon=self.epsilon)
        _check.probability(delta=self.delta)
        inputs.settle(self, "epsilon", "delta")

    @property
    def threshold(self) -> int:
        """The largest number of units for which a key is released with probability below one half; m."""
        return _threshold(self.epsilon, self.delta)

    def event(self) -> DpEvent:
        """Return the event that one key is charged with."""
        return ApproximateDpEvent(self.epsilon, _edge(self.epsilon, self.threshold))

    def release(self, counts: Integers, *, generator: Generator | None = None) -> npt.NDArray[np.bool_]:
        """Return which keys are released, given the number of units of each."""
        most = self.threshold
        noise = self._drawn(len(counts), generator)
        while (beyond := np.flatnonzero(np.abs(noise) > most)).size:
            noise[beyond] = self._drawn(beyond.size, generator)
        return counts + noise > most

    def _drawn(self, count: int, generator: Generator | None) -> Integers:
        return exact.integers(count, power=1, spread=1 / Fraction(self.epsilon), generator=generator)


def _edge(epsilon: float, most: int) -> float:
    """Return P(X = m), rounded up: r^m (1 - r) / (1 + r - 2 r^(m + 1)) with r = exp(-epsilon)."""
    with localcontext() as context:
        context.prec = _DIGITS
        ratio = (-Decimal(epsilon)).exp()
        chance = ratio**most * (1 - ratio) / (1 + ratio - 2 * ratio ** (most + 1))
        near = float(chance)
        return near if Decimal(near) >= chance else math.nextafter(near, 1.0)


@lru_cache(maxsize=256)
def _threshold(epsilon: float, delta: float) -> int:
    """Return the smallest m >= 1 with P(X = m) <= delta, by its closed form and a search from below."""
    gain = math.expm1(epsilon)
    closed = (math.log(gain + 2 * delta) - math.log(math.exp(epsilon) + 1) - math.log(delta)) / epsilon
    most = max(1, math.ceil(closed) - 2)
    while _edge(epsilon, most) > delta:
        most += 1
    return most


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyDiscovery:
    """The keys of columns; (epsilon, delta) for all of them together."""

    columns: tuple[str, ...]
    epsilon: float
    delta: float
    relation: Relation = Relation.ADD_REMOVE
    contribution_bound: int = 1

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.delta(delta=self.delta)
        _check.count(contribution_bound=self.contribution_bound)
        inputs.check_relation(self.relation)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"keys of {', '.join(self.columns)}"

    @property
    def touched(self) -> int:
        """The largest number of keys that differ between neighbors."""
        return self.contribution_bound * self.relation.diameter

    def mechanism(self) -> KeyThreshold:
        """Return the mechanism for each key."""
        return _per_key(self.epsilon, self.delta, self.touched)

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return compose(*[self.mechanism().event()] * self.touched)

    def answer(self, data: "Keyed", *, generator: Generator | None) -> Answer[list[Any]]:
        """Count the units of each key, and return the keys that pass, sorted."""
        mechanism, named = self.mechanism(), list[Any]()
        for batch in data.owned.batches(data.counts()):
            kept = mechanism.release(batch.column("units").to_numpy(), generator=generator)
            named += _labels(batch, len(self.columns), np.flatnonzero(kept))
        note = (
            f"a key shared by {mechanism.threshold + 1} {data.privacy_unit}(s) is listed with a probability "
            "above 50%"
        )
        found = sorted(named)
        keys = [(key,) for key in found] if len(self.columns) == 1 else found
        parts = Parts(labels=key_labels(self.columns, keys), numbers=None)
        return Answer(value=found, notes=(note,), parts=parts)

    def plan(self, data: "Keyed") -> str:
        """Return the SQL that the engine would run, and how keys are selected."""
        most = self.mechanism().threshold
        return f"{data.owned.sql(data.counts())}\nlist keys with units + noise on -{most}..{most} > {most}"


@lru_cache(maxsize=256)
def _per_key(epsilon: float, delta: float, touched: int) -> KeyThreshold:
    """Return the mechanism for each key, so that `touched` keys cost (epsilon, delta) together.

    Of two ways the one with the lower threshold is used. Costs add up; or deltas add up to half, and the
    other half pays for the optimal composition of the epsilons (Kairouz, Oh, Viswanath 2015), which is better
    for many keys.
    """
    below = 1 - 2.0**-40  # so that rounded sums stay below the requested budget
    plain = KeyThreshold(epsilon=min(epsilon, _DEAREST) / touched * below, delta=delta / touched * below)
    if touched == 1:
        return KeyThreshold(epsilon=min(epsilon, _DEAREST), delta=delta)
    share = delta / (2 * touched)
    found = search(
        lambda each: composition.optimal(each, share, touched, target_delta=delta),
        epsilon=epsilon,
        bracket=(plain.epsilon / 4, plain.epsilon * touched),
        cost_rises=True,
    )
    composed = KeyThreshold(epsilon=min(found, _DEAREST) * below, delta=share)
    return composed if composed.threshold < plain.threshold else plain


@dataclass(frozen=True, slots=True, repr=False)
class Keyed:
    """Rows, and the columns whose keys are released."""

    owned: OwnedRows
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        self.owned.require_computable(key_columns(self.owned, self.columns), *self.columns)

    def __repr__(self) -> str:
        return described(self, *self.columns)

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most keys of one unit that count."""
        return self.owned.contribution_bound

    @property
    def counted(self) -> str:
        """The unit of the contribution bound: a unit counts once for a key, however many rows it has."""
        return "key"

    def counts(self) -> Expression:
        """Return the query for the number of units of each key. A unit counts once for at most k keys."""
        rows = self.owned.kept(key_columns(self.owned, self.columns), distinct=True)
        names = [name for name in rows.columns if name.startswith("key")]
        return rows.group_by(names).aggregate(units=rows.count()).order_by(names)


def key_columns(owned: OwnedRows, names: Sequence[str]) -> dict[str, Expression]:
    """Return columns that rows can be grouped by, as key0, key1, ..."""
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError("pass one or more columns to group by, each once, as in 'city', 'sex'.")
    keys = [_key(owned, name) for name in names]
    for name, key in zip(names, keys, strict=True):
        kind = key.type()
        if not (kind.is_string() or kind.is_integer() or kind.is_boolean() or kind.is_date()):
            raise InvalidParameterError(
                f"column {name!r} has type {kind}, but rows are grouped by text, whole numbers, true or "
                "false, or dates. Convert it to bins first, with table.mutate(...)."
            )
    engine = owned.engine.name
    compared = [comparable(key, engine=engine) for key in keys]
    return {f"key{i}": writable(key, engine=engine) for i, key in enumerate(compared)}


def _key(owned: OwnedRows, name: str) -> Expression:
    """Return a column; only its whole numbers if a missing value may have made them floats."""
    value = column(owned, name)
    if not (owned.floats_may_be_whole and value.type().is_floating()):
        return value
    whole = value.try_cast("int64")
    return (whole.cast("float64") == value).ifelse(whole, None)


def _labels(batch: Any, width: int, places: npt.NDArray[np.intp]) -> list[Any]:
    taken = batch.take(places)
    parts = [taken.column(f"key{i}").to_pylist() for i in range(width)]
    return parts[0] if width == 1 else list(zip(*parts, strict=True))
