# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato synthesize`: one list, of which the flags of the command are made."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.cli.flags import flag
from sfumato.cli.settings import TrainSettings

__all__ = ["SynthesisSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SynthesisSettings:
    """Everything that can be set for a generator; None is left to the defaults of the data set."""

    data: str | None = None  # the argument of the command
    method: str | None = flag(
        "Of images: dp-cgan (the default), dp-gan, pate-cgan, diffusion, kernel-mean or mixtures.",
        "dp-cgan",
        "dp-gan",
        "pate-cgan",
        "diffusion",
        "kernel-mean",
        "mixtures",
    )
    epsilon: float | None = flag("The epsilon of everything that is generated.")
    delta: float | None = flag(
        "The delta of the guarantee. Default: that of the account, else the largest power of ten below 1 / "
        "public size; of a table without --public-size 1e-9."
    )
    out: str | None = flag(
        "Of images: a folder for them and the generator. Of a table: a .parquet or .csv file."
    )
    count: int | None = flag(
        "How many images or rows to draw. Default: 10000 images, or about as many rows as there are."
    )
    domain: str | None = flag(
        "Of a table: a TOML file that declares its columns. Default: a share of epsilon buys them."
    )
    target: str | None = flag("Of a table: the column that matters most, which classifiers predict.")
    type: list[str] | None = flag(  # noqa: RUF009
        "Of a CSV file: a column's type, as age=number; repeat. Default: a share of epsilon buys it."
    )
    privacy_unit: str | None = flag(
        "Of a table: the column that names the owner of each row. Default: each row is a unit."
    )
    contribution_bound: int | None = flag("Of a table: how many rows of one owner count. Default: 1.")
    label: list[str] | None = flag("Of a folder of images: the folder of a class; repeat for each.")  # noqa: RUF009
    classes: int | None = flag("Of your own .npz file: the number of classes, if labels are 0, 1, 2 ...")
    image_size: int | None = flag("Of a folder of images: the side in pixels to which they are scaled.")
    public_size: int | None = flag(
        "Of your own file: the number of rows that may be known, such as the planned one."
    )
    evaluation: str | None = flag(
        "Of your own file: another one of rows that are NOT protected, to evaluate with."
    )
    public: str | None = flag(
        "With --method diffusion: images that are NOT protected, to learn from first: an .npz file, a "
        "folder, or a named set, whose labels are used if you have ten classes too.",
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
    )
    device: str | None = flag("Where to train, such as cuda. Default: a GPU if there is one.", "cpu", "cuda")
    audit: int | None = flag("Let this many canaries audit DP-SGD, where the method uses it.")
    ledger: str | None = flag(
        "Charge the generator to an account of this ledger. Default: that of sfumato.toml."
    )
    account: str | None = flag("The account in that ledger. Your own data: by default that of sfumato.toml.")
    purpose: str | None = flag("What the generator is for; the account keeps it.")
    report: str | None = flag("Write a page with the evaluation here, as made.html.")
    seed: int | None = flag("For study only: noise from a seed protects nobody.")

    def over(self, below: "SynthesisSettings") -> "SynthesisSettings":
        """Return these settings, and those of `below` for what is not set here."""
        return replace(below, **self.given())

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_table(self) -> bool:
        """Whether the data is a file of rows, and not of images."""
        named = self.data is not None and Path(self.data).suffix.lower() in (".csv", ".parquet")
        return named and not Path(str(self.data)).is_dir()

    @property
    def is_own(self) -> bool:
        """Whether the data is a file or a folder, and not a named public set."""
        return TrainSettings(data=self.data).is_own
