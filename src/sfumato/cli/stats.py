# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato stats`: one private statistic of a file or a database."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from sfumato.accounting import Relation
from sfumato.cli.column_types import column_types
from sfumato.cli.help_pages import PRIVACY
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
from sfumato.cli.quick_start import uncollected
from sfumato.cli.releases import hand_over, require_place, show_release
from sfumato.cli.show import show_facts, waiting
from sfumato.cli.stats_queries import publish_table, query_of_options, query_of_workload
from sfumato.errors import InvalidParameterError

__all__ = ["charged", "command", "named_values", "opened"]


_QUESTION = "The question"


class Statistic(StrEnum):
    """What can be asked."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    VARIANCE = "variance"
    STANDARD_DEVIATION = "standard-deviation"
    MEDIAN = "median"
    QUANTILES = "quantiles"
    HISTOGRAM = "histogram"
    BOUNDS = "bounds"
    KEYS = "keys"
    LEFT_OUT_SHARE = "left-out-share"


def command(
    source: Source,
    statistic: Annotated[
        Statistic | None,
        typer.Argument(help="What to ask of it; left out with --workload.", show_default=False),
    ] = None,
    column: Annotated[
        str | None,
        typer.Argument(
            help="The column to ask about. count takes none, and counts all rows then.", show_default=False
        ),
    ] = None,
    *,
    epsilon: Annotated[
        float, typer.Option(help="What the answer may cost, above 0.", rich_help_panel=PRIVACY)
    ],
    delta: QueryDelta = 0.0,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="The lower and the upper bound, chosen without the data; values outside are clipped. "
            "Default: those of the column in sfumato.toml.",
            rich_help_panel=_QUESTION,
            metavar="LOWER UPPER",
        ),
    ] = None,
    q: Annotated[
        list[float] | None,
        typer.Option("--q", help="A quantile, 0 to 1; repeat for more.", rich_help_panel=_QUESTION),
    ] = None,
    edge: Annotated[
        list[float] | None,
        typer.Option(
            help="Of a histogram of numbers: an edge of a bin; repeat for all.", rich_help_panel=_QUESTION
        ),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a histogram of other values: a public category; repeat for all.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    population: Annotated[
        bool,
        typer.Option(
            "--population",
            help="Let the interval of a mean cover sampling from a population, too.",
            rich_help_panel=_QUESTION,
        ),
    ] = False,
    public_size: Annotated[
        int | None, typer.Option(help="The number of rows, if it is public.", rich_help_panel=_QUESTION)
    ] = None,
    most_rows: Annotated[
        int | None,
        typer.Option(
            help="Of left-out-share: count up to so many rows of one unit.", rich_help_panel=_QUESTION
        ),
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(help="Ask of each group of this column; repeat for more.", rich_help_panel=_QUESTION),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="A public key of --group-by; repeat. column=value with several columns. Without keys, and "
            "with --delta, common ones are found as part of the cost.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="A condition of one row in SQL: 'age >= 18'.", rich_help_panel=_QUESTION),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="A TOML file with several statistics of the same groups, for one cost.",
            rich_help_panel=_QUESTION,
        ),
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
    """Publish a statistic of private data, with its guarantee and how far it may be off."""
    given = {
        "bounds": bounds,
        "qs": tuple(q) if q else None,
        "edges": tuple(edge) if edge else None,
        "categories": tuple(category) if category else None,
        "population": population or None,
        "public_size": public_size,
        "most_rows": most_rows,
    }
    terms = {"epsilon": epsilon, "delta": delta, "relation": Relation.parse(relation)}
    options = {name: value for name, value in given.items() if value is not None}
    chosen = choose(source, ledger=ledger, account=account, privacy_unit=privacy_unit, types=type_of)
    table = opened(source, chosen.privacy_unit, contribution_bound, chosen.types)
    if statistic is not None:
        options = _with_bounds(options, statistic, column, chosen)
    grouped = _Groups(group_by or [], key or [], where, workload)
    query = grouped.query(table, statistic, column, terms, options)
    payer = charged(chosen.ledger, chosen.account)
    others = (source, chosen.ledger)
    if grouped.asked:
        publish_table(
            query, account=payer, purpose=purpose, plan=plan, out=out, others=others, as_json=as_json
        )
        return
    if plan:
        show_facts("Nothing is spent yet", _planned(query), as_json=as_json)
        return
    require_place(out, suffixes=(".json", ".csv"), others=others)
    with waiting("Computing"):
        found = query.release(account=payer, purpose=purpose)
    hand_over(found, out, lambda: show_release(found, as_json=as_json))


def _planned(query: Any) -> dict[str, Any]:
    return {"plan": query.plan(), "guarantee": query.guarantee.to_dict()}


@dataclass(frozen=True, slots=True)
class _Groups:
    """The options of a query of groups; without them one statistic of all rows is asked."""

    by: list[str]
    keys: list[str]
    where: str | None
    workload: str | None

    @property
    def asked(self) -> bool:
        return bool(self.by or self.keys or self.where is not None or self.workload is not None)

    def query(
        self,
        table: Any,
        statistic: Statistic | None,
        column: str | None,
        terms: dict[str, Any],
        options: dict[str, Any],
    ) -> Any:
        if self.workload is not None:
            if statistic is not None or options or self.by or self.keys or self.where is not None:
                raise InvalidParameterError(
                    "--workload names statistics, groups, keys and conditions: leave them out of the command."
                )
            return query_of_workload(table, self.workload, terms)
        if statistic is None:
            raise InvalidParameterError("name a statistic, such as count or mean, or give --workload.")
        if not self.asked:
            return _query(table, statistic, column, terms, options)
        return query_of_options(
            table,
            statistic.value,
            column,
            group_by=self.by,
            keys=self.keys,
            where=self.where,
            terms=terms,
            options=options,
        )


def opened(source: str, privacy_unit: str | None, contribution_bound: int, type_of: list[str] | None) -> Any:
    """Return the private table of a file, or of a database with the name of a table behind a '#'."""
    where, _, table = source.partition("#")
    with uncollected():  # imports ibis and the engine
        from sfumato.statistics import private_table

        return private_table(
            where,
            privacy_unit=privacy_unit,
            contribution_bound=contribution_bound,
            types=column_types(type_of or []),
            table=table or None,
        )


def named_values(table: Any, column: str, texts: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what the texts of options mean as values of a column, by its type."""
    from sfumato.statistics.sources.schema import from_text

    kind = table.type_of(column)
    return tuple(from_text(text, kind, name=column) for text in texts)


