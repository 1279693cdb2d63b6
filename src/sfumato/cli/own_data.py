# SPDX-License-Identifier: Apache-2.0
"""The user's own data for `sfumato train` and `synthesize`: CSV, Parquet, .npz, or a folder of images.

What is public of it (columns, classes, bounds, size) comes from flags and never from rows.

- CSV, Parquet: `--target`, `--feature`, `--label` or `--classes`, `--public-size`; `--type` for CSV;
  `--bounds` scale a column to [0, 1].
- .npz: arrays `x` and `y`, and `owners` if one owner has several rows. Bytes are scaled to [0, 1].
- A folder: one folder of images for each `--label`, scaled to `--image-size` pixels a side.

Guarantee  Rows of files are read after the run is charged. A row or an image that cannot be read, or has a
           label that is not one of the classes, is left out or counts as zeros: it never stops a run.
"""

import importlib
import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from sfumato import _check
from sfumato._extras import how_to_install
from sfumato.cli.column_types import column_types
from sfumato.cli.own_classes import own_classes
from sfumato.cli.places import require_public
from sfumato.cli.settings import TrainSettings
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.generative.images.class_labels import class_numbers
from sfumato.training.data.units import Deferred
from sfumato.training.models import networks

__all__ = ["OwnData", "open_own", "read_images", "refuse_own"]

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_BOUNDED = 255.0  # the largest byte


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Rows to train on, with what is public of them."""

    name: str
    rows: Any
    evaluation: Any  # not protected
    shape: tuple[int, ...]  # of one row of features
    num_classes: int
    public_size: int
    by_owner: bool = False
    privacy_unit: str | None = None
    scaling: tuple[Tensor, Tensor] | None = None  # low and high of each column

    def model(self, name: str, *, width: int) -> nn.Module:
        """Build a model for these rows."""
        built = networks.for_shape(self.shape, self.num_classes, name, width=width)
        return built if self.scaling is None else nn.Sequential(Rescale(*self.scaling), built)


class Rescale(nn.Module):
    """Clip each column to its public bounds, and scale it to [0, 1]."""

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled columns."""
        return (x.clamp(self.low, self.high) - self.low) / (self.high - self.low)


def open_own(settings: TrainSettings) -> OwnData:
    """Return the data that settings name, without reading a row."""
    assert settings.data is not None
    place = Path(settings.data)
    if not place.exists():
        raise InvalidParameterError(f"there is no file or folder {settings.data!r}.")
    if settings.public_size is None or (settings.classes is None) == (settings.label is None):
        raise InvalidParameterError(
            "pass --public-size, and either --classes or one --label for each class, with your own data: the "
            "number of units and the classes are public, so they are never read from private rows."
        )
    _check.count(public_size=settings.public_size)
    require_public(settings.data, {"--evaluation": settings.evaluation})
    if place.is_dir():
        return _images(settings, place)
    return _arrays(settings, place) if place.suffix == ".npz" else _table(settings)


def refuse_own(settings: TrainSettings) -> None:
    """Raise if a named public set is given settings of the user's own data."""
    names = ("target", "feature", "label", "classes", "bounds", "type", "public_size", "privacy_unit")
    _refuse(settings, "a public data set", *names, "evaluation", "image_size")


# --- CSV and Parquet -------------------------------------------------------------------------------------


def _table(settings: TrainSettings) -> OwnData:
    from sfumato.private.training_rows import training_rows
    from sfumato.statistics.sources.tables import private_table

    target, names = settings.target, tuple(settings.feature or ())
    if target is None or not names:
        raise InvalidParameterError(
            "pass --target, the column of labels, and --feature for each column to learn from."
        )
    types = column_types(settings.type or [])
    classes = own_classes(settings.classes, settings.label)
    bound = settings.contribution_bound or 1
    table = private_table(
        settings.data, privacy_unit=settings.privacy_unit, contribution_bound=bound, types=types or None
    )
    shown = None
    if settings.evaluation is not None:
        public = training_rows(
            private_table(settings.evaluation, types=types or None), names, target, classes
        )
        shown = public.read()[0]
    labels = classes if isinstance(classes, int) else len(classes)
    rows = training_rows(table, names, target, classes)
    return OwnData(
        name=Path(str(settings.data)).name,
        rows=rows,
        evaluation=shown,
        shape=(len(names),),
        num_classes=labels,
        public_size=settings.public_size or 0,
        by_owner=rows.by_owner,
        privacy_unit=settings.privacy_unit,
        scaling=_scaling(settings.bounds, names),
    )


