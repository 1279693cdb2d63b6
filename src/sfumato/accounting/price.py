# SPDX-License-Identifier: Apache-2.0
"""The cost of an event, from the tightest accountant that can price it.

Compositions of Gaussians have a closed form. Other events are priced by their privacy loss distribution,
which is tight. An event without a dominating pair is priced by the smallest of the other accountants. If its
pair is not attained, as that of an exponential mechanism, or epsilon is very large, the smallest of all
counts.

Guarantee  The event, run as a plan fixed beforehand, is (`upper`, delta)-DP under the relation. If `lower`
           is above 0, the event is not (e, delta)-DP for any e below it, however it is accounted.
           A plan is fixed if each event in it was chosen before any of its results was seen. Releases that
           were chosen one after the other belong in a ledger, whose filter is valid for them.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from sfumato import _check, _notebook
from sfumato.accounting import composition, events, gaussian, integer_noise, pld, rdp, zcdp
from sfumato.accounting.events import DpEvent, ParallelDpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.errors import InvalidParameterError, UnsupportedEventError

__all__ = ["Accountant", "Price", "price", "quick_epsilon"]


class Accountant(enum.Enum):
    """The methods that price an event, from the loosest to the tightest.

    Attributes:
        BASIC: Epsilons and deltas are added.
        ADVANCED: Advanced composition.
        OPTIMAL: Optimal composition of (epsilon, delta) statements.
        ZCDP: Zero-concentrated differential privacy.
        RDP: Renyi differential privacy.
        PLD: Privacy loss distributions.
        GAUSSIAN: The closed form, for Gaussian noise alone.
    """

    BASIC = "basic"
    ADVANCED = "advanced"
    OPTIMAL = "optimal"
    ZCDP = "zcdp"
    RDP = "rdp"
    PLD = "pld"
    GAUSSIAN = "gaussian"

    @property
    def theorem(self) -> str:
        """The theorem that the cost rests on."""
        return _THEOREMS[self]

    @classmethod
    def parse(cls, value: "str | Accountant") -> "Accountant":
        """Return the accountant that has a name, as command-line flags spell it.

        Args:
            value: The name, such as "rdp", or an accountant, which is returned as it is.

        Returns:
            The accountant.

        Raises:
            InvalidParameterError: If no accountant has this name.

        >>> Accountant.parse("rdp")
        <Accountant.RDP: 'rdp'>
        """
        names = [a.value for a in cls]
        if not (isinstance(value, cls) or value in names):
            raise InvalidParameterError(f"unknown accountant {value!r}. Use one of: {', '.join(names)}.")
        return cls(value)


_THEOREMS = {
    Accountant.BASIC: "basic composition (Dwork and Roth 2014, Theorem 3.16)",
    Accountant.ADVANCED: "advanced composition (Dwork, Rothblum, Vadhan 2010; Kairouz et al. 2015)",
    Accountant.OPTIMAL: "optimal composition (Kairouz, Oh, Viswanath 2015, Theorem 3.3)",
    Accountant.ZCDP: "zero-concentrated DP (Bun and Steinke 2016; Canonne, Kamath, Steinke 2020)",
    Accountant.RDP: "Renyi DP (Mironov 2017; conversion of Canonne, Kamath, Steinke 2020)",
    Accountant.PLD: "privacy losses of dominating pairs (Zhu et al. 2022; Doroshenko et al. 2022)",
    Accountant.GAUSSIAN: "exact profile of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """The cost of an event at a delta, as a certified interval; `epsilon` is its upper end.

    Attributes:
        lower: Below this epsilon the event is not private at this delta; 0 if no such bound is known.
        upper: The event is (upper, delta)-differentially private.
        delta: The delta.
        relation: Which data sets are neighbors.
        accountant: Which accountant gave the upper end.
        lemma: What the cost rests on beside the accountant's theorem; empty if nothing.
    """

    lower: float
    upper: float
    delta: float
    relation: Relation
    accountant: Accountant
    lemma: str = ""

    @property
    def epsilon(self) -> float:
        """The epsilon to report: the upper bound."""
        return self.upper

    @property
    def theorem(self) -> str:
        """The theorem that the cost rests on."""
        return f"{self.accountant.theorem}; {self.lemma}" if self.lemma else self.accountant.theorem

    def guarantee(self, privacy_unit: str = "example") -> Guarantee:
        """Return the guarantee at this price.

        Args:
            privacy_unit: Who is protected.

        Returns:
            The guarantee, with the upper end as its epsilon.
        """
        return Guarantee(
            epsilon=self.upper, delta=self.delta, relation=self.relation, privacy_unit=privacy_unit
        )

    def shown(self) -> dict[str, str]:
        """Return the price as people read it: costs are rounded up, the lower end down.

        Returns:
            The facts, by name.
        """
        return {
            "epsilon": f"at most {round_up(self.upper):g}, at least {-round_up(-self.lower):g}",
            "delta": f"{round_up(self.delta):g}",
            "neighbors": self.relation.value,
            "accountant": self.accountant.value,
            "theorem": self.theorem,
        }

    def _repr_html_(self) -> str:
        return _notebook.panel("Price", _notebook.facts(self.shown()))

    def __str__(self) -> str:
        return f"epsilon {round_up(self.upper):g} at delta {self.delta:g} ({self.accountant.value})"


@in_floats
def price(
    event: DpEvent,
    *,
    delta: float,
    relation: Relation = Relation.ADD_REMOVE,
    accountant: Accountant | None = None,
) -> Price:
    """Return what an event costs at a delta.

    Args:
        event: The event, run as a plan fixed beforehand.
        delta: The delta of the guarantee, above 0 and below 1.
        relation: Which data sets are neighbors.
        accountant: Which accountant to use. None takes the tightest.

    Returns:
        The price.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the event is malformed.
        UnsupportedEventError: If no accountant can price the event under this relation.

    >>> print(price(events.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60000, steps=14063), delta=1e-5))
    epsilon 2.382 at delta 1e-05 (pld)
    """
    _check.probability(delta=delta)
    relation = Relation.parse(relation)
    events.check(event)
    if accountant is not None:
        accountant = Accountant.parse(accountant)
        lower, upper = _PRICERS[accountant](event, delta, relation)
    else:
        lower, upper, accountant = _tightest(event, delta, relation, pld.interval)
    return Price(
        lower=lower, upper=upper, delta=delta, relation=relation, accountant=accountant, lemma=_lemma(event)
    )


def _lemma(event: DpEvent) -> str:
    """Return the lemma by which integer noise is priced as Gaussian noise, if there is such noise."""
    return integer_noise.LEMMA if any(isinstance(e, integer_noise.KINDS) for e in events.walk(event)) else ""


@in_floats
def quick_epsilon(event: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return an upper bound on epsilon, good to about 1 in 10,000, for searches that price many events."""

    def upper_only(event: DpEvent, *, delta: float, relation: Relation) -> tuple[float, float]:
        return 0.0, pld.upper_epsilon(event, delta=delta, relation=relation)

    return _tightest(event, delta, relation, upper_only)[1]


