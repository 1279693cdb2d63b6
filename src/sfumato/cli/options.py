# SPDX-License-Identifier: Apache-2.0
"""The flags that several commands share, each spelled and explained once."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.accounting import Relation

__all__ = [
    "AccountName",
    "ChargedTo",
    "Delta",
    "Json",
    "LedgerAt",
    "Name",
    "PrivacyUnit",
    "Relations",
    "Source",
    "Typed",
]

Delta = Annotated[float, typer.Option(help="The delta of the guarantee, above 0 and at most 0.1.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Relations = Annotated[
    str, typer.Option("--relation", help="Neighbors: " + ", ".join(r.value for r in Relation) + ".")
]
LedgerAt = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="SFUMATO_LEDGER",
        help="Where the ledger is: a file, or a postgresql:// address.",
    ),
]
ChargedTo = Annotated[
    str | None, typer.Option("--ledger", help="Charge it to an account of this ledger, which must exist.")
]
AccountName = Annotated[str | None, typer.Option("--account", help="The account in that ledger.")]
Source = Annotated[
    str,
    typer.Argument(
        help="A CSV or Parquet file (* for many), or DATABASE_URL#TABLE.",
        show_default=False,
        metavar="SOURCE",
    ),
]
Typed = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        help="The type of a column, such as age=number, or a TOML file of types; repeat for more. "
        "Types: number, integer, text, boolean, date, timestamp. Columns of a CSV file are text otherwise.",
        metavar="COLUMN=TYPE",
        show_default=False,
    ),
]
PrivacyUnit = Annotated[
    str | None, typer.Option(help="The column that says whose a row is; each row is a unit if not said.")
]
Name = Annotated[str, typer.Argument(help="The name of the account: which data set.", show_default=False)]

DEFAULT_LEDGER = str(Path("ledger.db"))
