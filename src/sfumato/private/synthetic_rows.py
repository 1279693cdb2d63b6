# SPDX-License-Identifier: Apache-2.0
"""The rows of a private table as a synthesizer reads them, after it is charged; and `PrivateData.synthesize`.

Unit       At most `contribution_bound` rows of each unit count, as for every release of this data; the
           synthesizer is charged for that many.
Edge cases Cells leave the engine as text, and a missing one as an empty text, so that no row is left out for
           a missing value. A column of text cannot tell an empty cell from a missing one. The type that
           pandas gave a column depends on single values, so nothing is bought by it: such columns must be
           declared. A cell counts as what it says, whatever the type is (`columns.cell_meaning`).
Failure    An error while rows are read quotes nothing that was read. The charge stays spent.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sfumato.errors import ColumnTypeError, InvalidParameterError, QueryFailedError
from sfumato.statistics.columns.table_columns import column
from sfumato.statistics.sources.schema import plain_type
from sfumato.statistics.sources.tables import PrivateTable

if TYPE_CHECKING:  # the synthesizer is loaded when it is used
    from sfumato.generative.tables.bought_domain import Column
    from sfumato.generative.tables.domain import Domain
    from sfumato.generative.tables.noisy_marginals import NoisyMarginals
    from sfumato.generative.tables.private_table import DeferredTable
    from sfumato.generative.tables.table_generator import TableGenerator
    from sfumato.mechanisms.random import Generator
    from sfumato.private.private_data import PrivateData

__all__ = ["bought_columns", "synthesize", "synthetic_rows"]


def synthesize(
    self: "PrivateData",
    domain: "Domain | Mapping[str, Column] | None" = None,
    *,
    epsilon: float,
    delta: float | None = None,
    method: "NoisyMarginals | None" = None,
    purpose: str | None = None,
    generator: "Generator | None" = None,
    progress: bool = True,
) -> "TableGenerator":
    """Fit a generator of synthetic rows to this data: one release, from which rows are drawn for nothing.

    Account, relation, privacy unit and contribution bound are those of this data.

    Args:
        domain: The declaration of each column to synthesize: `Category`, `Number`, or `UnknownCategory` and
            `UnknownNumber`, whose values are bought with a share of epsilon. Default: all columns are bought,
            by their types, but booleans and the one of the unit. Types of a CSV file that were not declared
            are bought, too. For a pandas frame they must be declared when it is opened: one value may change
            those of pandas.
        epsilon: The privacy budget of the generator.
        delta: The delta of the guarantee. Default: that of the account.
        method: The settings of the synthesizer. Default: `NoisyMarginals()`.
        purpose: What the generator is for. The account keeps it.
        generator: The source of noise. Default: secure. A seeded one protects nobody.
        progress: Whether to show a bar.

    Returns:
        The generator, with its guarantee.

    Raises:
        InvalidParameterError: If a column is missing, has a type that cannot be synthesized or that does not
            fit its declaration, or has neither a type nor a declaration; or if a setting is out of range.
            Nothing is spent.
        BudgetExceededError: If the budget does not cover it. Nothing is spent.
        QueryFailedError: If the rows cannot be read. What was charged stays spent.
    """
    from sfumato.generative.tables.domain import Domain
    from sfumato.generative.tables.noisy_marginals import NoisyMarginals

    known = bought_columns(self.table) if domain is None else domain
    known = known.columns if isinstance(known, Domain) else known
    return (NoisyMarginals() if method is None else method).fit(
        synthetic_rows(self.table, known),
        domain=known,
        epsilon=epsilon,
        delta=self.account.budget.delta if delta is None else delta,
        account=self.account,
        purpose=purpose or "synthetic rows",
        rows_per_unit=self.table.contribution_bound,
        privacy_unit=self.table.privacy_unit,
        generator=generator,
        progress=progress,
    )


def bought_columns(table: PrivateTable) -> dict[str, Any]:
    """Return a declaration for each column of a table but its unit, by the schema: all values are bought.

    Those of booleans are known. A CSV file has no schema: the type of a column is bought, too, unless it was
    declared.

    Args:
        table: The private table.

    Returns:
        The declarations, by column.

    Raises:
        InvalidParameterError: If a column has a type that cannot be synthesized, or one that a single value
            may change.
    """
    from sfumato.generative.tables.bought_domain import UnknownCategory, UnknownColumn, UnknownNumber
    from sfumato.generative.tables.domain import Category

    untyped = [name for name in table.schema if name in table.owned.typed_by_values - {table.owned.unit}]
    if untyped:
        raise InvalidParameterError(
            f"the type of {', '.join(map(repr, untyped))} was chosen by pandas, and one value may change it, "
            "so it must not decide what is released. Declare it when you open the data, types="
            f"{{{untyped[0]!r}: 'number'}} or 'text', or declare each column: synthesize({{...}})."
        )
    found: dict[str, Any] = {}
    for name in table.schema:
        if name == table.owned.unit:
            continue
        kind = _type_of(table, name)
        if kind == "text" and name in table.owned.untyped:
            found[name] = UnknownColumn()
        elif kind in ("number", "integer"):
            found[name] = UnknownNumber(whole=kind == "integer")
        elif kind == "boolean":
            found[name] = Category(values=(False, True))
        else:
            found[name] = UnknownCategory()
    return found


def _type_of(table: PrivateTable, name: str) -> str:
    kind = plain_type(table.type_of(name))
    if kind not in ("text", "number", "integer", "boolean"):
        raise InvalidParameterError(
            f"column {name!r} is of type {kind}, which cannot be synthesized. Declare the columns that you "
            "need, without this one: synthesize({...}), or turn it into text or a number first."
        )
    return kind


def _require_fit(name: str, kind: str, declared: Any) -> None:
    """Refuse a declaration that does not fit the type of its column. No value of the data is read."""
    from sfumato.generative.tables.bought_domain import UnknownNumber
    from sfumato.generative.tables.domain import Category, Number

    problem = None
    if kind == "text" and isinstance(declared, Number | UnknownNumber):
        problem = "is text, but is declared as numbers"
    if kind != "text" and isinstance(declared, Category) and any(isinstance(v, str) for v in declared.values):
        problem = f"is of type {kind}, but is declared with values that are texts"
    if problem is not None:
        wanted = "text" if kind != "text" else "number"
        begins = f"column {name!r} {problem}. Change the declaration, or declare the type"
        error = ColumnTypeError(f"{begins} when you open the data: types={{{name!r}: {wanted!r}}}.")
        error.in_options = f"{begins}: --type {name}={wanted}."
        raise error


def synthetic_rows(table: PrivateTable, columns: Mapping[str, Any]) -> "DeferredTable":
    """Return columns of a table as a synthesizer takes them, once it is paid for.

    Args:
        table: The private table.
        columns: The declaration of each column.

    Returns:
        The deferred table. At most `contribution_bound` rows of each unit are in it.

    Raises:
        InvalidParameterError: If a column is missing, is the unit, has a type that cannot be synthesized, or
            one that does not fit its declaration.
    """
    from sfumato.generative.tables.private_table import DeferredTable

    kinds = {name: _type_of(table, name) for name in columns}
    if table.owned.unit in kinds:
        raise InvalidParameterError(
            f"column {table.owned.unit!r} names the privacy unit: its values must not be synthesized."
        )
    by_values = table.owned.typed_by_values
    for name in [name for name in kinds if name not in by_values]:
        _require_fit(name, kinds[name], columns[name])
    return DeferredTable(
        columns=tuple(columns),
        read=lambda: _read(table, kinds),
        by_unit=False,
        bounded=table.owned.unit is not None,
    )


def _read(table: PrivateTable, kinds: Mapping[str, str]) -> Any:
    """Return the rows, or raise without quoting what was read."""
    from sfumato.generative.tables.private_table import PrivateRows

    owned = table.owned
    try:
        texts = {f"cell{i}": column(owned, name).cast("string").fill_null("") for i, name in enumerate(kinds)}
        found: dict[str, list[Any]] = {name: [] for name in kinds}
        for batch in owned.batches(owned.kept(texts)):
            for i, (name, kind) in enumerate(kinds.items()):
                found[name] += [_cell(text, kind) for text in batch.column(f"cell{i}").to_pylist()]
        return PrivateRows(table=found)
    except Exception:  # of an engine or a file: its message and its class may tell what it read
        pass  # and is raised below, so that our error does not carry theirs along
    raise QueryFailedError(
        "the rows to synthesize from could not be read. What was charged stays spent. Check that the columns "
        "exist, and the engine's own log."
    )


def _cell(text: str, kind: str) -> Any:
    """Return a cell by the type of its column; numbers and booleans that are no text of one are missing."""
    if kind == "text":
        return text
    if kind == "boolean":
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    try:
        return float(text)
    except ValueError:
        return None
