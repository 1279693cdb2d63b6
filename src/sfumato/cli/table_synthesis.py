# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize` for a CSV or Parquet file: from settings to a file of synthetic rows.

Columns are declared in a TOML file, or their values are bought with a share of epsilon:

    [city]
    values = ["Rome", "Oslo"]
    [age]
    lower = 0
    upper = 100
    bins = 20
    whole = true
    [income]
    unknown = "number"

Failure    Settings, files, the account and the place that is written to are checked before the charge.
"""

import tomllib
from pathlib import Path
from typing import Any

from sfumato import _check, _files
from sfumato.accounting.default_delta import delta_note
from sfumato.cli.column_types import column_types
from sfumato.cli.places import account_at
from sfumato.cli.show import show_facts, show_text
from sfumato.cli.synthesis_settings import SynthesisSettings
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.bought_domain import Column, UnknownCategory, UnknownNumber
from sfumato.generative.tables.domain import Category, Number
from sfumato.generative.tables.noisy_marginals import NoisyMarginals
from sfumato.generative.tables.table_generator import TableGenerator
from sfumato.ledger import Account
from sfumato.ledger.recorded import is_recorded, record_note
from sfumato.private.synthetic_rows import bought_columns, synthetic_rows
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

__all__ = ["run"]

_IMAGES_ONLY = (
    "method",
    "label",
    "classes",
    "image_size",
    "public_size",
    "evaluation",
    "device",
    "audit",
    "report",
)
_WRITTEN = (".parquet", ".csv")


def run(settings: SynthesisSettings, *, as_json: bool) -> None:
    """Learn a generator of rows, draw from it, write what was drawn, and show the statement."""
    _require(settings)
    types = column_types(settings.type or [])
    table = private_table(
        settings.data,
        privacy_unit=settings.privacy_unit,
        contribution_bound=settings.contribution_bound or 1,
        types=types or None,
    )
    columns = bought_columns(table) if settings.domain is None else _declared(settings.domain)
    account = account_at(settings.ledger, settings.account)
    made = _fitted(settings, table, columns, account)
    rows = made.sample(settings.count, seed=settings.seed)
    place = Path(str(settings.out))
    if place.suffix == ".parquet":
        _files.write_whole(place, lambda file: rows.to_parquet(file, index=False))
    else:
        _files.write_whole(place, rows.to_csv(index=False).encode())
    made.save(_generator_place(place))
    _show(settings, made, len(rows), account, as_json=as_json)


def _generator_place(place: Path) -> Path:
    return place.with_name(f"{place.stem}.generator.npz")


def _require(settings: SynthesisSettings) -> None:
    if not Path(str(settings.data)).exists():
        raise InvalidParameterError(f"there is no file {settings.data!r}.")
    given = [f"--{name.replace('_', '-')}" for name in _IMAGES_ONLY if getattr(settings, name) is not None]
    if given:
        raise InvalidParameterError(f"{', '.join(given)} is for images: leave it out.")
    if settings.epsilon is None:
        raise InvalidParameterError("pass how private everything that is generated must be: --epsilon.")
    _check.positive(epsilon=settings.epsilon)
    for name in ("count", "contribution_bound"):
        if getattr(settings, name) is not None:
            _check.count(**{name: getattr(settings, name)})
    if settings.contribution_bound is not None and settings.privacy_unit is None:
        raise InvalidParameterError("--contribution-bound is for a table with --privacy-unit.")
    _require_place(settings)


def _require_place(settings: SynthesisSettings) -> None:
    place = Path(settings.out or "")
    if place.suffix not in _WRITTEN:
        raise InvalidParameterError("pass --out, a file of synthetic rows that ends in .parquet or .csv.")
    for each in (place, _generator_place(place)):
        if each.exists():
            raise InvalidParameterError(f"the file {str(each)!r} exists. Give another --out.")
    try:
        _files.part_of(place).touch()
        _files.part_of(place).unlink()
    except OSError as error:
        raise InvalidParameterError(
            f"nothing can be written to {settings.out!r}: {error.strerror}. Give another --out."
        ) from error


def _declared(place: str) -> dict[str, Column]:
    """Return the columns that a TOML file declares."""
    try:
        found: dict[str, Any] = tomllib.loads(Path(place).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameterError(f"the file of columns {place!r} cannot be read: {error}.") from error
    return {name: _column(name, settings) for name, settings in found.items()}


def _column(name: str, settings: Any) -> Column:
    kinds = {"number": UnknownNumber, "category": UnknownCategory}
    if not isinstance(settings, dict):
        raise InvalidParameterError(f"column {name!r} must be a table of settings, as [{name}] begins one.")
    known: dict[str, Any] = dict(settings)  # pyright: ignore[reportUnknownArgumentType] - of a file
    unknown = known.pop("unknown", None)
    if unknown is not None and unknown not in kinds:
        raise InvalidParameterError(f"column {name!r}: unknown must be 'number' or 'category'.")
    kind: Any = kinds[unknown] if unknown is not None else Category if "values" in known else Number
    try:
        return kind(**known)
    except TypeError:
        raise InvalidParameterError(
            f"column {name!r} needs values = [...], or lower, upper and bins, or unknown = 'number' or "
            "'category'."
        ) from None


def _fitted(
    settings: SynthesisSettings, table: PrivateTable, columns: dict[str, Column], account: Account | None
) -> TableGenerator:
    delta = account.budget.delta if settings.delta is None and account is not None else settings.delta
    if delta is None:
        raise InvalidParameterError(
            "pass --delta, the chance that the guarantee fails: less than 1 over the number of owners."
        )
    assert settings.epsilon is not None
    return NoisyMarginals(target=settings.target).fit(
        synthetic_rows(table, tuple(columns)),
        domain=columns,
        epsilon=settings.epsilon,
        delta=delta,
        account=account,
        purpose=None if account is None else settings.purpose or "synthetic rows",
        rows_per_unit=table.contribution_bound,
        privacy_unit=table.privacy_unit,
        generator=None if settings.seed is None else seeded(settings.seed),
    )


def _show(
    settings: SynthesisSettings, made: TableGenerator, rows: int, account: Account | None, *, as_json: bool
) -> None:
    facts: dict[str, Any] = {
        "data": Path(str(settings.data)).name,
        "guarantee": made.guarantee.to_dict(),
        "recorded": is_recorded(account),
        "account": made.account,
        "rows": rows,
        "out": settings.out,
        "generator": str(_generator_place(Path(str(settings.out)))),
    }
    if as_json:
        said = record_note(account), delta_note(made.guarantee.delta)
        more = {"settings": settings.given(), "statement": made.statement()}
        show_facts("", facts | more | {"notes": [note for note in said if note is not None]}, as_json=True)
        return
    show_facts(
        str(made.guarantee),
        {name: value for name, value in facts.items() if value is not None},
        as_json=False,
    )
    show_text(f"\n{made.statement()}")
