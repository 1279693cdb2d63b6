# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato init`: a folder with a ledger, a settings file, a made-up table and a first script.

Guarantee  No file is overwritten: a file that is there is named, and nothing is made. Lines are only added to
           a .gitignore. What was made so far is taken away again if something fails.
Edge cases A ledger that is named by `--ledger` or SFUMATO_LEDGER may be there: the account is opened in it.
           Of a new ledger file and the table, other users of the machine can read nothing.
"""

import contextlib
import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato._extras import how_to_install
from sfumato.accounting.default_delta import delta_note
from sfumato.cli.options import Json
from sfumato.cli.project import templates
from sfumato.cli.project.defaults import DEFAULT_LEDGER, LEDGER_VARIABLE
from sfumato.cli.project.settings_file import FILE_NAME
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Budget

__all__ = ["command"]

_OWN_ONLY = 0o600  # read and written by the owner alone


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of the project, which is made if needed. Default: this one.", show_default=False
        ),
    ] = Path("."),
    *,
    name: Annotated[
        str | None, typer.Option(help="The name of the account. Default: the name of the folder.")
    ] = None,
    privacy_unit: Annotated[
        str, typer.Option(help="Who is protected: the column of the data that says whose a row is.")
    ] = "client_id",
    epsilon: Annotated[
        float, typer.Option(help="The epsilon of the budget: the most that may be spent.")
    ] = 1.0,
    delta: Annotated[
        float, typer.Option(help="The delta of the budget; 0 for pure differential privacy.")
    ] = 1e-6,
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar=LEDGER_VARIABLE,
            help="Where the ledger is: a file, or a postgresql:// address. Default: ledger.db in the folder.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a project: a ledger with one account, a settings file, and a script that runs as it is.

    The script publishes two numbers about made-up people. No file is ever overwritten.
    """
    account = name if name is not None else folder.resolve().name or "study"
    _require_column(privacy_unit)
    budget = Budget(epsilon=epsilon, delta=delta)
    place = _ledger_of(folder, ledger)
    _require_nothing_there(folder, place, is_named=ledger is not None)
    texts = {
        FILE_NAME: templates.settings_text(ledger=place, name=account, unit=privacy_unit),
        templates.SCRIPT: templates.script(ledger=place, epsilon=epsilon),
        templates.EXAMPLE: templates.example_table(privacy_unit),
    }
    with waiting("Making the project"), _undone_on_failure() as made:
        _make(folder, texts, made)
        _open_account(folder, place, account, privacy_unit, budget)
        added, notes = _ignore(folder)
    note = delta_note(delta) if delta > 0 else None
    facts = {
        "folder": str(folder),
        "ledger": place,
        "account": account,
        "privacy_unit": privacy_unit,
        "budget_epsilon": epsilon,
        "budget_delta": delta,
        "files": list(texts),
        "added_to_gitignore": added,
        "notes": [*([] if note is None else [note]), *notes, *_missing()],
        "next": _next(folder, account, epsilon / 10),
    }
    _show(facts, as_json=as_json)


# --- what must hold before --------------------------------------------------------------------------------


def _require_column(unit: str) -> None:
    if unit.strip().casefold() in templates.COLUMNS:
        raise InvalidParameterError(
            f"--privacy-unit {unit} is the name of another column of the made-up table. Choose the column "
            "that says whose a row is, such as client_id."
        )


def _ledger_of(folder: Path, said: str | None) -> str:
    """Return the place of the ledger as the settings file has it: relative to the folder, or an address."""
    if said is None:
        return DEFAULT_LEDGER
    if "://" in said:
        _require_no_password(said)
        return said
    if Path(said).is_absolute():
        return said
    return Path(os.path.relpath(Path(said).absolute(), folder.absolute())).as_posix()


def _require_no_password(address: str) -> None:
    from sfumato.cli.project.passwords import has_password

    if has_password(address):
        raise InvalidParameterError(
            f"the address of the ledger has a password, which would be written into {FILE_NAME}. Leave the "
            "password out and put it into ~/.pgpass or the variable PGPASSWORD."
        )


def _require_nothing_there(folder: Path, ledger: str, *, is_named: bool) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise InvalidParameterError(f"{str(folder)!r} is a file. Give the name of a folder.")
    names = [FILE_NAME, templates.SCRIPT, templates.EXAMPLE]
    there = [str(folder / name) for name in names if os.path.lexists(folder / name)]
    if there:
        raise InvalidParameterError(
            f"{', '.join(there)} is there already. It was left as it is, and nothing was made: give another "
            "folder."
        )
    if not is_named and os.path.lexists(folder / ledger):
        raise InvalidParameterError(
            f"there is a ledger at {str(folder / ledger)!r} already, and nothing was made. To open the "
            f"account in it, pass --ledger {folder / ledger}."
        )


# --- what is made -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _undone_on_failure() -> Generator[list[Path]]:
    """Give a list for what is made; if something fails, take it away again, last first."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # a folder with a file of somebody else stays
                path.rmdir() if path.is_dir() else path.unlink()
        raise


def _make(folder: Path, texts: dict[str, str], made: list[Path]) -> None:
    try:
        for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
            missing.mkdir()
            made.append(missing)
        for name, text in texts.items():
            mode = _OWN_ONLY if name == templates.EXAMPLE else 0o666
            with open(
                os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "w", encoding="utf-8"
            ) as file:
                made.append(folder / name)
                file.write(text)
    except OSError as error:
        raise InvalidParameterError(
            f"the project cannot be made in {str(folder)!r}: {error.strerror}. Give another folder."
        ) from error


def _open_account(folder: Path, place: str, name: str, unit: str, budget: Budget) -> None:
    from sfumato.ledger import Ledger  # brings the database

    is_address = "://" in place
    where = place if is_address else os.path.normpath(folder / place)
    is_new = not is_address and not Path(where).exists()
    try:
        Ledger(where).open(name, privacy_unit=unit, budget=budget)
    except BaseException:
        if is_new:
            Path(where).unlink(missing_ok=True)  # it has no account, or was not made
        raise


def _ignore(folder: Path) -> tuple[list[str], list[str]]:
    """Add to .gitignore what is missing there; return the lines, and a note if they could not be added."""
    place = folder / ".gitignore"
    try:
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        text, added = templates.with_lines(before)
        if added:
            with place.open("a", encoding="utf-8") as file:
                file.write(text[len(before) :])
    except (OSError, UnicodeDecodeError) as error:
        lines = " ".join(templates.IGNORED)
        return [], [f"{str(place)!r} could not be changed ({type(error).__name__}). Add to it: {lines}"]
    return added, []


# --- what is shown ----------------------------------------------------------------------------------------


def _missing() -> list[str]:
    if find_spec("ibis") is not None:
        return []
    return [f"files are read with the extra tables. {how_to_install('tables')}"]


def _next(folder: Path, account: str, epsilon: float) -> list[str]:
    there = [] if folder.resolve() == Path.cwd() else [f"cd {_word(str(folder))}"]
    return [
        *there,
        f"python {templates.SCRIPT}",
        f"sfumato stats {templates.EXAMPLE} median income --epsilon {epsilon:.3g}",
        f"sfumato ledger statement {_word(account)}",
    ]


def _word(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    shown = {name: value for name, value in facts.items() if as_json or (name != "next" and value != [])}
    show_facts("" if as_json else "A new project", shown, as_json=as_json)
    if not as_json:
        show_text("\nNext:\n" + "\n".join(f"  {line}" for line in facts["next"]))
