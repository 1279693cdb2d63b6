# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato pate`: one list, of which the flags of the command are made."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.cli.flags import flag

__all__ = ["OWN", "PateSettings"]

# Flags of the user's own file, which a named set does not have.
OWN = ("public", "target", "feature", "label", "classes", "type", "privacy_unit", "contribution_bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class PateSettings:
    """Everything that can be set for a run; None is left to the defaults of the data set."""

    data: str | None = None  # the argument of the command
    teachers: int | None = flag(
        "How many teachers share the private rows. Default: 250; fewer for small sets."
    )
    epsilon: float | None = flag("The epsilon of all answers together.")
    delta: float | None = flag(
        "The delta of the guarantee. Default: that of the account, else of a named set the largest power of "
        "ten below 1 / size."
    )
    queries: int | None = flag("How many public rows to ask about. Default: as many as epsilon covers.")
    agreement: list[float] | None = flag(  # noqa: RUF009
        "The share of teachers expected to agree, to answer more queries if they do; repeat for queries that "
        "differ."
    )
    aggregator: str | None = flag(
        "How votes become answers: gnmax, confident or lnmax.", "gnmax", "confident", "lnmax"
    )
    noise: float | None = flag(
        "The noise in each count of votes: its standard deviation, or the scale of lnmax."
    )
    threshold: float | None = flag("Of confident: the smallest noisy count of votes that is answered.")
    threshold_noise: float | None = flag(
        "Of confident: the standard deviation of the noise in that comparison."
    )
    public: str | None = flag(
        "Of your own file: a file of public rows with the same columns, without labels."
    )
    target: str | None = flag("Of your own file: the column of labels.")
    feature: list[str] | None = flag(  # noqa: RUF009
        "Of your own file: a column to learn from; repeat. Default: all columns of numbers."
    )
    label: list[str] | None = flag("Of your own file: a class, by name; repeat for each.")  # noqa: RUF009
    classes: int | None = flag("Of your own file: the number of classes, if labels are 0, 1, 2 ...")
    type: list[str] | None = flag("Of a CSV file: a column's type, as age=number; repeat.")  # noqa: RUF009
    privacy_unit: str | None = flag(
        "Of your own file: the column that names the owner of each row. Default: each row is a unit."
    )
    contribution_bound: int | None = flag("Of your own file: how many rows of one owner count. Default: all.")
    evaluation: str | None = flag(
        "Of your own file: labeled rows that are NOT protected, to show the accuracy on."
    )
    workers: int | None = flag(
        "In how many processes teachers learn; -1 is one for each processor. Default: 1."
    )
    audit: int | None = flag("Let this many canaries vote, and show what they prove beside epsilon.")
    ledger: str | None = flag(
        "Charge the answers to an account of this ledger. Default: that of sfumato.toml."
    )
    account: str | None = flag("The account in that ledger. Your own data: by default that of sfumato.toml.")
    purpose: str | None = flag("What the answers are for; the account keeps it.")
    folder: str | None = flag(
        "A folder for teachers, which are private, and answers. Default: they are not kept."
    )
    report: str | None = flag("Write a page with the guarantee, answers and costs here, as votes.html.")
    seed: int | None = flag("For study only: noise from a seed protects nobody.")

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_own(self) -> bool:
        """Whether the data is a file, and not a named public set."""
        return self.data is not None and (Path(self.data).suffix != "" or Path(self.data).exists())
