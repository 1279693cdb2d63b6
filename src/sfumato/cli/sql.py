# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato sql`: one SELECT about a private file or database, as `sfumato.queries.sql` reads it.

Not here   What SQL can ask, and what is refused: `sfumato.queries.sql`. Keys, plans and what is printed are
           those of `sfumato stats` (`stats_queries`).
"""

import glob
from pathlib import Path, PurePath
from typing import Annotated

import typer

from sfumato.accounting import Relation
from sfumato.cli.help_pages import PRIVACY, YOUR_DATA
from sfumato.cli.options import (
    AccountName,
    AnswerFile,
    ChargedTo,
    ContributionBound,
    Json,
    Plan,
    PrivacyUnit,
    Purpose,
    QueryDelta,
    Relations,
    Source,
    Typed,
)
from sfumato.cli.project.defaults import Chosen, choose
from sfumato.cli.stats import charged, opened
from sfumato.cli.stats_queries import keys_of_options, publish_table
from sfumato.errors import InvalidParameterError

__all__ = ["command"]

_QUESTION = "The question"


def command(
    source: Source,
    statement: Annotated[
        str,
        typer.Argument(
            help="One SELECT with aggregates, FROM data, or from the name of the file or table.",
            show_default=False,
        ),
    ],
    *,
    epsilon: Annotated[
        float, typer.Option(help="What the whole statement may cost, above 0.", rich_help_panel=PRIVACY)
    ],
    delta: QueryDelta = 0.0,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            help="The bounds of a column, or of an alias, chosen without the data; repeat for more. Default: "
            "those of the column in sfumato.toml.",
            rich_help_panel=_QUESTION,
            metavar="COLUMN=LOWER,UPPER",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="A public key of GROUP BY; repeat. column=value with several columns. Without keys, and "
            "with --delta, common ones are found as part of the cost.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="A public table for JOIN, a CSV or Parquet file; repeat for more.",
            rich_help_panel=_QUESTION,
            metavar="NAME=FILE",
        ),
    ] = None,
    rows_per_group: Annotated[
        int | None,
        typer.Option(help="How many rows of one unit count in one group.", rich_help_panel=YOUR_DATA),
    ] = None,
    groups_per_unit: Annotated[
        int | None, typer.Option(help="In how many groups one unit counts.", rich_help_panel=YOUR_DATA)
    ] = None,
    type_of: Typed = None,
    privacy_unit: PrivacyUnit = None,
    contribution_bound: ContributionBound = 1,
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger: ChargedTo = None,
    account: AccountName = None,
    purpose: Purpose = None,
    plan: Plan = False,
    out: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """Publish the answer to a SELECT about private data, with its guarantee and how far it may be off."""
    chosen = choose(source, ledger=ledger, account=account, privacy_unit=privacy_unit, types=type_of)
    table = opened(source, chosen.privacy_unit, contribution_bound, chosen.types)
    from sfumato.queries.sql import read_statement

    given, public = _bounds(bounds or []), _tables(tables or [], source)
    read = read_statement(
        table,
        statement,
        bounds=_in_file(tuple(table.schema), chosen) | given,
        name=_name(source),
        tables=public,
    )
    _require_known(given, (*read.table.schema, *read.statistics))
    query = read.asked(
        epsilon=epsilon,
        delta=delta,
        keys=keys_of_options(
            read.table, read.columns, key or [], delta=delta, grouped="GROUP BY", heads=read.heads
        ),
        rows_per_group=rows_per_group,
        groups_per_unit=groups_per_unit,
        relation=Relation.parse(relation),
    )
    publish_table(
        query,
        account=charged(chosen.ledger, chosen.account),
        purpose=purpose,
        plan=plan,
        out=out,
        others=(source, chosen.ledger, *public.values()),
        as_json=as_json,
    )


def _name(source: str) -> str:
    """Return what FROM may name the data: the table of a database, or the file without its ending."""
    where, _, table = source.partition("#")
    return table or PurePath(where).stem


def _in_file(columns: tuple[str, ...], chosen: Chosen) -> dict[str, tuple[float, float]]:
    """Return the bounds of columns that the settings file has."""
    found = {name: chosen.bounds_of(name) for name in columns}
    return {name: pair for name, pair in found.items() if pair is not None}


def _bounds(texts: list[str]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, pair = text.rpartition("=")
        lower, _, upper = pair.partition(",")
        try:
            found[name] = (float(lower), float(upper))
        except ValueError:
            raise InvalidParameterError(
                f"--bounds {text} bounds nothing: give COLUMN=LOWER,UPPER, such as --bounds age=0,120."
            ) from None
    return found


def _require_known(bounds: dict[str, tuple[float, float]], names: tuple[str, ...]) -> None:
    """Raise for bounds of a name that is misspelled: those of the settings file would be used silently."""
    if wrong := [name for name in bounds if name not in names]:
        raise InvalidParameterError(
            f"--bounds names {wrong[0]!r}, but the statement has no such column or alias. There are: "
            f"{', '.join(dict.fromkeys(names))}."
        )


def _tables(texts: list[str], source: str) -> dict[str, str]:
    """Return the public tables by name; the private file is none of them."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not name or not path:
            raise InvalidParameterError(
                f"--table {text} names no file: give NAME=FILE, such as --table zips=zips.csv."
            )
        if any(Path(private).resolve() == Path(path).resolve() for private in (source, *glob.glob(source))):
            raise InvalidParameterError(f"--table {text} is the private data. A joined table is public.")
        found[name] = path
    return found
