# SPDX-License-Identifier: Apache-2.0
"""Queries of `sfumato stats`: one statistic of groups by options, or several by a TOML file.

A file has `[statistics]`, and may have `group_by`, `keys`, `where`, `rows_per_group` and `groups_per_unit`.
Whatever it does not know is refused, so that a misspelled setting is not left out silently.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sfumato import _check
from sfumato.cli.show import show_facts, show_table, show_text
from sfumato.errors import InvalidParameterError

__all__ = ["query_of_options", "query_of_workload", "show_released_table"]

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
    known = _keys_of_texts(table, group_by, keys) if keys else None
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


def show_released_table(found: Any, out: str | None, *, as_json: bool) -> None:
    """Print a released table, and write it to a file, as CSV or JSON by its name."""
    if as_json:
        show_text(found.to_json())
    else:
        facts = found.facts()
        rows = [
            row["key"] | {name: _shown(row[name]) for name in facts["statistics"]} for row in facts["rows"]
        ]
        show_table(found.release.name, rows)
        show_facts("", {n: facts[n] for n in ("guarantee", "recorded", "account", "notes")}, as_json=False)
    if out is not None:
        (found.to_csv if Path(out).suffix.lower() == ".csv" else found.to_json)(out)


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


def _keys_of_texts(table: Any, columns: list[str], texts: list[str]) -> Any:
    """Return the keys that options name: values of one column, or column=value for several."""
    from sfumato.cli.stats import named_values

    if len(columns) == 1:
        return list(named_values(table, columns[0], tuple(texts)))
    domains: dict[str, list[str]] = {name: [] for name in columns}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or name not in domains:
            raise InvalidParameterError(
                f"--key {text!r}: with several columns write column=value; all combinations are asked."
            )
        domains[name].append(value)
    return {name: list(named_values(table, name, tuple(values))) for name, values in domains.items()}


def _shown(cell: Mapping[str, float | None]) -> str:
    if cell["value"] is None:
        return "failed"
    ends = "" if cell["lower"] is None else f" ({cell['lower']:.6g} to {cell['upper']:.6g})"
    return f"{cell['value']:.6g}{ends}"