COARSE = 1000.0  # an epsilon without any protection, at which losses are too large for a fine grid


def _tightest(
    event: DpEvent, delta: float, relation: Relation, by_loss: Callable[..., tuple[float, float]]
) -> tuple[float, float, Accountant]:
    if integer_noise.joint_shift(events.leaves(event)) is not None:
        return *_by_gaussian(event, delta, relation), Accountant.GAUSSIAN
    parts = _parallel_parts(event, relation)
    if parts:
        return max((_tightest(part, delta, relation, by_loss) for part in parts), key=lambda found: found[1])
    try:
        lower, upper = by_loss(event, delta=delta, relation=relation)
    except UnsupportedEventError:
        return _least_of_the_rest(event, delta, relation)
    if upper < COARSE and pld.is_tight(event, relation):
        return lower, upper, Accountant.PLD
    try:
        _, other, accountant = _least_of_the_rest(event, delta, relation)
    except UnsupportedEventError:
        return lower, upper, Accountant.PLD
    return (lower, upper, Accountant.PLD) if upper <= other else (min(lower, other), other, accountant)


def _parallel_parts(event: DpEvent, relation: Relation) -> tuple[DpEvent, ...]:
    """Return the parts of an event that is one parallel composition: the dearest one is its price."""
    counted = events.leaves(event)
    only = next(iter(counted)) if list(counted.values()) == [1] else None
    if not isinstance(only, ParallelDpEvent) or relation is Relation.REPLACE_ONE:
        return ()
    return tuple(only.events)


def _least_of_the_rest(event: DpEvent, delta: float, relation: Relation) -> tuple[float, float, Accountant]:
    found: list[tuple[float, Accountant]] = []
    refusals: list[str] = []
    for accountant in (Accountant.RDP, Accountant.ZCDP, Accountant.OPTIMAL, Accountant.BASIC):
        try:
            found.append((_PRICERS[accountant](event, delta, relation)[1], accountant))
        except (UnsupportedEventError, InvalidParameterError) as refusal:
            refusals.append(str(refusal))
    if not found:
        raise UnsupportedEventError(
            f"no accountant can price this event under {relation.value} neighbors. " + refusals[0]
        )
    upper, accountant = min(found, key=lambda pair: pair[0])
    return 0.0, upper, accountant


def _by_gaussian(event: DpEvent, delta: float, relation: Relation) -> tuple[float, float]:
    scale = events.gaussian_scale(event)
    if scale is None:
        return 0.0, _bounded_by_gaussian(event, delta, relation)
    mu = relation.diameter / scale
    epsilon = gaussian.epsilon(mu, delta)
    # The closed form is rounded up; at a slightly larger delta, and a little less, it is a lower bound.
    more = delta * (1 + 1e-6)
    return (gaussian.epsilon(mu, more) * (1 - 1e-8) if more < 1 else 0.0), epsilon


def _bounded_by_gaussian(event: DpEvent, delta: float, relation: Relation) -> float:
    """Return the epsilon of a Gaussian that dominates integer noise (`accounting.integer_noise`)."""
    mu = integer_noise.joint_shift(events.leaves(event))
    if mu is None:
        raise UnsupportedEventError(
            "the Gaussian closed form prices compositions of Gaussian events only, and of the integer noise "
            "that a Gaussian dominates. Use PLD."
        )
    return math.inf if mu == math.inf else gaussian.epsilon(relation.diameter * mu, delta)


def _upper(accountant: Callable[..., float]) -> Callable[[DpEvent, float, Relation], tuple[float, float]]:
    def priced(event: DpEvent, delta: float, relation: Relation) -> tuple[float, float]:
        epsilon = accountant(event, delta=delta, relation=relation)
        return (0.0 if events.is_private(event) else math.inf), epsilon

    return priced


_PRICERS: dict[Accountant, Callable[[DpEvent, float, Relation], tuple[float, float]]] = {
    Accountant.BASIC: _upper(composition.basic_epsilon),
    Accountant.ADVANCED: _upper(composition.advanced_epsilon),
    Accountant.OPTIMAL: _upper(composition.optimal_epsilon),
    Accountant.ZCDP: _upper(zcdp.epsilon),
    Accountant.RDP: _upper(rdp.epsilon),
    Accountant.PLD: lambda event, delta, relation: pld.interval(event, delta=delta, relation=relation),
    Accountant.GAUSSIAN: _by_gaussian,
}
