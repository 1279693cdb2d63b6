# SPDX-License-Identifier: Apache-2.0
"""The check that every part of a statement was read by the translator.

A part that is parsed but not read would be ignored in silence, and the answer would be that of another
question: `COUNT(a, b)`, `BETWEEN SYMMETRIC`, `data AS d(x, y)`. So this is a list of the parts that are read,
by the class of the node in sqlglot. Any other part is refused, also one that a later version of sqlglot adds.
"""

from typing import Any

from sfumato.queries.sql_rows import refused

__all__ = ["require_read"]

_BINARY = ("this", "expression")
_READ: dict[str, tuple[str, ...]] = {
    "Select": ("expressions", "from_", "from", "joins", "where", "group"),
    "Join": ("this", "side", "kind", "using", "on"),
    "From": ("this",),
    "Table": ("this", "alias"),
    "TableAlias": ("this",),
    "Where": ("this",),
    "Group": ("expressions",),
    "Alias": ("this", "alias"),
    "Column": ("this", "table"),
    "Identifier": ("this", "quoted"),
    "Literal": ("this", "is_string"),
    "Boolean": ("this",),
    "Null": (),
    "Star": (),
    "Var": ("this",),
    "Paren": ("this",),
    "Not": ("this",),
    "Neg": ("this",),
    "In": ("this", "expressions"),
    "Between": ("this", "low", "high"),
    "Cast": ("this", "to"),
    "TryCast": ("this", "to", "safe"),
    "DataType": ("this",),
    "TimestampTrunc": ("this", "unit"),
    "DateTrunc": ("this", "unit"),
    "Count": ("this", "big_int"),
    "Distinct": ("expressions",),
    "Quantile": ("this", "quantile"),
    **dict.fromkeys(("Sum", "Avg", "Median", "StddevPop", "VariancePop"), ("this",)),
    **dict.fromkeys(("PercentileCont", "Like", "Is", "And", "Or", "Add", "Sub", "Mul", "Div"), _BINARY),
    **dict.fromkeys(("EQ", "NEQ", "GT", "GTE", "LT", "LTE"), _BINARY),
}


def require_read(select: Any) -> None:
    """Raise if a statement has a part that is not read, or a column of another table.

    Args:
        select: The statement, as sqlglot parsed it.

    Raises:
        InvalidParameterError: If there is such a part. The message names it.
    """
    names = [node.alias_or_name for node in select.walk() if type(node).__name__ == "Table"]
    known = {name.casefold() for name in names}
    for node in select.walk():
        kind = type(node).__name__
        extra = [part for part, value in node.args.items() if value and part not in _READ.get(kind, ())]
        if extra or kind not in _READ:
            what = f", {extra[0].strip('_').upper()}" if extra else ""
            raise refused(f"{node.sql(dialect='duckdb')}{what}", "this part has no private answer.")
        if kind == "Column" and node.table and node.table.casefold() not in known:
            listed = " and ".join(repr(name) for name in names)
            raise refused(
                node.sql(dialect="duckdb"), f"there is no table {node.table!r}: the statement names {listed}."
            )
