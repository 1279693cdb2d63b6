# SPDX-License-Identifier: Apache-2.0
"""Guarantees: epsilon, delta, relation and privacy unit, always together.

`str()` rounds epsilon up in the last digit: what is printed is never below what was computed.

Guarantee  For every set of outputs and every pair of data sets that are neighbors under `relation`,
           P[M(D) in S] <= exp(epsilon) P[M(D') in S] + delta.
Unit       `privacy_unit` names what one neighbor adds, removes or changes: "example", "user", a column name.
"""

import enum
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sfumato import _check, _notebook
from sfumato.errors import InvalidParameterError

if TYPE_CHECKING:
    import dp_accounting

__all__ = ["Guarantee", "Relation", "round_up"]


class Relation(enum.Enum):
    """The neighboring relation: which pairs of data sets a guarantee compares.

    Attributes:
        ADD_REMOVE: One unit is added or removed.
        REPLACE_ONE: One unit is replaced by another; the number of units is public.
        ZERO_OUT: One unit is replaced by one that contributes nothing.
        REPLACE_LABEL: The label of one unit is replaced; its features are public.
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"
    REPLACE_LABEL = "replace-label"

    @property
    def replaces(self) -> bool:
        """Whether a neighbor swaps one contribution for another, which moves a clipped sum twice as far."""
        return self in (Relation.REPLACE_ONE, Relation.REPLACE_LABEL)

    @property
    def diameter(self) -> int:
        """How far a neighbor moves a sum of contributions of norm at most 1."""
        return 2 if self.replaces else 1

    @classmethod
    def parse(cls, value: "str | Relation") -> "Relation":
        """Return the relation that has a name, as command-line flags and ledgers spell it.

        Args:
            value: The name, such as "replace-one", or a relation, which is returned as it is.

        Returns:
            The relation.

        Raises:
            InvalidParameterError: If no relation has this name.

        >>> Relation.parse("replace-one")
        <Relation.REPLACE_ONE: 'replace-one'>
        """
        if isinstance(value, cls):
            return value
        names = [r.value for r in cls]
        wanted = str(value).strip().lower().replace("_", "-")
        if wanted not in names:
            raise InvalidParameterError(f"unknown relation {value!r}. Use one of: {', '.join(names)}.")
        return cls(wanted)

    def to_dp_accounting(self) -> "dp_accounting.NeighboringRelation":
        """Return the relation for the accountants of dp_accounting, which have no label relation.

        Returns:
            The enum member of dp_accounting; replace-one for a replaced label.
        """
        import dp_accounting  # a second to import, and only its own accountants need it

        relations = dp_accounting.NeighboringRelation
        return {
            Relation.ADD_REMOVE: relations.ADD_OR_REMOVE_ONE,
            Relation.REPLACE_ONE: relations.REPLACE_ONE,
            Relation.ZERO_OUT: relations.REPLACE_SPECIAL,
            Relation.REPLACE_LABEL: relations.REPLACE_ONE,
        }[self]


def round_up(value: float, digits: int = 4) -> float:
    """Round up to a number of significant digits, so that a report never understates a cost.

    Args:
        value: The number. Zero, infinity and NaN are returned as they are.
        digits: How many significant digits are kept.

    Returns:
        A number that is not below `value`.

    >>> round_up(2.38201), round_up(0.000123456, 3), round_up(7.0)
    (2.383, 0.000124, 7.0)
    """
    if value == 0 or not math.isfinite(value):
        return value
    nearest = float(f"{value:.{digits - 1}e}")
    if nearest >= value:
        return nearest
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return float(f"{nearest + step:.{digits - 1}e}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """The privacy guarantee of a release: two numbers, the relation and the unit they are stated for.

    Args:
        epsilon: The epsilon, 0 or more; infinite for a release without protection.
        delta: The delta, from 0 to 1.
        relation: Which data sets are neighbors.
        privacy_unit: Who is protected, such as "example", "user" or the name of a column.
        public_fact: What the guarantee takes as public, in words, if there is anything to say: all data sets
            that are compared agree in it.

    Raises:
        InvalidParameterError: If a number is out of range, or the relation or the unit is not one.

    >>> print(Guarantee(epsilon=2.38201, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="user"))
    (2.383, 1e-05)-differential privacy for one user, add-remove neighbors
    """

    epsilon: float
    delta: float
    relation: Relation
    privacy_unit: str
    public_fact: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InvalidParameterError(f"epsilon must be 0 or more, but {self.epsilon!r} was given.")
        _check.in_range(0, 1, delta=self.delta)
        _check.text(privacy_unit=self.privacy_unit)
        if not isinstance(self.relation, Relation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidParameterError(
                f"relation must be a sfumato.Relation, but {self.relation!r} was given. "
                "Use Relation.parse(...) to read one from text."
            )

    def for_group(self, size: int) -> "Guarantee":
        """Return the guarantee of the same release for a group of units.

        (k epsilon, delta (e^{k epsilon} - 1) / (e^epsilon - 1)): Vadhan 2017, Lemma 2.2, with the geometric
        sum written out. It errs upwards: an accountant that knows the mechanism can do better.

        Args:
            size: How many units the group has, 1 or more.

        Returns:
            The guarantee, whose unit is the group.

        Raises:
            InvalidParameterError: If the size is not a whole number above 0.
        """
        _check.count(size=size)
        delta = self.delta
        if self.delta > 0:
            delta = min(1.0, self.delta * _geometric_sum(self.epsilon, size))
        unit = self.privacy_unit if size == 1 else f"group of {size} x {self.privacy_unit}"
        return replace(self, epsilon=size * self.epsilon, delta=delta, privacy_unit=unit)

    def to_dict(self) -> dict[str, float | str]:
        """Return the four facts as plain values, not rounded, and the sentence that states them.

        Returns:
            A dictionary with epsilon, delta, relation, privacy_unit and text.

        >>> promise = Guarantee(epsilon=0.5, delta=0.0, relation=Relation.ADD_REMOVE, privacy_unit="user")
        >>> promise.to_dict()["epsilon"], promise.to_dict()["text"]
        (0.5, '(0.5, 0)-differential privacy for one user, add-remove neighbors')
        """
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "privacy_unit": self.privacy_unit,
            "text": str(self),
        }

    def shown(self) -> dict[str, str]:
        """Return the four facts as people read them: epsilon and delta are rounded up.

        Returns:
            The facts, by name.

        >>> Guarantee(epsilon=2.38201, delta=0, relation=Relation.ADD_REMOVE, privacy_unit="user").shown()
        {'protected': 'one user', 'epsilon': '2.383', 'delta': '0', 'neighbors': 'add-remove'}
        """
        return {
            "protected": self._who,
            "epsilon": f"{round_up(self.epsilon):g}",
            "delta": f"{round_up(self.delta):g}",
            "neighbors": self.relation.value,
        } | ({} if self.public_fact is None else {"taken as public": self.public_fact})

    def _repr_html_(self) -> str:
        return _notebook.panel("Guarantee", _notebook.facts(self.shown()))

    @property
    def _who(self) -> str:
        return self.privacy_unit if self.privacy_unit.startswith("group") else f"one {self.privacy_unit}"

    def __str__(self) -> str:
        what = f"({round_up(self.epsilon):g}, {round_up(self.delta):g})"
        told = f"{what}-differential privacy for {self._who}, {self.relation.value} neighbors"
        return told if self.public_fact is None else f"{told}; {self.public_fact}"


def _geometric_sum(epsilon: float, size: int) -> float:
    """Return sum of e^{i epsilon} for i below size, infinity if it overflows."""
    if epsilon == 0:
        return float(size)
    if size * epsilon > 700:
        return math.inf
    return math.expm1(size * epsilon) / math.expm1(epsilon)