def _scaling(given: Sequence[str] | None, names: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    if given is None:
        return None
    low, high = torch.full((len(names),), -torch.inf), torch.full((len(names),), torch.inf)
    for each in given:
        name, _, ends = each.partition("=")
        try:
            least, _, most = ends.partition(":")
            bounds = float(least), float(most)
        except ValueError:
            raise InvalidParameterError(f"--bounds {each} must be COLUMN=LOW:HIGH, as age=0:100.") from None
        _check.bounds(**{f"--bounds {name}": bounds})
        if name not in names:
            raise InvalidParameterError(f"--bounds names {name!r}, which is not a --feature.")
        low[names.index(name)], high[names.index(name)] = bounds
    missing = [name for name, end in zip(names, high, strict=True) if not torch.isfinite(end)]
    if missing:
        raise InvalidParameterError(f"--bounds lacks {', '.join(missing)}: give all columns bounds, or none.")
    return low, high


# --- .npz ------------------------------------------------------------------------------------------------


def _arrays(settings: TrainSettings, place: Path) -> OwnData:
    classes = own_classes(settings.classes, settings.label)
    _refuse(settings, "an .npz file", "target", "feature", "type", "bounds", "privacy_unit", "image_size")
    if not isinstance(classes, int):
        raise InvalidParameterError("the labels of an .npz file are numbers: pass --classes as a number.")
    by_owner = "owners.npy" in _members(place)
    if not by_owner:
        _refuse(settings, "an .npz file without an array 'owners'", "contribution_bound")
    (rows, *shape), kind = _header(place, "x")
    columns = [_header(place, name)[0] for name in ("y", "owners") if name == "y" or by_owner]
    if any(column != (rows,) for column in columns):
        raise InvalidParameterError(
            f"the arrays in {str(place)!r} do not fit: y, and owners if there are any, must have one number "
            "for each row of x, in one dimension. Save them so, in the same order: np.savez(file, x=x, y=y)."
        )
    blank = _features(np.zeros((0, *shape), dtype=kind))
    shown = (
        None if settings.evaluation is None else _loaded(Path(settings.evaluation), classes, owned=False)[0]
    )
    return OwnData(
        name=place.name,
        rows=Deferred(
            blank=(blank, torch.zeros(0, dtype=torch.int64)),
            read=lambda: _loaded(place, classes, owned=by_owner),
            by_owner=by_owner,
        ),
        evaluation=shown,
        shape=tuple(blank.shape[1:]),
        num_classes=classes,
        public_size=settings.public_size or 0,
        by_owner=by_owner,
    )


def _members(place: Path) -> list[str]:
    try:
        with zipfile.ZipFile(place) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidParameterError(f"{str(place)!r} is not an .npz file ({type(error).__name__}).") from None


def _header(place: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the type of an array, without reading the array."""
    if f"{name}.npy" not in _members(place):
        raise InvalidParameterError(
            f"{str(place)!r} has no array {name!r}: save it by np.savez(file, x=..., y=...)."
        )
    with zipfile.ZipFile(place) as archive, archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        try:
            shape, _, kind = read(file)
        except ValueError:  # whose message may quote the file
            raise InvalidParameterError(f"the array {name!r} in {str(place)!r} is damaged.") from None
    if not shape or kind.kind not in "biuf" or (name == "x" and len(shape) not in (2, 3, 4)):
        raise InvalidParameterError(
            f"the array {name!r} in {str(place)!r} "
            + (
                "must hold numbers: rows or images, all of one shape. Resize images to one size first."
                if name == "x"
                else "must hold numbers, such as the class numbers 0, 1, 2: convert it and save it again."
            )
        )
    return tuple(shape), kind


def _loaded(place: Path, classes: int, *, owned: bool) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return features and labels, and owners, or raise without quoting what was read."""
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            x, y = archive["x"], archive["y"]
            owners = archive["owners"] if owned else None
        with np.errstate(all="ignore"):
            known = np.isfinite(x.astype(np.float32)).all(axis=tuple(range(1, x.ndim)))
        numbers = class_numbers(y, classes=classes)
        known &= numbers >= 0
        features, labels = _features(x[known]), torch.from_numpy(numbers[known])
        return (features, labels), None if owners is None else _numbered(owners[known])
    except Exception:  # of a damaged file: its message may quote it
        pass
    raise QueryFailedError(
        f"the arrays in {str(place)!r} could not be read: x, y and owners must have one entry for each row. "
        "What was reserved for the run stays spent."
    )


def _numbered(owners: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.unique(owners, return_inverse=True)[1].astype(np.int64))


def _features(x: npt.NDArray[Any]) -> Tensor:
    """Return float32 rows; bytes are pixels, channels come first."""
    with np.errstate(all="ignore"):  # what is too large for float32 is left out before, or infinite
        rows = torch.from_numpy(x.astype(np.float32))
    if x.dtype == np.uint8:
        rows = rows / _BOUNDED
    if rows.dim() == 3:
        rows = rows.unsqueeze(1)
    if rows.dim() == 4 and rows.shape[-1] in (1, 3) and rows.shape[1] not in (1, 3):
        rows = rows.permute(0, 3, 1, 2)
    return rows.contiguous()


# --- folders of images -----------------------------------------------------------------------------------


class ImageFolder(TorchDataset[tuple[Tensor, Tensor]]):
    """Images in folders, one for each class; one that cannot be read counts as black."""

    def __init__(self, place: Path, classes: Sequence[str], side: int) -> None:
        self._side, self.shape = side, (3, side, side)
        self._files = [
            (file, number)
            for number, name in enumerate(classes)
            for file in sorted((place / name).rglob("*"))
            if file.suffix.lower() in _IMAGES
        ]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image_file: Any = importlib.import_module("PIL.Image")
        file, number = self._files[index]
        try:
            with image_file.open(file) as image:
                pixels = np.asarray(image.convert("RGB").resize((self._side, self._side)), dtype=np.float32)
        except Exception:  # of a damaged image, which must not stop a run
            pixels = np.zeros((self._side, self._side, 3), dtype=np.float32)
        return torch.from_numpy(pixels / _BOUNDED).permute(2, 0, 1), torch.tensor(number)


def read_images(rows: Any) -> tuple[Tensor, Tensor]:
    """Return images and labels, all of them, of an .npz file or a folder. No image of a folder raises."""
    if isinstance(rows, Deferred):
        images, labels = rows.read()[0]
        return images, labels
    if not isinstance(rows, ImageFolder):
        return rows
    found = [rows[number] for number in range(len(rows))]
    blank = torch.zeros(0, *rows.shape), torch.zeros(0, dtype=torch.int64)
    return (torch.stack([x for x, _ in found]), torch.stack([y for _, y in found])) if found else blank


def _images(settings: TrainSettings, place: Path) -> OwnData:
    if importlib.util.find_spec("PIL") is None:
        raise InvalidParameterError(f"a folder of images needs Pillow. {how_to_install('images')}")
    _refuse(
        settings,
        "a folder of images",
        "target",
        "feature",
        "type",
        "bounds",
        "privacy_unit",
        "contribution_bound",
    )
    classes, side = own_classes(settings.classes, settings.label), settings.image_size
    if isinstance(classes, int):
        raise InvalidParameterError("pass the name of each folder as --label.")
    if side is None:
        raise InvalidParameterError("pass --image-size, the side in pixels to which images are scaled.")
    _check.count(image_size=side)
    _require_apart(place, classes)
    missing = [name for name in classes if not (place / name).is_dir()]
    if missing:
        raise InvalidParameterError(f"{str(place)!r} has no folder {missing[0]!r}, which --label names.")
    shown = None if settings.evaluation is None else ImageFolder(Path(settings.evaluation), classes, side)
    return OwnData(
        name=place.name,
        rows=ImageFolder(place, classes, side),
        evaluation=shown,
        shape=(3, side, side),
        num_classes=len(classes),
        public_size=settings.public_size or 0,
    )


def _require_apart(place: Path, names: Sequence[str]) -> None:
    """Raise unless no image is in the folders of two classes: it would be two units."""
    folders = [(place / name).resolve() for name in names]
    plain = all(Path(name).name == name and name not in ("", ".", "..") for name in names)
    if not plain or len(set(folders)) < len(folders) or any(a in b.parents for a in folders for b in folders):
        raise InvalidParameterError(
            "each --label must be the plain name of a folder, and no folder may be in another one: an image "
            "would be learned from twice."
        )


def _refuse(settings: TrainSettings, what: str, *names: str) -> None:
    """Raise if settings are given that this kind of data has no use for: they might change a claim."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(settings, name) is not None]
    if given:
        raise InvalidParameterError(f"{', '.join(given)} is not for {what}: leave it out.")
