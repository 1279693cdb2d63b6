# SPDX-License-Identifier: Apache-2.0
"""The folders of data sets: which sets are there, whether the cache can be written, and the free space.

Files are not read: whether a file is the published one is checked when a set is loaded.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from sfumato.cli.doctor.findings import Finding, State
from sfumato.datasets.errors import DataNotFoundError
from sfumato.datasets.places import cache_folder, data_folder

__all__ = ["FOLDERS", "check", "sets_in"]

AREA = "data"
# The subfolder of each named set that needs files.
FOLDERS: Mapping[str, str] = {
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "credit-default": "credit_default",
    "adult": "adult",
    "shakespeare": "text",
}
_LITTLE = 1 << 30  # bytes: the largest set takes a fifth of it when it is unpacked


def check() -> Iterator[Finding]:
    """Yield what is found about the folder of data and the cache."""
    try:
        data = data_folder()
    except DataNotFoundError as error:
        yield _finding(
            "SFUMATO_DATA", State.BROKEN, str(error), "Set it to a folder that there is, or unset it."
        )
        data = None
    else:
        yield _data(data)
    cache = cache_folder()
    yield _cache(cache)
    places = [place for place in (data, cache) if place is not None]
    here = [name for name in FOLDERS if any(name in sets_in(place) for place in places)]
    missing = [name for name in FOLDERS if name not in here]
    found = f"always here: digits, breast-cancer; files of: {', '.join(here) or 'no other set'}"
    if missing:
        found += f"; downloaded when first used: {', '.join(missing)}"
    yield _finding("data sets", State.OK, found)


def sets_in(place: Path) -> list[str]:
    """Return the named sets of which a folder has files.

    Args:
        place: The folder.

    Returns:
        Names.
    """
    return [name for name, folder in FOLDERS.items() if _has_files(place / folder)]


def _has_files(folder: Path) -> bool:
    try:
        return any(each.is_file() for each in folder.iterdir())
    except OSError:
        return False


def _finding(name: str, state: State, found: str, advice: str | None = None) -> Finding:
    return Finding(area=AREA, name=name, state=state, found=found, advice=advice)


def _data(data: Path | None) -> Finding:
    if data is None:
        return _finding("SFUMATO_DATA", State.ABSENT, "not set: files come from the cache, or are downloaded")
    if not os.access(data, os.R_OK | os.X_OK):
        advice = "Let this user read the folder, or set SFUMATO_DATA to another one."
        return _finding("SFUMATO_DATA", State.BROKEN, f"{data} cannot be read", advice)
    return _finding("SFUMATO_DATA", State.OK, str(data))


def _cache(cache: Path) -> Finding:
    there = next((each for each in (cache, *cache.parents) if each.exists()), Path("/"))
    advice = "Set SFUMATO_CACHE to a folder that can be written."
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return _finding(
            "cache", State.WARNING, f"{cache} cannot be written: nothing can be downloaded", advice
        )
    free = shutil.disk_usage(there).free
    told = f"{cache}, {free / 2**30:.1f} GiB free"
    if free < _LITTLE:
        return _finding("cache", State.WARNING, f"{told}, which is little", advice)
    return _finding("cache", State.OK, told)
