# SPDX-License-Identifier: Apache-2.0
"""What an audit is asked for: the claim that it attacks, and the confidence of each of its attacks."""

from collections.abc import Sequence

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError

__all__ = ["check_claim", "confidence_of_each"]


def check_claim(claim: Guarantee | None) -> None:
    """Refuse a claim that is a bare number: without a delta and a relation there is nothing to attack.

    Args:
        claim: The guarantee to attack, or None.

    Raises:
        InvalidParameterError: If it is something else.

    >>> check_claim(1.0)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: claim must be a Guarantee or None, but 1.0 was given. ...
    """
    if claim is not None and not isinstance(claim, Guarantee):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass numbers
        raise InvalidParameterError(
            f"claim must be a Guarantee or None, but {claim!r} was given. Pass Guarantee(epsilon=..., "
            "delta=..., relation=Relation.ADD_REMOVE, privacy_unit=...) of sfumato, or the `guarantee` of a "
            "release or a run."
        )


def confidence_of_each(confidence: float, attacks: int | Sequence[object]) -> float:
    """Return the confidence that each of several attacks needs, so that together they have `confidence`.

    Args:
        confidence: The probability with which all of them hold together.
        attacks: The attacks, or their number.

    Returns:
        The confidence of each.

    Raises:
        InvalidParameterError: If the confidence is out of range, or there is no attack.

    >>> round(confidence_of_each(0.95, 5), 6)
    0.99
    """
    _check.probability(confidence=confidence)
    count = attacks if isinstance(attacks, int) else len(attacks)
    _check.count(attacks=count)
    return 1 - (1 - confidence) / count
