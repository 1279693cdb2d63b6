# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato card`: the privacy card of a run, a generator, an account or a release.

Failure    A run that is not finished, and a file that was changed after it was written, have no card. No file
           that belongs to a run or a ledger is replaced by a card.
"""

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato import _files, _seal
from sfumato._torch import require_torch
from sfumato.cli.completion_values import accounts
from sfumato.cli.options import LedgerAt
from sfumato.cli.project.defaults import ledger_at
from sfumato.cli.show import show_text, waiting
from sfumato.errors import InvalidParameterError

if TYPE_CHECKING:
    from sfumato.report import PrivacyCard

__all__ = ["Format", "command"]

_HUGGING_FACE = "_sfumato"  # in the output folder of a trainer, `integrations.hugging_face`


class Format(enum.StrEnum):
    """How a card is written."""

    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"
    METADATA = "metadata"
    MODEL_CARD = "model-card"


_WRITTEN: dict[Format, Callable[["PrivacyCard"], str]] = {
    Format.MARKDOWN: lambda card: card.to_markdown(),
    Format.HTML: lambda card: card.to_html(),
    Format.JSON: lambda card: card.to_json(),
    Format.METADATA: lambda card: card.header(),
    Format.MODEL_CARD: lambda card: card.to_model_card(),
}


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="The folder of a finished run or generator, or the file of a generator of rows.",
            show_default=False,
        ),
    ] = None,
    *,
    account: Annotated[
        str | None,
        typer.Option(help="An account of the ledger, in place of TARGET.", autocompletion=accounts),
    ] = None,
    release: Annotated[
        int | None, typer.Option(help="One release of the account, by its number in `sfumato ledger show`.")
    ] = None,
    ledger: LedgerAt = None,
    written_as: Annotated[
        Format, typer.Option("--format", help="How to write it; metadata is the header of a model card.")
    ] = Format.MARKDOWN,
    title: Annotated[str | None, typer.Option(help="The title; from what was released, if none.")] = None,
    out: Annotated[str | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Write the privacy card of what was released: who is protected, how well, and what is not."""
    if (target is None) == (account is None):
        raise InvalidParameterError(
            "say what the card is about: TARGET, a folder or file; or --account, in a ledger."
        )
    if release is not None and account is None:
        raise InvalidParameterError("--release is a number in an account: pass --account, too.")
    book = ledger_at(ledger) if target is None else ""
    place = None if out is None else _place(out, target, book)
    with waiting("Reading"):
        made = _of_ledger(book, str(account), release, title) if target is None else _of(target, title)
        text = _WRITTEN[written_as](made)
    if place is None:
        show_text(text.rstrip("\n"))
        return
    _write(place, text)
    show_text(f"The card is in {place}.")


def _of_ledger(ledger: str, account: str, release: int | None, title: str | None) -> "PrivacyCard":
    from sfumato.ledger import Ledger

    return Ledger(ledger, create=False).account(account).card(release=release, title=title)


# --- folders and files ------------------------------------------------------------------------------------


def _of(target: str, title: str | None) -> "PrivacyCard":
    place = Path(target)
    if place.is_file():
        return _of_rows(place, title)
    if not place.is_dir():
        raise InvalidParameterError(
            f"there is no folder or file {target!r}. For an account of a ledger pass --account."
        )
    for folder in (place, place / _HUGGING_FACE):
        for name, read in _FOLDERS.items():
            if (folder / name).exists():
                return read(folder, title)
    raise InvalidParameterError(f"{target!r} holds no finished run and no generator, so there is no card.")


def _of_answers(place: Path, title: str | None) -> "PrivacyCard":
    from sfumato.pate.cards import folder_card

    return folder_card(place, title=title)


def _of_images(place: Path, title: str | None) -> "PrivacyCard":
    require_torch()
    from sfumato.generative.generator import GENERATOR, ImageGenerator

    try:
        facts = json.loads((place / GENERATOR).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"the generator in {str(place)!r} cannot be read ({type(error).__name__}). Restore it."
        ) from None
    _require_sealed(facts, place)
    return ImageGenerator.load(place).card(title=title)


def _of_rows(place: Path, title: str | None) -> "PrivacyCard":
    from sfumato.generative.tables.table_generator import TableGenerator, saved_facts

    _require_sealed(saved_facts(place), place)
    return TableGenerator.load(place).card(title=title)


def _require_sealed(facts: Any, place: Path) -> None:
    if not isinstance(facts, dict) or not _seal.fits(facts):  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidParameterError(
            f"the generator in {str(place)!r} was changed after it was made, or is of an early version of "
            "sfumato: it does not fit its fingerprint. Restore it."
        )


def _of_run(place: Path, title: str | None) -> "PrivacyCard":
    require_torch()
    from sfumato.labels.label_card import folder_card
    from sfumato.training.run import TrainingRun, unchanged

    facts, _ = unchanged(place)
    if "method" in facts:
        return folder_card(place, title=title)
    return TrainingRun.load(place).card(title=title)


def _of_unfinished(place: Path, title: str | None) -> "PrivacyCard":
    resume = "trainer.train(resume_from_checkpoint=True)" if place.name == _HUGGING_FACE else "--resume"
    raise InvalidParameterError(
        f"the run in {str(place)!r} is not finished, so it has no card yet. Finish it with {resume}."
    )


# In this order: a folder of a labeling job has a run.json, too.
_FOLDERS: dict[str, Callable[[Path, str | None], "PrivacyCard"]] = {
    "generator.json": _of_images,
    "answers.json": _of_answers,
    "run.json": _of_run,
    "checkpoint.pt": _of_unfinished,
    "training": _of_unfinished,
    "model.pt": _of_unfinished,
}


# --- writing ----------------------------------------------------------------------------------------------


def _place(out: str, target: str | None, ledger: str) -> Path:
    """Return where to write; raise if something that is read would be replaced."""
    place = Path(out)
    if place.is_dir():
        raise InvalidParameterError(f"--out {out!r} is a folder. Give a file, such as {place / 'CARD.md'}.")
    read = Path(ledger) if target is None else Path(target)
    within = read.is_dir() and place.resolve().is_relative_to(read.resolve())
    if place.exists() and (within or place.resolve() == read.resolve()):
        raise InvalidParameterError(
            f"{out!r} exists, and belongs to what the card is about. Give another --out."
        )
    return place


def _write(place: Path, text: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _files.write_whole(place, text.encode())
    except OSError as error:
        raise InvalidParameterError(
            f"the card {str(place)!r} cannot be written: {error.strerror}. Give another --out."
        ) from error
