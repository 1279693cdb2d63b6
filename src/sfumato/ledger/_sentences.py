# SPDX-License-Identifier: Apache-2.0
"""The sentences of a statement: what is guaranteed and what was done, for readers who do not know epsilon.

Figures err upwards. A number always stands beside its name, on the same line.
"""

import math
import re
import textwrap
from collections.abc import Mapping

from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.ledger.state import Progress, ReleaseRecord

__all__ = ["STUDY_ONLY", "day", "described", "filled", "in_words", "many"]

STUDY_ONLY = "for study only: the noise was seeded or not cryptographic"
_WIDTH = 80  # columns of the text
_GLUE = "\0"  # stands for a space that no line may end at; no text of a ledger has it in it
_TOGETHER = re.compile(r"(?<=\d,) (?=\d\S*\)-)|(?<=epsilon) (?=[+\d])|(?<=delta) (?=[+\d])")
_MEANINGLESS = 20.0  # a factor of e^20 is no promise that a person could weigh
_COMPARED: Mapping[Relation, str] = {
    Relation.ADD_REMOVE: "with the data of any one {unit} as without",
    Relation.REPLACE_ONE: "with the data of any one {unit} as with the data of another in its place",
    Relation.ZERO_OUT: "with the data of any one {unit} as with a blank in its place",
    Relation.REPLACE_LABEL: "with the label of any one {unit} as with another label in its place",
}
_LABELS_ALONE = "with any one label as with another in its place"  # where a label is itself the unit


def filled(paragraph: str, *, number: int | None = None) -> str:
    """Return a paragraph in lines of the text's width; what is one word, such as a name, is not broken."""
    first = "" if number is None else f"{number:>3}. "
    lines = textwrap.fill(
        _TOGETHER.sub(_GLUE, paragraph),
        width=_WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(_GLUE, " ")


def in_words(guarantee: Guarantee) -> str:
    """Return what epsilon and delta mean, for a reader who does not know them; both figures err upwards."""
    if not guarantee.epsilon <= _MEANINGLESS:
        return "An epsilon as large as this one is no protection to be relied on."
    factor = f"{round_up(math.exp(guarantee.epsilon), 3):g}"
    compared = _COMPARED[guarantee.relation].format(unit=guarantee.privacy_unit)
    if guarantee.relation is Relation.REPLACE_LABEL and guarantee.privacy_unit == "label":
        compared = _LABELS_ALONE
    apart = f", apart from a probability of {round_up(guarantee.delta):g}" if guarantee.delta > 0 else ""
    return (
        f"In plain words: whatever is concluded from all of it is at most {factor} times as likely "
        f"{compared}, and the other way round{apart}."
    )


def described(release: ReleaseRecord, cost: Guarantee) -> str:
    """Return the sentences that describe a release and what it costs on its own."""
    seeded = f" {STUDY_ONLY.capitalize()}." if release.seeded else ""
    return f"{_TOLD[release.progress].format(**_words(release, cost))}{seeded}"


def _words(release: ReleaseRecord, cost: Guarantee) -> dict[str, str]:
    # Braces in a purpose are text: `format` does not look into what it puts in.
    price = f"epsilon {round_up(cost.epsilon):g}, delta {round_up(cost.delta):g}"
    return {
        "when": _moment(release.reserved_at),
        "who": release.person,
        "what": release.purpose,
        "cost": price if math.isfinite(cost.epsilon) else "what the account allows (it has no other figure)",
    }


_TOLD = {
    Progress.COMMITTED: 'On {when}, {who} released "{what}". It costs {cost}.',
    Progress.BEGUN: (
        'On {when}, {who} began "{what}", which did not finish. It costs {cost}, because part of a result '
        "may have been seen."
    ),
    Progress.RESERVED: 'On {when}, {who} reserved "{what}", which has not begun. It costs {cost} already.',
    Progress.REFUNDED: (
        'On {when}, {who} reserved "{what}", which was refunded before anything was computed. It costs '
        "nothing."
    ),
}


def _moment(written_at: str) -> str:
    """Return a time of the ledger as people write it, to the minute."""
    return f"{day(written_at)} at {written_at[11:16]}"


def day(written_at: str) -> str:
    """Return the day of a time of the ledger."""
    return written_at[:10]


def many(count: int, one: str, more: str) -> str:
    """Return a count with its noun.

    >>> many(1, "row", "rows"), many(2, "row", "rows")
    ('1 row', '2 rows')
    """
    return f"{count} {one if count == 1 else more}"