def charged(ledger: str | None, account: str | None) -> Any:
    """Return the account to charge, if one is named."""
    if (ledger is None) != (account is None):
        raise InvalidParameterError("give both --ledger and --account to charge an account, or neither.")
    if ledger is None or account is None:
        return None
    with uncollected():  # imports sqlalchemy
        from sfumato.ledger import Ledger

        return Ledger(ledger, create=False).account(account)


_NEEDED = {
    "bounds": "--bounds",
    "edges": "--edge, the edges of bins of numbers, or --category, the values of any other column",
}


def _with_bounds(
    options: dict[str, Any], statistic: Statistic, column: str | None, chosen: Chosen
) -> dict[str, Any]:
    """Return the options with the bounds of the settings file, for a question that needs some."""
    if column is None or "bounds" in options or statistic not in _BOUNDED or "categories" in options:
        return options
    bounds = chosen.bounds_of(column)
    return options if bounds is None else options | {"bounds": bounds}


_BOUNDED = (
    Statistic.SUM,
    Statistic.MEAN,
    Statistic.VARIANCE,
    Statistic.STANDARD_DEVIATION,
    Statistic.MEDIAN,
    Statistic.QUANTILES,
)


def _query(
    table: Any, statistic: Statistic, column: str | None, terms: dict[str, Any], options: dict[str, Any]
) -> Any:
    from sfumato.statistics import Query

    if statistic is Statistic.LEFT_OUT_SHARE:
        return _left_out(table, column, terms, options)
    if column is None or statistic is Statistic.KEYS:
        return _of_table(table, statistic, column, terms, options)
    kind, extra = _question(statistic, options)
    if unknown := sorted(set(options) - set(kind.__dataclass_fields__)):
        raise InvalidParameterError(f"{statistic.value} takes no {', '.join(unknown)}: leave it out.")
    missing = [name for name in _NEEDED if name in kind.__dataclass_fields__ and name not in extra]
    if missing:
        raise InvalidParameterError(
            f"{statistic.value} needs {_NEEDED[missing[0]]}, chosen without the data."
        )
    data = _data(table, statistic, column, options)
    if "categories" in options:
        extra = extra | {"categories": named_values(table, column, options["categories"])}
    bound = table.contribution_bound
    return Query(kind(**terms, **extra, column=column, contribution_bound=bound), data)


def _data(table: Any, statistic: Statistic, column: str, options: dict[str, Any]) -> Any:
    """Return what is asked about: categories, whether there is a value, or numbers; refused by the type."""
    if "categories" in options:
        return table.categories(column)
    return table.present(column) if statistic is Statistic.COUNT else table[column]


def _of_table(
    table: Any, statistic: Statistic, column: str | None, terms: dict[str, Any], options: dict[str, Any]
) -> Any:
    if column is None and statistic is not Statistic.COUNT:
        columns = ", ".join(table.schema)
        raise InvalidParameterError(
            f"{statistic.value} needs the name of a column behind it. The table has: {columns}."
        )
    if options:
        raise InvalidParameterError(f"{statistic.value} takes no {', '.join(sorted(options))}: leave it out.")
    if column is not None and not terms["delta"]:
        raise InvalidParameterError(
            "keys needs --delta, such as --delta 1e-6: it bounds the chance of naming one."
        )
    return table.count(**terms) if column is None else table.keys(column, **terms)


def _left_out(table: Any, column: str | None, terms: dict[str, Any], options: dict[str, Any]) -> Any:
    if column is not None:
        raise InvalidParameterError("left-out-share is a share of all rows: leave the column out.")
    if wrong := sorted(set(options) - {"most_rows"}):
        raise InvalidParameterError(f"left-out-share takes no {', '.join(wrong)}: leave it out.")
    return table.left_out_share(**terms, **options)


def _question(statistic: Statistic, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the kind of question that a statistic is, and what it is asked with."""
    from sfumato import statistics as s

    if statistic is Statistic.MEDIAN:
        return s.Quantile, options | {"q": 0.5}
    if statistic is Statistic.QUANTILES and not options.get("qs"):
        raise InvalidParameterError("quantiles needs --q, such as --q 0.25 --q 0.75.")
    if statistic is Statistic.HISTOGRAM and "categories" in options:
        return s.CategoryCounts, options
    kinds = {
        Statistic.COUNT: s.Count,
        Statistic.SUM: s.Sum,
        Statistic.MEAN: s.Mean,
        Statistic.VARIANCE: s.Variance,
        Statistic.STANDARD_DEVIATION: s.StandardDeviation,
        Statistic.QUANTILES: s.Quantiles,
        Statistic.HISTOGRAM: s.BinCounts,
        Statistic.BOUNDS: s.AutomaticBounds,
    }
    return kinds[statistic], options
