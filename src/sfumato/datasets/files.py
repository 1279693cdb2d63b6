# SPDX-License-Identifier: Apache-2.0
"""The files of a data set: from the user's folder, else the cache, else the public source.

The same content is published in several forms (compressed, inside an archive). Each form can be turned into
the content, so one checksum covers all of them.

Downloads go through pooch, which writes to a temporary file, checks it, and only then gives it its name: a
broken download leaves nothing behind. Archives are read, never unpacked to disk.

Guarantee  The result of `read` has the checksum that is listed beside it in this package, wherever it came
           from. A file with another checksum is an error: it is not used, and no other source is tried.
"""

import hashlib
import lzma
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sfumato.datasets.errors import DataCorruptError, DataNotFoundError
from sfumato.datasets.places import Folder, cache_folder, data_folder, keep

__all__ = ["Content", "Form", "find", "member_of_tar", "member_of_zip", "read"]

_CHUNK = 1 << 16  # bytes a step of a download: enough to keep the progress bar out of the way
_TIMEOUT = 30  # seconds without an answer before the next source is tried
_UNREADABLE = (EOFError, KeyError, OSError, ValueError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One form in which a content is published, and how it becomes that content."""

    path: str  # below the data folder or the cache
    sha256: str | None  # of the file; None if only the content has a known checksum
    urls: tuple[str, ...] = ()
    decode: Callable[[Path], bytes] = Path.read_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """A file as the data set's authors define it, and the other forms in which it may be found."""

    path: str
    sha256: str
    urls: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()
    note: str = ""  # what to do where no public source is known

    @property
    def itself(self) -> Form:
        """The content as a form that needs no decoding."""
        return Form(path=self.path, sha256=self.sha256, urls=self.urls)


def read(content: Content, *, folder: Folder = None) -> bytes:
    """Return the content, from the folder, the cache or the public source, with its checksum verified."""
    found = find(content, folder=folder)
    if found is not None:
        return _decoded(content, *found)
    return _downloaded(content, folder)


def find(content: Content, *, folder: Folder = None) -> tuple[Form, Path] | None:
    """Return the form and path under which a content lies on this machine, or None."""
    for place, form in _candidates(content, data_folder(folder), cache_folder()):
        if (place / form.path).is_file():
            return form, place / form.path
    return None


def _candidates(content: Content, data: Path | None, cache: Path) -> Iterator[tuple[Path, Form]]:
    """Yield where to look. The cache's decoded copy comes before the folder's encoded one: it is quicker."""
    places = [cache] if data is None else [data, cache]
    for forms in ((content.itself,), content.forms):
        yield from ((place, form) for place in places for form in forms)


def _decoded(content: Content, form: Form, path: Path) -> bytes:
    """Check a file, decode it, check what came out, and keep that if it took work."""
    if form.path == content.path:
        data = path.read_bytes()
    else:
        if form.sha256 is not None:
            _check(hashlib.sha256(path.read_bytes()).hexdigest(), form.sha256, path)
        data = _decode(form, path)
    _check(hashlib.sha256(data).hexdigest(), content.sha256, path)
    if form.path != content.path:
        keep(cache_folder() / content.path, data)
    return data


def _decode(form: Form, path: Path) -> bytes:
    try:
        return form.decode(path)
    except _UNREADABLE as error:
        raise DataCorruptError(f"{path} cannot be read as {form.path}. Delete it and try again.") from error


def _check(found: str, expected: str, path: Path) -> None:
    if found != expected:
        raise DataCorruptError(
            f"{path} is not the published file: its SHA-256 is {found}, and {expected} was expected. It was "
            "not used. Delete it and try again, or put an intact copy in its place."
        )


def _downloaded(content: Content, folder: Folder) -> bytes:
    cache = cache_folder()
    failures: list[str] = []
    for form in (content.itself, *content.forms):
        for url in form.urls:
            _require_writable(cache, url)
            try:
                path = _retrieve(url, form, cache)
            except OSError as error:  # requests' errors are OSErrors too
                failures.append(f"{url} ({type(error).__name__})")
                continue
            return _fresh(content, form, path)
    raise DataNotFoundError(_nowhere(content, data_folder(folder), cache, failures))


def _fresh(content: Content, form: Form, path: Path) -> bytes:
    """Decode what was just downloaded; if it is wrong, leave nothing behind."""
    try:
        return _decoded(content, form, path)
    except DataCorruptError:
        path.unlink(missing_ok=True)
        raise


def _retrieve(url: str, form: Form, cache: Path) -> Path:
    target = cache / form.path
    bar = _Bar(target.name) if sys.stderr.isatty() else False
    # pooch documents bars of one's own, and its annotations know neither them nor its own downloaders.
    downloader: Any = pooch.HTTPDownloader(progressbar=cast(bool, bar), chunk_size=_CHUNK, timeout=_TIMEOUT)
    known = None if form.sha256 is None else f"sha256:{form.sha256}"
    try:
        pooch.retrieve(url, known, fname=target.name, path=target.parent, downloader=downloader)
    except OSError:
        raise
    except ValueError as error:  # pooch's word for another checksum
        raise DataCorruptError(
            f"what {url} sent is not the published file (its SHA-256 is not {form.sha256}). It was not used. "
            f"Try again later, or put an intact copy at {form.path} in a folder that SFUMATO_DATA names."
        ) from error
    return target


def _require_writable(cache: Path, url: str) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        raise DataNotFoundError(
            f"{url} would have to be downloaded, but the cache {str(cache)!r} cannot be written. Set "
            "SFUMATO_CACHE to a folder that can, or SFUMATO_DATA to a folder that holds the data sets."
        ) from error


def _nowhere(content: Content, data: Path | None, cache: Path, failures: list[str]) -> str:
    where = "SFUMATO_DATA is not set" if data is None else f"not in the data folder {str(data)!r}"
    tried = f", not downloadable from {'; '.join(failures)}" if failures else ""
    names = " or ".join(form.path for form in (content.itself, *content.forms))
    remedy = content.note or "Connect to the network and try again, or fetch it by hand."
    return (
        f"{content.path} was not found: {where}, not in the cache {str(cache)!r}{tried}. {remedy} "
        f"A copy belongs at {names} in a folder that SFUMATO_DATA names."
    )


def member_of_tar(name: str) -> Callable[[Path], bytes]:
    """Return a decoder that takes one file out of a tar archive."""

    def decode(path: Path) -> bytes:
        with tarfile.open(path) as archive:
            file = archive.extractfile(name)
            if file is None:
                raise KeyError(name)
            return file.read()

    return decode


def member_of_zip(name: str) -> Callable[[Path], bytes]:
    """Return a decoder that takes one file out of a zip archive."""

    def decode(path: Path) -> bytes:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)

    return decode


class _Bar:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, name: str) -> None:
        self.total = 0
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(name, total=None)

    def update(self, amount: int) -> None:
        self._progress.start()
        self._progress.update(self._task, total=self.total or None, advance=amount)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
