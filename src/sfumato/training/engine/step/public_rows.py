# SPDX-License-Identifier: Apache-2.0
"""How many rows a unit has, as far as that is public: passes may be timed with so many synthetic ones.

Guarantee  `per_unit` is never a number that depends on who is in a batch. Units that are owners of rows have
           as many as the largest owner in the batch, and groups as many as the largest group: a secret.
"""

from sfumato import _check

__all__ = ["PublicRows"]


class PublicRows:
    """How many rows a unit has; None if that is secret, or not known yet.

    Args:
        grouped: Whether units are averaged in groups of random sizes.

    >>> rows = PublicRows(grouped=False)
    >>> rows.given(3)
    >>> rows.per_unit
    3
    >>> rows.expect(None)
    >>> rows.given(4)
    >>> rows.per_unit is None
    True
    """

    def __init__(self, *, grouped: bool) -> None:
        self.per_unit: int | None = None if grouped else 1
        self._grouped, self._stated = grouped, grouped

    def expect(self, per_unit: int | None) -> None:
        """State the number before the first step. Without it, that of each step counts as public.

        Args:
            per_unit: The number, which is public. None if it depends on who is in a batch: then it stays
                secret, and passes run eagerly unless recordings were asked for.

        Raises:
            InvalidParameterError: If the number is not a whole number above 0.
        """
        if per_unit is not None:
            _check.count(per_unit=per_unit)
        if not self._grouped:
            self.per_unit, self._stated = per_unit, True

    def given(self, per_unit: int) -> None:
        """Take the number that a step was given, unless one was stated."""
        if not self._stated:
            self.per_unit = per_unit
