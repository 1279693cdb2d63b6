# SPDX-License-Identifier: Apache-2.0
"""The folders of data files: the folder of the user, and the cache.

SFUMATO_DATA   A folder of data sets, one subfolder each. We only read it. It must exist once it is named: a
               misspelled folder is an error, not a silent download.
SFUMATO_CACHE  What we downloaded, decoded or computed. Without it, the operating system's place for caches. A
               cache that cannot be written slows us down, and stops nothing but downloads.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import pooch

from sfumato.datasets.errors import DataNotFoundError

__all__ = ["Folder", "cache_folder", "data_folder", "keep"]

Folder = str | os.PathLike[str] | None

_DATA = "SFUMATO_DATA"
_CACHE = "SFUMATO_CACHE"


def data_folder(folder: Folder = None) -> Path | None:
    """Return the folder of data sets: the one given, else SFUMATO_DATA, else none."""
    named = folder if folder is not None else os.environ.get(_DATA) or None
    if named is None:
        return None
    path = Path(named).expanduser()
    if not path.is_dir():
        whose = "folder" if folder is not None else _DATA
        raise DataNotFoundError(
            f"{whose} is {str(path)!r}, which is no folder. Name a folder that holds the data sets, or leave "
            "it out to use the cache and the public sources."
        )
    return path


def cache_folder() -> Path:
    """Return the folder for what we download, decode or compute; it need not exist yet."""
    named = os.environ.get(_CACHE) or None
    return Path(named).expanduser() if named is not None else Path(pooch.os_cache("sfumato"))


def keep(path: Path, data: bytes) -> None:
    """Write a file into the cache whole or not at all; where the cache cannot be written, do without.

    Two processes may keep the same file: each writes its own temporary file, and the last one to finish wins.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
