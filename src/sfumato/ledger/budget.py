# SPDX-License-Identifier: Apache-2.0
"""Budgets: the most that all releases from one data set may cost together.

A budget with delta 0 is pure differential privacy: only releases with an epsilon of their own and no delta
fit (Laplace, randomized response, exponential; never a Gaussian).

Guarantee  Both numbers are finite and in range from birth: epsilon > 0 and 0 <= delta < 1.
"""

from dataclasses import dataclass

from sfumato import _check, _notebook
from sfumato.errors import InvalidParameterError

__all__ = ["Budget", "as_floats"]


LEAST_DELTA = 1e-300  # shares of it are still floats with all their digits


def as_floats(**values: float) -> tuple[float, ...]:
    """Return the numbers as floats; raise `InvalidParameterError` for a whole number that no float holds."""
    try:
        return tuple(float(value) for value in values.values())
    except OverflowError:
        raise InvalidParameterError(
            f"{' and '.join(values)} must be at most 1e308 each, but a larger whole number was given."
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The most that an account may spend.

    Args:
        epsilon: The epsilon, above 0.
        delta: The delta, from 0 to below 1; 0 is pure differential privacy.

    Raises:
        InvalidParameterError: If a number is out of range.

    >>> print(Budget(epsilon=3, delta=1e-6))
    epsilon 3, delta 1e-06
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.in_range(0, 1, delta=self.delta)
        if not self.delta < 1:
            raise InvalidParameterError(
                f"delta must be below 1, but {self.delta!r} was given: at delta=1 nothing is promised. "
                "Choose far less than one over the number of units."
            )
        if 0 < self.delta < LEAST_DELTA:
            raise InvalidParameterError(
                f"delta must be 0, or at least {LEAST_DELTA:g}, because an account divides it. Use 0 for "
                "pure differential privacy."
            )
        # An integer and the float equal to it must write the same row.
        epsilon, delta = as_floats(epsilon=self.epsilon, delta=self.delta)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def raised(self, *, epsilon: float = 0.0, delta: float = 0.0) -> "Budget":
        """Return this budget with a grant added.

        Args:
            epsilon: How much epsilon is added.
            delta: How much delta is added.

        Returns:
            The new budget.

        Raises:
            InvalidParameterError: If nothing is added, or a pure budget would get a delta.

        >>> Budget(epsilon=1, delta=1e-6).raised(epsilon=0.5)
        Budget(epsilon=1.5, delta=1e-06)
        """
        _check.non_negative(epsilon=epsilon, delta=delta)
        epsilon, delta = as_floats(epsilon=epsilon, delta=delta)
        if epsilon == 0 and delta == 0:
            raise InvalidParameterError("a grant must add something, but epsilon=0 and delta=0 were given.")
        if delta > 0 and self.delta == 0:
            raise InvalidParameterError(
                f"a budget of pure differential privacy (delta=0) cannot be granted delta={delta!r}. "
                "Open another account with a delta above 0, and count both."
            )
        return Budget(epsilon=self.epsilon + epsilon, delta=self.delta + delta)

    def _repr_html_(self) -> str:
        return _notebook.panel(
            "Budget", _notebook.facts({"epsilon": f"{self.epsilon:g}", "delta": f"{self.delta:g}"})
        )

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"
