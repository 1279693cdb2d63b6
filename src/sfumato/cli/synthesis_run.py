# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize`: from settings to a generator, its images, their page and its statement.

Failure    Settings, files, the account and the places that are written to are checked before the charge. A
           folder that holds a generator is refused unchanged: it was paid for.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import _check, _files
from sfumato.accounting.default_delta import delta_note
from sfumato.cli.places import account_at, begin_page
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.cli.synthesis_settings import SynthesisSettings
from sfumato.errors import InvalidParameterError
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.image_rows import ImageRows, holdout_images
from sfumato.generative.recipes import METHODS, image_method
from sfumato.ledger import Account
from sfumato.report import write_report
from sfumato.report.pictures import picture_grid
from sfumato.testing import seeded

__all__ = ["run"]

NAMED = ("digits", "mnist", "fashion-mnist", "cifar10")
_METHOD, _COUNT, _SHOWN = "dp-cgan", 10_000, 10


@dataclass(frozen=True, kw_only=True, eq=False)
class _Images:
    """Private images, and public ones to evaluate with."""

    name: str
    rows: Any
    holdout: tuple[Any, Any] | None
    classes: int
    public_size: int


def run(settings: SynthesisSettings, *, as_json: bool) -> None:
    """Learn a generator, draw from it, evaluate what was drawn, and show the result."""
    _require(settings)
    with waiting("Loading"):
        data = _own(settings) if settings.is_own else _named(settings)
    account = account_at(settings.ledger, settings.account)
    terms = _terms(settings, data, account)
    checked = FitSettings.of(terms)
    method = image_method(
        settings.method or _METHOD, public_size=data.public_size, gpu=checked.where().type == "cuda"
    )
    _require_places(settings)
    made = method.fit(data.rows, **terms)
    images, labels = made.sample(settings.count or _COUNT, seed=settings.seed)
    _write_images(settings, images, labels, made)
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
    for name in ("count", "audit", "classes", "public_size"):
        if getattr(settings, name) is not None:
            _check.count(**{name: getattr(settings, name)})
    if settings.method is not None and settings.method not in METHODS:
        raise InvalidParameterError(f"unknown method {settings.method!r}. Use one of: {', '.join(METHODS)}.")


def _named(settings: SynthesisSettings) -> _Images:
    from sfumato.datasets import load

    given = [
        f"--{name.replace('_', '-')}"
        for name in ("classes", "public_size", "holdout")
        if getattr(settings, name) is not None
    ]
    if given:
        raise InvalidParameterError(f"{', '.join(given)} is not for a public data set: leave it out.")
    if settings.data not in NAMED:
        raise InvalidParameterError(
            f"unknown data {settings.data!r}. Use one of: {', '.join(NAMED)}; or an .npz file."
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
    assert settings.data is not None
    if settings.classes is None or settings.public_size is None:
        raise InvalidParameterError(
            "pass --classes and --public-size with your own file: both are public, so they are never read "
            "from private rows."
        )
    rows = _arrays(settings.data)
    return _Images(
        name=Path(settings.data).name,
        rows=rows,
        holdout=None if settings.holdout is None else _holdout(settings, rows[0]),
        classes=settings.classes,
        public_size=settings.public_size,
    )


def _arrays(place: str) -> tuple[Any, Any]:
    """Return images and labels of an .npz file, or raise without quoting what was read."""
    if Path(place).suffix != ".npz" or not Path(place).exists():
        raise InvalidParameterError(f"{place!r} is no .npz file. Save one by np.savez(file, x=..., y=...).")
    try:
        with np.load(place, allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except Exception:  # of a damaged file: its message may quote it
        pass
    raise InvalidParameterError(f"{place!r} cannot be read: it needs the arrays x and y, without objects.")


def _holdout(settings: SynthesisSettings, private: Any) -> tuple[Any, Any]:
    """Return public images and labels in the shape of the private ones; raise now if they do not fit."""
    known = ImageRows.of(
        _arrays(str(settings.holdout)), classes=settings.classes, public_size=1, conditional=True
    )
    shape = private.shape[1:] if private.ndim == 4 else (1, *private.shape[1:])
    if known.shape != tuple(shape) or len(known.images) == 0:
        raise InvalidParameterError(
            f"the images of --holdout must have the shape {list(shape)}, as the private ones have, and at "
            f"least one label that is a class; theirs is {list(known.shape)}."
        )
    return known.images, known.labels


def _terms(settings: SynthesisSettings, data: _Images, account: Account | None) -> FitKeywords:
    found: FitKeywords = {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "classes": data.classes,
        "public_size": data.public_size,
        "account": account,
        "purpose": None if account is None else settings.purpose or f"synthetic images of {data.name}",
        "folder": settings.out,
        "device": settings.device,
        "generator": None if settings.seed is None else seeded(settings.seed),
    }
    if settings.audit is not None:
        from sfumato.audit import Canaries

        found["audit"] = Canaries(count=settings.audit)
    return found


def _require_places(settings: SynthesisSettings) -> None:
    folder = Path(str(settings.out))
    if (folder / "generator.json").exists() or (folder / "training").exists():
        raise InvalidParameterError(
            f"the folder {settings.out!r} holds another generator, which was paid for. Give another --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".tried").touch()
        (folder / ".tried").unlink()
    except OSError as error:
        raise InvalidParameterError(
            f"nothing can be written to {settings.out!r}: {error.strerror}. Give another --out."
        ) from error
    if settings.report is not None:
        begin_page(settings.report)


# --- after the run ----------------------------------------------------------------------------------------


def _write_images(settings: SynthesisSettings, images: Any, labels: Any, made: ImageGenerator) -> None:
    folder = Path(str(settings.out))
    arrays = {"x": images.numpy(), "y": labels.numpy()}
    _files.write_whole(folder / "images.npz", lambda file: np.savez_compressed(file, **arrays))
    if images.shape[1] in (1, 3):
        rows = {f"{k}": images[labels == k][:_SHOWN].numpy() for k in range(made.classes)}
        grid = picture_grid(rows, title="Generated images")
        _files.write_whole(folder / "grid.svg", grid.encode())


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
            else f"the images in {settings.holdout}",
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
        more["notes"] = [note for note in said if note is not None]
        show_facts("", facts | more | {"evaluation": measured and measured.to_dict()}, as_json=True)
        return
    shown = {name: value for name, value in facts.items() if value is not None}
    show_facts(str(made.guarantee), shown, as_json=False)
    if measured is not None:
        show_text(f"\n{measured}")
    show_text(f"\n{made.statement()}")
