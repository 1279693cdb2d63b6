# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize` for a CSV or Parquet file: from settings to synthetic rows and their page.

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

Of a CSV file without declarations the types of columns are bought, too: "any" instead of "number".

Guarantee  The evaluation reads synthetic rows, and those of the holdout, which are not protected.
Failure    Settings, files, the account and the places that are written to are checked before the charge. A
           holdout in which classifiers find nothing to predict leaves the other figures. The generator is
           saved before anything is drawn; what fails afterwards says where it is (`paid_generator`).
"""

import tomllib
from pathlib import Path
from typing import Any

from sfumato import _check, _files
from sfumato.accounting.default_delta import DELTA_OF_ANY_SIZE, default_delta, delta_note
from sfumato.cli.column_types import column_types
from sfumato.cli.paid_generator import AfterPaymentError, after_payment, require_count
from sfumato.cli.places import account_at, begin_page, require_apart, require_public
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.cli.synthesis_settings import SynthesisSettings
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation import Evaluation, evaluate, evaluation_report
from sfumato.generative.tables.bought_domain import Column, UnknownCategory, UnknownColumn, UnknownNumber
from sfumato.generative.tables.domain import Category, Field, Number
from sfumato.generative.tables.noisy_marginals import NoisyMarginals
from sfumato.generative.tables.table_generator import TableGenerator
from sfumato.ledger import Account
from sfumato.ledger.recorded import is_recorded, record_note
from sfumato.mechanisms.random import study_note
from sfumato.private.synthetic_rows import bought_columns, synthetic_rows
from sfumato.report import write_report
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

__all__ = ["run"]

_IMAGES_ONLY = ("method", "label", "classes", "image_size", "public", "device", "audit")
_NOT_SCORED = (
    "No classifier was scored: --target {0} has no categories, or no public row has one that is known. To "
    "predict a column of numbers, give both files a column that says whether the number is above a "
    "threshold, and pass its name as --target."
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
    holdout = None if settings.evaluation is None else _public(settings, tuple(columns))
    account = account_at(settings.ledger, settings.account, purpose=settings.purpose)
    if settings.report is not None:
        begin_page(settings.report)
    made = _fitted(settings, table, columns, account)
    saved = _saved(settings, made)
    with after_payment(saved, f"sfumato.generative.TableGenerator.load({str(saved)!r})"):
        rows = made.sample(settings.count, seed=settings.seed)
        _write_rows(Path(str(settings.out)), rows)
        found = None
        if holdout is not None or settings.report is not None:
            with waiting("Evaluating"):
                found = _evaluated(settings, made, rows, holdout)
        if found is not None and settings.report is not None:
            write_report(settings.report, _page(settings, made, found, account))
    notes = _notes(settings, columns, made, account)
    if holdout is not None and settings.target is not None and found is not None and not found.scores:
        notes.append(_NOT_SCORED.format(settings.target))
    _show(settings, made, len(rows), account, found, notes=notes, as_json=as_json)


def _saved(settings: SynthesisSettings, made: TableGenerator) -> Path:
    """Save the generator before anything is drawn; return where it is."""
    place = _generator_place(Path(str(settings.out)))
    try:
        made.save(place)
    except OSError as error:
        raise AfterPaymentError(
            f"the generator is paid for, but cannot be written to {str(place)!r}: {error.strerror}."
        ) from error
    return place


def _write_rows(place: Path, rows: Any) -> None:
    if place.suffix == ".parquet":
        _files.write_whole(place, lambda file: rows.to_parquet(file, index=False))
    else:
        _files.write_whole(place, rows.to_csv(index=False).encode())


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
    require_count(settings.count)
    if settings.public_size is not None:
        _check.count(public_size=settings.public_size)
    if settings.contribution_bound is not None:
        _check.count(contribution_bound=settings.contribution_bound)
    if settings.contribution_bound is not None and settings.privacy_unit is None:
        raise InvalidParameterError("--contribution-bound is for a table with --privacy-unit.")
    _require_place(settings)


def _require_place(settings: SynthesisSettings) -> None:
    place = Path(settings.out or "")
    if place.suffix not in _WRITTEN:
        given = "" if settings.out is None else f" {settings.out!r} was given."
        raise InvalidParameterError(
            f"pass --out, a file of synthetic rows that ends in .parquet or .csv.{given}"
        )
    for each in (place, _generator_place(place)):
        if each.exists():
            raise InvalidParameterError(f"the file {str(each)!r} exists. Give another --out.")
    require_public(settings.data, {"--evaluation": settings.evaluation})
    require_apart(
        [("--out", place), ("--out", _generator_place(place)), ("--report", settings.report)],
        {
            "the private data": settings.data,
            "the rows of --evaluation": settings.evaluation,
            "the file of --domain": settings.domain,
            "the ledger": settings.ledger,
        },
    )
    try:
        _files.part_of(place).touch()
        _files.part_of(place).unlink()
    except OSError as error:
        raise InvalidParameterError(
            f"nothing can be written to {settings.out!r}: {error.strerror}. Give another --out."
        ) from error


def _declared(place: str) -> dict[str, Column]:
    """Return the columns that a TOML file declares."""
    if not Path(place).is_file():
        raise InvalidParameterError(f"there is no file {place!r}, which --domain names.")
    try:
        found: dict[str, Any] = tomllib.loads(Path(place).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameterError(f"the file of columns {place!r} cannot be read: {error}.") from error
    return {name: _column(name, settings) for name, settings in found.items()}


def _column(name: str, settings: Any) -> Column:
    kinds = {"number": UnknownNumber, "category": UnknownCategory, "any": UnknownColumn}
    if not isinstance(settings, dict):
        raise InvalidParameterError(f"column {name!r} must be a table of settings, as [{name}] begins one.")
    known: dict[str, Any] = dict(settings)  # pyright: ignore[reportUnknownArgumentType] - of a file
    unknown = known.pop("unknown", None)
    if unknown is not None and unknown not in kinds:
        raise InvalidParameterError(f"column {name!r}: unknown must be 'number', 'category' or 'any'.")
    kind: Any = kinds[unknown] if unknown is not None else Category if "values" in known else Number
    takes: tuple[str, ...] = tuple(kind.__dataclass_fields__)
    odd = [key for key in known if key not in takes]
    if odd:
        raise InvalidParameterError(
            f"column {name!r} has no setting {odd[0]!r}. Here it takes: {', '.join(takes)}."
        )
    try:
        return kind(**known)
    except TypeError:
        raise InvalidParameterError(
            f"column {name!r} needs values = [...], or lower, upper and bins, or unknown = 'number', "
            "'category' or 'any'."
        ) from None
    except InvalidParameterError as error:
        raise InvalidParameterError(f"column {name!r} of the file of --domain: {error}") from error


def _public(settings: SynthesisSettings, names: tuple[str, ...]) -> Any:
    """Return the rows of the holdout; raise now if they do not fit."""
    import pandas as pd  # a second to import

    place = Path(str(settings.evaluation))
    if not place.is_file():
        raise InvalidParameterError(f"there is no file {settings.evaluation!r}, which --evaluation names.")
    try:
        found = pd.read_parquet(place) if place.suffix == ".parquet" else pd.read_csv(place)
    except Exception as error:  # of any kind of file; it is public
        raise InvalidParameterError(f"the holdout {settings.evaluation!r} cannot be read: {error}") from error
    missing = [name for name in names if name not in found.columns]
    if missing or len(found) < 2:
        lacks = f"the column {missing[0]!r}" if missing else "at least two rows"
        raise InvalidParameterError(f"the holdout {settings.evaluation!r} needs {lacks}.")
    return found


def _evaluated(settings: SynthesisSettings, made: TableGenerator, rows: Any, holdout: Any) -> Evaluation:
    """Evaluate rows; without the target where it is no category, or no public row has one that is known."""
    try:
        return evaluate(rows, holdout, columns=made.domain, target=settings.target)
    except InvalidParameterError:
        if settings.target is None:
            raise
        return evaluate(rows, holdout, columns=made.domain)


def _page(
    settings: SynthesisSettings, made: TableGenerator, found: Evaluation, account: Account | None
) -> str:
    name = Path(str(settings.data)).name
    target = made.domain.columns.get(settings.target or "")
    return evaluation_report(
        found,
        title=f"Synthetic rows of {name}",
        data=name,
        statement=made.statement(),
        holdout=None if settings.evaluation is None else f"the rows in {settings.evaluation}",
        guarantee=made.guarantee,
        class_names=[str(v) for v in target.values]
        if found.scores and isinstance(target, Category)
        else None,
        settings={name.replace("_", " "): value for name, value in settings.given().items()},
        study_note=None if settings.seed is None else study_note(seeded(settings.seed)),
        ledger_statement=None if account is None else account.statement().text,
    )


def _fitted(
    settings: SynthesisSettings, table: PrivateTable, columns: dict[str, Column], account: Account | None
) -> TableGenerator:
    assert settings.epsilon is not None
    return NoisyMarginals(target=settings.target).fit(
        synthetic_rows(table, columns),
        domain=columns,
        epsilon=settings.epsilon,
        delta=_delta(settings, account),
        account=account,
        purpose=None if account is None else settings.purpose or "synthetic rows",
        rows_per_unit=table.contribution_bound,
        privacy_unit=table.privacy_unit,
        generator=None if settings.seed is None else seeded(settings.seed),
    )


def _delta(settings: SynthesisSettings, account: Account | None) -> float:
    """Return the delta: the given one, that of the account, or one that public facts alone decide."""
    if settings.delta is not None:
        return settings.delta
    if account is not None:
        return account.budget.delta
    return DELTA_OF_ANY_SIZE if settings.public_size is None else default_delta(settings.public_size)


def _notes(
    settings: SynthesisSettings, columns: dict[str, Column], made: TableGenerator, account: Account | None
) -> list[str]:
    """Return what was decided for the user, from public facts and from what was released."""
    found: list[str] = []
    if settings.delta is None and settings.public_size is None and account is None:
        found.append(
            f"No delta was given: {DELTA_OF_ANY_SIZE:g} is used. It is below one over the number of owners "
            "in any table of less than a billion. With --public-size, a number of owners that may be known, "
            "or with --delta there is less noise."
        )
    bought = [name for name, column in columns.items() if isinstance(column, UnknownColumn)]
    if bought:
        types = ", ".join(f"{name} ({_type_of(made.domain.columns[name])})" for name in bought)
        found.append(
            f"The types of these columns were not declared, so a part of epsilon bought them: {types}. A "
            "wrong type, and values that the noise hides, are cured by --type or, better, by --domain."
        )
    return found


def _type_of(released: Field) -> str:
    return "text" if isinstance(released, Category) else "integer" if released.whole else "number"


def _show(
    settings: SynthesisSettings,
    made: TableGenerator,
    rows: int,
    account: Account | None,
    found: Evaluation | None,
    *,
    notes: list[str],
    as_json: bool,
) -> None:
    facts: dict[str, Any] = {
        "data": Path(str(settings.data)).name,
        "guarantee": made.guarantee.to_dict(),
        "recorded": is_recorded(account),
        "account": made.account,
        "rows": rows,
        "out": settings.out,
        "generator": str(_generator_place(Path(str(settings.out)))),
        "report": settings.report,
    }
    if as_json:
        more: dict[str, Any] = {"settings": settings.given(), "statement": made.statement()}
        more["evaluation"] = None if found is None else found.to_dict()
        said = record_note(account), delta_note(made.guarantee.delta, settings.public_size), *notes
        show_facts("", facts | more | {"notes": [note for note in said if note is not None]}, as_json=True)
        return
    show_facts(
        str(made.guarantee),
        {name: value for name, value in facts.items() if value is not None},
        as_json=False,
    )
    if found is not None:
        show_text(f"\n{found}")
    show_text(f"\n{made.statement()}")
    for note in notes:
        show_text(f"\n{note}")
