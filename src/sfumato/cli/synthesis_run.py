# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize`: from settings to a generator, its images, their page and its statement.

Failure    Settings, files, the account and the places that are written to are checked before the charge. A
           folder that holds a generator is refused unchanged: it was paid for. The generator is saved before
           anything is drawn; what fails afterwards says where it is (`paid_generator`). An interrupted run
           can be continued (`interrupted_synthesis`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sfumato import _check, _files
from sfumato.accounting.default_delta import delta_note
from sfumato.cli.devices import device_named
from sfumato.cli.interrupted_synthesis import IMAGES, require_unused, resumed
from sfumato.cli.own_data import OwnData, open_own, read_images
from sfumato.cli.paid_generator import after_payment, require_count
from sfumato.cli.places import account_at, begin_page, require_apart, require_public
from sfumato.cli.settings import TrainSettings, keep
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.cli.synthesis_settings import SynthesisSettings
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import GENERATOR, ImageGenerator
from sfumato.generative.images.image_rows import ImageRows, holdout_images
from sfumato.generative.recipes import METHODS, image_method
from sfumato.ledger import Account
from sfumato.report import write_report
from sfumato.report.pictures import picture_grid
from sfumato.testing import seeded

__all__ = ["run"]

NAMED = ("digits", "mnist", "fashion-mnist", "cifar10")
_OF_DIGITS = {"digits", "mnist"}  # class k is the digit k in both
_METHOD, _COUNT, _SHOWN = "dp-cgan", 10_000, 10
_BEGINS = "diffusion"  # the method that may begin with public images
_GRID = "grid.svg"
_WRITTEN = (GENERATOR, "generator.pt", IMAGES, _GRID, "settings.json", "progress", "training")
Read = TypeVar("Read")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Images:
    """Private images, and public ones to evaluate with."""

    name: str
    rows: Any
    holdout: tuple[Any, Any] | None
    classes: int
    public_size: int


def run(said: SynthesisSettings, *, resume: bool, as_json: bool) -> None:
    """Learn a generator, draw from it, evaluate what was drawn, and show the result."""
    settings = resumed(said, default=_METHOD) if resume else said
    _require(settings)
    with waiting("Loading"):
        data = _own(settings) if settings.is_own else _named(settings)
    account = account_at(settings.ledger, settings.account, purpose=settings.purpose)
    folder = Path(str(settings.out))
    fit = _fit_of(settings, data, account, resume=resume)
    _require_places(settings, resume=resume)
    with after_payment(folder / GENERATOR, f"sfumato.generative.ImageGenerator.load({settings.out!r})"):
        made = fit()
        images, labels = made.sample(settings.count or _COUNT, seed=settings.seed)
        _write_images(folder, images, labels, made)
        measured = None
        if data.holdout is not None and made.classes > 1:
            with waiting("Evaluating"):
                measured = _evaluated(settings, data, made, (images, labels), account)
    _show(settings, data, made, measured, as_json=as_json)


# --- before the run ---------------------------------------------------------------------------------------


def _require(settings: SynthesisSettings) -> None:
    if settings.data is None:
        raise InvalidParameterError("pass what to learn: `sfumato synthesize digits --epsilon 10`.")
    if settings.epsilon is None:
        raise InvalidParameterError("pass how private everything that is generated must be: --epsilon.")
    if settings.out is None:
        raise InvalidParameterError("pass --out, a folder for the generator and its images.")
    for name in ("domain", "target", "type", "privacy_unit", "contribution_bound"):
        if getattr(settings, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidParameterError(f"{flag} is for a CSV or Parquet file: leave it out.")
    require_count(settings.count)
    device_named(settings.device)
    for name in ("audit", "classes", "public_size", "image_size"):
        if getattr(settings, name) is not None:
            _check.count(**{name: getattr(settings, name)})
    if settings.method is not None and settings.method not in METHODS:
        raise InvalidParameterError(f"unknown method {settings.method!r}. Use one of: {', '.join(METHODS)}.")
    if settings.public is not None and settings.method != _BEGINS:
        raise InvalidParameterError(f"--public is for --method {_BEGINS}, which begins with public images.")


def _named(settings: SynthesisSettings) -> _Images:
    from sfumato.datasets import load

    given = [
        f"--{name.replace('_', '-')}"
        for name in ("label", "classes", "image_size", "public_size", "evaluation")
        if getattr(settings, name) is not None
    ]
    if given:
        raise InvalidParameterError(f"{', '.join(given)} is not for a public data set: leave it out.")
    if settings.data not in NAMED:
        raise InvalidParameterError(
            f"unknown data {settings.data!r}. Use one of: {', '.join(NAMED)}; or an .npz file; or a folder "
            "of images."
        )
    found = load(settings.data)
    return _Images(
        name=settings.data,
        rows=found,
        holdout=holdout_images(found),
        classes=found.num_classes,
        public_size=found.public_size,
    )


def _own(settings: SynthesisSettings) -> _Images:
    """Return the images of an .npz file or a folder, by the reader of `sfumato train`."""
    names = ("data", "label", "classes", "image_size", "public_size", "evaluation")
    public = TrainSettings(**{name: getattr(settings, name) for name in names})
    own = _read(settings.evaluation, lambda: open_own(public))
    if own.by_owner:
        raise InvalidParameterError(
            "these images have owners, who may have several. A generator protects one image: leave the array "
            "'owners' out if that is what you mean to protect."
        )
    return _Images(
        name=own.name,
        rows=_read(settings.data, lambda: read_images(own.rows)),
        holdout=None if own.evaluation is None else _holdout(read_images(own.evaluation), own),
        classes=own.num_classes,
        public_size=own.public_size,
    )


def _public(settings: SynthesisSettings, data: _Images) -> Any:
    """Return the public images to begin with, if there are any; with labels if classes may be the same."""
    place = settings.public
    if place in NAMED:
        from sfumato.datasets import load

        found = load(place)
        same = _same_classes(settings, data, place)
        rows = ImageRows.of(found, classes=data.classes, public_size=1, conditional=same)
        return (rows.images, rows.labels) if same else rows.images
    if place is None:
        return None
    names = ("label", "classes", "image_size")
    given = {name: getattr(settings, name) for name in names}
    own = _read(place, lambda: open_own(TrainSettings(data=place, public_size=1, **given)))
    return _read(place, lambda: read_images(own.rows))


def _same_classes(settings: SynthesisSettings, data: _Images, public: str) -> bool:
    """Whether labels of a named set fit: for own data of as many classes, or a set of the same classes."""
    if settings.is_own:
        return data.classes == 10  # that of each named set
    return settings.data == public or {settings.data, public} <= _OF_DIGITS


def _read(place: str | None, read: Callable[[], Read]) -> Read:
    try:
        return read()
    except QueryFailedError:  # whose words are those of a run that was charged
        raise InvalidParameterError(f"the arrays in {place!r} cannot be read. Nothing was spent.") from None


def _holdout(public: tuple[Any, Any], own: OwnData) -> tuple[Any, Any]:
    """Return public images and labels in the shape of the private ones; raise now if they do not fit."""
    known = ImageRows.of(public, classes=own.num_classes, public_size=1, conditional=True)
    if known.shape != own.shape or len(known.images) == 0:
        raise InvalidParameterError(
            f"the images of --evaluation must have the shape {list(own.shape)}, as the private ones have, "
            f"and at least one label that is a class; theirs is {list(known.shape)}."
        )
    return known.images, known.labels


def _fit_of(
    settings: SynthesisSettings, data: _Images, account: Account | None, *, resume: bool
) -> Callable[[], ImageGenerator]:
    """Return what makes the generator; of a run that was interrupted after that, what it saved."""
    if resume and (Path(str(settings.out)) / GENERATOR).exists():
        made = ImageGenerator.load(str(settings.out))
        return lambda: made
    terms = _terms(settings, data, account, resume=resume)
    gpu = FitSettings.of(terms).where().type == "cuda"
    method = image_method(settings.method or _METHOD, public_size=data.public_size, gpu=gpu)
    return lambda: method.fit(data.rows, **terms)


def _terms(
    settings: SynthesisSettings, data: _Images, account: Account | None, *, resume: bool
) -> FitKeywords:
    found: FitKeywords = {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "classes": data.classes,
        "public_size": data.public_size,
        "public": _public(settings, data),
        "account": account,
        "purpose": None if account is None else settings.purpose or f"synthetic images of {data.name}",
        "folder": settings.out,
        "preview": Path(str(settings.out)) / "progress",
        "resume": resume,
        "device": settings.device,
        "generator": None if settings.seed is None else seeded(settings.seed),
    }
    if settings.audit is not None:
        from sfumato.audit import Canaries

        found["audit"] = Canaries(count=settings.audit)
    return found


def _require_places(settings: SynthesisSettings, *, resume: bool) -> None:
    folder = Path(str(settings.out))
    if not resume:
        require_unused(folder)
    private = settings.data if settings.is_own else None
    require_public(private, {"--evaluation": settings.evaluation, "--public": settings.public})
    require_apart(
        [("--out", folder), *(("--out", folder / name) for name in _WRITTEN), ("--report", settings.report)],
        {
            "the private data": private,
            "the data of --evaluation": settings.evaluation,
            "the images of --public": settings.public,
            "the ledger": settings.ledger,
        },
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".tried").touch()
        (folder / ".tried").unlink()
        if not resume:
            keep(settings, folder)
    except OSError as error:
        raise InvalidParameterError(
            f"nothing can be written to {settings.out!r}: {error.strerror}. Give another --out."
        ) from error
    if settings.report is not None:
        begin_page(settings.report)


# --- after the run ----------------------------------------------------------------------------------------


def _write_images(folder: Path, images: Any, labels: Any, made: ImageGenerator) -> None:
    arrays = {"x": images.numpy(), "y": labels.numpy()}
    _files.write_whole(folder / IMAGES, lambda file: np.savez_compressed(file, **arrays))
    if images.shape[1] in (1, 3):
        rows = {f"{k}": images[labels == k][:_SHOWN].numpy() for k in range(made.classes)}
        grid = picture_grid(rows, title="Generated images")
        _files.write_whole(folder / _GRID, grid.encode())


def _evaluated(
    settings: SynthesisSettings,
    data: _Images,
    made: ImageGenerator,
    drawn: tuple[Any, Any],
    account: Account | None,
) -> Any:
    from sfumato.generative.evaluation import EvaluationSettings, evaluate, evaluation_report

    assert data.holdout is not None
    device = FitSettings(epsilon=1.0, device=settings.device).where()
    how = EvaluationSettings(device=str(device), t_sne=settings.report is not None)
    found = evaluate(drawn, data.holdout, classes=made.classes, settings=how)
    if settings.report is not None:
        page = evaluation_report(
            found,
            title=f"Synthetic images of {data.name}",
            data=data.name,
            statement=made.statement(),
            holdout=f"the test images of {data.name}"
            if not settings.is_own
            else f"the images in {settings.evaluation}",
            guarantee=made.guarantee,
            settings={name.replace("_", " "): value for name, value in settings.given().items()},
            study_note=made.study_note,
            ledger_statement=None if account is None else account.statement().text,
        )
        write_report(settings.report, page)
    return found


def _show(
    settings: SynthesisSettings, data: _Images, made: ImageGenerator, measured: Any, *, as_json: bool
) -> None:
    facts: dict[str, Any] = {
        "data": data.name,
        "method": made.method,
        "guarantee": made.guarantee.to_dict(),
        "recorded": made.account is not None and made.record_note is None,
        "account": made.account,
        "out": settings.out,
        "report": settings.report,
    }
    if as_json:
        said = made.record_note, made.study_note, delta_note(made.guarantee.delta, data.public_size)
        more: dict[str, Any] = {"settings": settings.given(), "statement": made.statement()}
        more["findings"] = list(made.findings)
        more["notes"] = [note for note in said if note is not None]
        show_facts("", facts | more | {"evaluation": measured and measured.to_dict()}, as_json=True)
        return
    shown = {name: value for name, value in facts.items() if value is not None}
    show_facts(str(made.guarantee), shown, as_json=False)
    if measured is not None:
        show_text(f"\n{measured}")
    show_text(f"\n{made.statement()}")
