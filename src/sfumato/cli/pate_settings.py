# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato pate`, and the aggregator that they describe.

Failure    A flag that the aggregator does not have is refused, not ignored.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato import _check
from sfumato.cli.flags import flag
from sfumato.errors import InvalidParameterError
from sfumato.pate.aggregators import Aggregator, ConfidentGNMax, GNMax, LNMax

__all__ = ["OWN", "PateSettings", "aggregator_of"]

# Flags of the user's own file, which a named set does not have.
OWN = ("public", "target", "feature", "label", "classes", "type", "privacy_unit", "contribution_bound")
_AGGREGATORS = ("gnmax", "confident", "lnmax")
# Votes for each teacher, as published for 250 teachers: noise 40, threshold 200 with noise 150; scale 20.
_NOISE, _THRESHOLD, _THRESHOLD_NOISE, _SCALE = 0.16, 0.8, 0.6, 0.08


@dataclass(frozen=True, kw_only=True, slots=True)
class PateSettings:
    """Everything that can be set for a run; None is left to the defaults of the data set."""

    data: str | None = None  # the argument of the command
    teachers: int | None = flag("How many teachers share the private rows; 250 for large sets.")
    epsilon: float | None = flag("The epsilon of all answers together.")
    delta: float | None = flag(
        "The delta of the guarantee; of a named set the largest power of ten below 1 / size."
    )
    queries: int | None = flag("How many public rows to ask about; as many as epsilon covers if not said.")
    agreement: list[float] | None = flag(  # noqa: RUF009
        "The share of teachers expected to agree, to answer more queries if they do; repeat for queries that "
        "differ."
    )
    aggregator: str | None = flag("How votes become answers: gnmax, confident or lnmax.")
    noise: float | None = flag("Noise in each count of votes: the standard deviation, or the scale of lnmax.")
    threshold: float | None = flag("Of confident: the smallest noisy count of votes that is answered.")
    threshold_noise: float | None = flag(
        "Of confident: the standard deviation of the noise in that comparison."
    )
    public: str | None = flag(
        "Of your own file: a file of public rows with the same columns, without labels."
    )
    target: str | None = flag("Of your own file: the column of labels.")
    feature: list[str] | None = flag(  # noqa: RUF009
        "Of your own file: a column to learn from; repeat. All numbers if not said."
    )
    label: list[str] | None = flag("Of your own file: a class, by name; repeat for each.")  # noqa: RUF009
    classes: int | None = flag("Of your own file: the number of classes, if labels are 0, 1, 2 ...")
    type: list[str] | None = flag("Of a CSV file: a column's type, as age=number; repeat.")  # noqa: RUF009
    privacy_unit: str | None = flag("Of your own file: the column that names the owner of each row.")
    contribution_bound: int | None = flag("How many rows of one owner count; all of them if not said.")
    evaluation: str | None = flag(
        "Of your own file: labeled rows that are NOT protected, to show the accuracy on."
    )
    workers: int | None = flag("In how many processes teachers learn; -1 is one for each processor.")
    audit: int | None = flag("Let this many canaries vote, and show what they prove beside epsilon.")
    ledger: str | None = flag("Charge the answers to an account of this ledger.")
    account: str | None = flag("The account in that ledger.")
    purpose: str | None = flag("What the answers are for; the account keeps it.")
    folder: str | None = flag("Where teachers, which are private, and answers are kept.")
    report: str | None = flag("Write a page about the run here.")
    seed: int | None = flag("For study only: noise from a seed protects nobody.")

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_own(self) -> bool:
        """Whether the data is a file, and not a named public set."""
        return self.data is not None and (Path(self.data).suffix != "" or Path(self.data).exists())


def aggregator_of(
    settings: PateSettings, usual: tuple[Aggregator, Sequence[float] | None], *, teachers: int
) -> tuple[Aggregator, Sequence[float] | None]:
    """Return how votes become answers and the agreement to test: from flags, or else as is `usual`."""
    aggregator, agreement = usual
    chosen = settings.aggregator or _name(aggregator)
    if chosen not in _AGGREGATORS:
        raise InvalidParameterError(
            f"unknown --aggregator {chosen!r}. Use one of: {', '.join(_AGGREGATORS)}."
        )
    if chosen != "confident" and (settings.threshold is not None or settings.threshold_noise is not None):
        raise InvalidParameterError("--threshold and --threshold-noise are for --aggregator confident.")
    same = chosen == _name(aggregator)
    if not same or settings.noise is not None or settings.threshold is not None:
        agreement = None  # what was expected of the usual noise
    before = aggregator if same else _published(chosen, teachers)
    return _changed(before, settings), settings.agreement or agreement


def _name(aggregator: Aggregator) -> str:
    if isinstance(aggregator, LNMax):
        return "lnmax"
    return "confident" if isinstance(aggregator, ConfidentGNMax) else "gnmax"


def _published(name: str, teachers: int) -> Aggregator:
    if name == "lnmax":
        return LNMax(scale=_SCALE * teachers)
    if name == "gnmax":
        return GNMax(stddev=_NOISE * teachers)
    return ConfidentGNMax(
        threshold=_THRESHOLD * teachers,
        threshold_stddev=_THRESHOLD_NOISE * teachers,
        stddev=_NOISE * teachers,
    )


def _changed(aggregator: Aggregator, settings: PateSettings) -> Aggregator:
    """Return an aggregator with the noise and the threshold of flags."""
    for name in ("noise", "threshold_noise"):
        value = getattr(settings, name)
        if value is not None:
            _check.positive(**{name: value})
    noise = settings.noise
    if isinstance(aggregator, LNMax):
        return aggregator if noise is None else LNMax(scale=noise)
    if isinstance(aggregator, ConfidentGNMax):
        threshold, above = settings.threshold, settings.threshold_noise
        return ConfidentGNMax(
            threshold=aggregator.threshold if threshold is None else threshold,
            threshold_stddev=aggregator.threshold_stddev if above is None else above,
            stddev=aggregator.stddev if noise is None else noise,
        )
    return aggregator if noise is None else GNMax(stddev=noise)
