# SPDX-License-Identifier: Apache-2.0
"""Queries whose answer is a table: one statistic of groups by options, or several by a TOML file.

A file has `[statistics]`, and may have `group_by`, `keys`, `where`, `rows_per_group` and `groups_per_unit`.
Whatever it does not know is refused, so that a misspelled setting is not left out silently.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sfumato import _check
from sfumato.cli.releases import hand_over, require_place
from sfumato.cli.show import show_facts, show_table, show_text, waiting
from sfumato.errors import InvalidParameterError

__all__ = ["keys_of_options", "publish_table", "query_of_options", "query_of_workload"]

_OF_FILE = ("group_by", "keys", "where", "rows_per_group", "groups_per_unit", "statistics")
_KINDS = ("count", "sum", "mean", "variance", "standard_deviation", "median", "quantile", "count_distinct")
_TERMS = ("bounds", "share", "error", "interval", "q")


def query_of_options(
    table: Any,
    statistic: str,
    column: str | None,
    *,
    group_by: list[str],
    keys: list[str],
    where: str | None,
    terms: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """Return the query of one statistic of groups, or of rows that a condition selects."""
    asked = dict(options)
    if len(asked.get("qs", ())) == 1:
        statistic, asked["q"] = "quantile", asked.pop("qs")[0]
    kind = statistic.replace("-", "_")
    if kind not in _KINDS:
        raise InvalidParameterError(
            f"{statistic} has no groups and no condition. With --group-by and --where ask one of: "
            f"{', '.join(_KINDS).replace('_', '-')}."
        )
    settings = {kind: column or True, **asked}
    known = keys_of_options(table, group_by, keys, delta=terms["delta"], grouped="--group-by")
    return _query(table, {"answer": _statistic("answer", settings)}, group_by, known, where, {}, terms)


def query_of_workload(table: Any, path: str, terms: Mapping[str, Any]) -> Any:
    """Return the query that a TOML file describes."""
    try:
        told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParameterError(f"--workload {path!r} cannot be read as TOML: {error}") from None
    _check.keywords(told, _OF_FILE)
    listed = told.get("statistics")
    if not isinstance(listed, dict) or not listed:
        raise InvalidParameterError(f"--workload {path!r} needs [statistics], such as n = {{count = true}}.")
    group_by = told.get("group_by", [])
    columns = [group_by] if isinstance(group_by, str) else list(group_by)
    bounds = {name: told[name] for name in ("rows_per_group", "groups_per_unit") if name in told}
    keys = told.get("keys")
    if isinstance(keys, list):
        keys = [tuple(key) if isinstance(key, list) else key for key in keys]
    statistics = {name: _statistic(name, settings) for name, settings in listed.items()}
    return _query(table, statistics, columns, keys, told.get("where"), bounds, terms)


def keys_of_options(
    table: Any,
    columns: Sequence[str],
    texts: list[str],
    *,
    delta: float,
    grouped: str,
    heads: Sequence[str] = (),
) -> Any:
    """Return the keys that options name, or how they are found; None without columns to group by.

    Args:
        table: The private table.
        columns: The columns to group by.
        texts: The values of `--key`.
        delta: The delta of the query. Above 0, keys that are not named are discovered.
        grouped: How the command groups, for messages.
        heads: The names of the columns in the release, if they differ.

    Returns:
        The keys, as `sfumato.queries.group_by` takes them.

    Raises:
        InvalidParameterError: If keys do not fit, or there are none.
    """
    from sfumato.queries import Discovered

    if texts and not columns:
        raise InvalidParameterError(f"--key names groups, which needs {grouped}.")
    if texts:
        return _keys_of_texts(table, columns, texts, heads or columns)
    if columns and not delta > 0:
        raise InvalidParameterError(
            f"which keys {', '.join(heads or columns)} has is private. Give --key for each, chosen without "
            "the data, or a --delta such as --delta 1e-6, to find common ones as part of the cost."
        )
    return Discovered() if columns else None


def publish_table(
    query: Any,
    *,
    account: Any,
    purpose: str | None,
    plan: bool,
    out: str | None,
    others: tuple[str | None, ...],
    as_json: bool,
) -> None:
    """Release a query and show the table, or show its plan.

    Args:
        query: The query.
        account: The account to charge, or None.
        purpose: What it is for.
        plan: Whether the plan is shown, and nothing is released.
        out: The file to write the table to, as CSV or JSON by its name, or None.
        others: Files that must not be written to.
        as_json: Whether JSON is printed.

    Raises:
        InvalidParameterError: If the file cannot be written. Nothing is charged.
        BudgetExceededError: If the account does not cover the query. Nothing is charged.
    """
    if plan:
        told = replace(query, account=account).explain()
        if as_json:
            show_facts("", told.facts(), as_json=True)
        else:
            show_text(f"Nothing is spent yet.\n{told}\n\n{told.plan}")
        return
    require_place(out, suffixes=(".json", ".csv"), others=others)
    with waiting("Computing"):
        found = query.release(account=account, purpose=purpose)
    hand_over(found, out, lambda: _show_released(found, as_json=as_json))


def _show_released(found: Any, *, as_json: bool) -> None:
    if as_json:
        show_text(found.to_json())
    else:
        facts = found.facts()
        rows = [
            row["key"] | {name: _shown(row[name]) for name in facts["statistics"]} for row in facts["rows"]
        ]
        show_table(found.release.name, rows)
        show_facts("", {n: facts[n] for n in ("guarantee", "recorded", "account", "notes")}, as_json=False)


def _query(
    table: Any,
    statistics: dict[str, Any],
    columns: list[str],
    keys: Any,
    where: str | None,
    bounds: Mapping[str, int],
    terms: Mapping[str, Any],
) -> Any:
    from sfumato import queries
    from sfumato.queries.sql import condition

    if columns and keys is None and terms["delta"] > 0:
        keys = queries.Discovered()
    predicate = None if where is None else condition(table, where)
    groups = queries.group_by(table, *columns, keys=keys, **cast(dict[str, Any], bounds))
    return groups.agg(**terms, where=predicate, **statistics)


def _statistic(name: str, settings: Any) -> Any:
    """Return a statistic from its settings, such as {sum = "income", bounds = [0, 5000]}."""
    from sfumato import queries

    if not isinstance(settings, dict):
        raise InvalidParameterError(f"{name} must be a table, such as {name} = {{count = true}}.")
    _check.keywords(settings, (*_KINDS, *_TERMS))
    kinds = [kind for kind in _KINDS if kind in settings]
    if len(kinds) != 1:
        raise InvalidParameterError(f"{name} must ask one of {', '.join(_KINDS)}.")
    kind, column = kinds[0], settings[kinds[0]]
    given = {term: settings[term] for term in _TERMS if term in settings}
    if "bounds" in given:
        given["bounds"] = tuple(given["bounds"])
    if not (isinstance(column, str) or (kind == "count" and column is True)):
        raise InvalidParameterError(f"{name}: {kind} needs the name of a column.")
    arguments = [] if column is True else [column]
    try:
        return getattr(queries, kind)(*arguments, **given)
    except TypeError:
        pass
    raise InvalidParameterError(
        f"{name}: {kind} was given {', '.join(given) or 'nothing'}, but it needs or takes others. All but "
        "counts need bounds; a quantile needs q; only counts and sums take error."
    )


def _keys_of_texts(table: Any, columns: Sequence[str], texts: list[str], heads: Sequence[str]) -> Any:
    """Return the keys that options name: values of one column, or column=value for several."""
    from sfumato.cli.stats import named_values

    if len(columns) == 1:
        return list(named_values(table, columns[0], tuple(texts)))
    domains: dict[str, list[str]] = {name: [] for name in heads}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or name not in domains:
            raise InvalidParameterError(
                f"--key {text!r}: with several columns write column=value; all combinations are asked."
            )
        domains[name].append(value)
    return {
        column: list(named_values(table, column, tuple(domains[head])))
        for column, head in zip(columns, heads, strict=True)
    }


def _shown(cell: Mapping[str, float | None]) -> str:
    if cell["value"] is None:
        return "failed"
    ends = "" if cell["lower"] is None else f" ({cell['lower']:.6g} to {cell['upper']:.6g})"
    return f"{cell['value']:.6g}{ends}"
