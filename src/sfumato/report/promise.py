# SPDX-License-Identifier: Apache-2.0
"""A guarantee in plain words, and a warning where noise does not protect, for every page.

Guarantee  Figures err upwards: the factor and the certainty are never below what the guarantee allows.
"""

import math
from collections.abc import Mapping

from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.report.html import escape

__all__ = ["in_plain_words", "promise", "study_sentence", "study_warning"]

_NEIGHBORS: Mapping[Relation, str] = {
    Relation.ADD_REMOVE: "with any one {unit} in {data} as without it",
    Relation.REPLACE_ONE: "with any one {unit} in {data} as with another in its place",
    Relation.ZERO_OUT: "with any one {unit} in {data} as with a blank in its place",
    Relation.REPLACE_LABEL: "with the label that any one {unit} has as with another one in its place",
}
_MEANINGLESS = 20.0  # a factor of e^20 is no promise that a person could weigh


def in_plain_words(
    guarantee: Guarantee,
    *,
    released: str,
    data: str = "the training data",
    covers: str = "this run alone",
) -> str:
    """Return what epsilon and delta mean for one who is protected; both figures err upwards.

    Args:
        guarantee: The guarantee.
        released: What was released, such as "the model".
        data: What the protected unit is or is not in.
        covers: What the guarantee is about, and nothing beyond it.

    Returns:
        A few sentences.
    """
    label = guarantee.relation is Relation.REPLACE_LABEL and guarantee.privacy_unit == "label"
    neighbors = _NEIGHBORS[Relation.REPLACE_ONE if label else guarantee.relation]
    compared = neighbors.format(unit=guarantee.privacy_unit, data=data)
    if not guarantee.epsilon <= _MEANINGLESS:
        return "No useful protection: an epsilon as large as this one does not protect anyone."
    factor = f"{round_up(math.exp(guarantee.epsilon), 3):g}"
    sure = _sure(guarantee.epsilon)
    apart = f", apart from a probability of {round_up(guarantee.delta):g}" if guarantee.delta > 0 else ""
    labels = " All else about it is not protected." if guarantee.relation is Relation.REPLACE_LABEL else ""
    return (
        f"Whatever someone may conclude from {released}, they conclude at "
        f"most {factor} times as often {compared}, and the other way round{apart}. Who thought both equally "
        f"likely before can become at most {sure} sure of either.{labels} This holds whatever else they "
        f"know, now or later. It covers {covers}, and does not hide what is true of people in general."
    )


def _sure(epsilon: float) -> str:
    """Return the largest belief after a release, in percent; rounded up, and never to 100%.

    >>> _sure(1.0), _sure(8.0)
    ('73.2%', '99.967%')
    """
    doubt = 100 / (1 + math.exp(epsilon))
    digits = max(1, 1 - math.floor(math.log10(doubt)))
    rounded = math.floor(doubt * 10**digits) / 10**digits
    return f"{100 - rounded:.{digits}f}".rstrip("0").rstrip(".") + "%"


def promise(guarantee: Guarantee, *, released: str) -> str:
    """Return the same as markup."""
    return f'<div class="promise"><p>{escape(in_plain_words(guarantee, released=released))}</p></div>'


def study_sentence(note: str, *, subject: str = "run") -> str:
    """Return a warning about noise that was not secure.

    >>> study_sentence("for study only: the noise was seeded")
    'For study only: the noise was seeded. This run does not protect anyone.'
    """
    return f"{note[:1].upper()}{note[1:]}. This {subject} does not protect anyone."


def study_warning(note: str | None, *, subject: str = "run") -> str:
    """Return the same as markup; nothing if the noise was secure."""
    if note is None:
        return ""
    return f'<p class="warning" role="note">{escape(study_sentence(note, subject=subject))}</p>'
