# SPDX-License-Identifier: Apache-2.0
"""The flags that several commands share, each spelled and explained once."""

from typing import Annotated

import typer

from sfumato.accounting import Relation
from sfumato.cli.completion_values import accounts, relations
from sfumato.cli.help_pages import LEDGER, OUTPUT, PRIVACY, YOUR_DATA
from sfumato.cli.project.defaults import DEFAULT_LEDGER, LEDGER_VARIABLE

__all__ = [
    "AccountName",
    "AnswerFile",
    "ChargedTo",
    "ContributionBound",
    "Delta",
    "Json",
    "LedgerAt",
    "Name",
    "Plan",
    "PrivacyUnit",
    "Purpose",
    "QueryDelta",
    "Relations",
    "Source",
    "Typed",
]

Delta = Annotated[
    float,
    typer.Option(help="The delta of the guarantee, above 0 and at most 0.1.", rich_help_panel=PRIVACY),
]
QueryDelta = Annotated[
    float,
    typer.Option(help="A delta above 0 gives Gaussian noise, at this delta.", rich_help_panel=PRIVACY),
]
ContributionBound = Annotated[
    int, typer.Option(help="How many rows of one unit count, at most.", rich_help_panel=YOUR_DATA)
]
Plan = Annotated[
    bool,
    typer.Option("--plan", help="Say what would be done and spent, and stop.", rich_help_panel=OUTPUT),
]
AnswerFile = Annotated[
    str | None,
    typer.Option(help="Write the answer here, too: a .json or .csv file.", rich_help_panel=OUTPUT),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)]
Relations = Annotated[
    str,
    typer.Option(
        "--relation",
        help="Which data sets count as neighbors: " + ", ".join(r.value for r in Relation) + ".",
        rich_help_panel=PRIVACY,
        autocompletion=relations,
    ),
]
LedgerAt = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar=LEDGER_VARIABLE,
        help=f"Where the ledger is: a file, or a postgresql:// address. Default: that of sfumato.toml, else "
        f"{DEFAULT_LEDGER}.",
        rich_help_panel=LEDGER,
    ),
]
ChargedTo = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="Charge it to an account of this ledger, which must exist. Default: that of sfumato.toml.",
        rich_help_panel=LEDGER,
    ),
]
AccountName = Annotated[
    str | None,
    typer.Option(
        "--account",
        help="The account in that ledger. Default: that of sfumato.toml.",
        rich_help_panel=LEDGER,
        autocompletion=accounts,
    ),
]
Purpose = Annotated[
    str | None,
    typer.Option("--purpose", help="What it is for; the account keeps it.", rich_help_panel=LEDGER),
]
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
        rich_help_panel=YOUR_DATA,
    ),
]
PrivacyUnit = Annotated[
    str | None,
    typer.Option(
        help="The column that says whose a row is. Default: that of sfumato.toml, else each row is a unit.",
        rich_help_panel=YOUR_DATA,
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        help="The name of the account: which data set.", show_default=False, autocompletion=accounts
    ),
]
