# SPDX-License-Identifier: Apache-2.0
"""Files that survive a crash: written whole, or not at all.

Guarantee  After `write_whole` returns, the file has its new content, also after a power failure. If the
           process ends earlier, the file is what it was before. `part_of` names the file that may then be
           left beside it.
Not here   Files that two processes write at once: the caller holds a lock, or the last one wins.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

__all__ = ["part_of", "sync_folder", "write_synced", "write_whole"]


def part_of(path: Path) -> Path:
    """Return where the new content of a file is written before it is complete."""
    return path.with_name(path.name + ".part")


def write_whole(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file, or replace it, in one step that a crash cannot divide."""
    part = part_of(path)
    write_synced(part, content)
    part.replace(path)
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file and bring it to disk; `content` is bytes, or a function that writes to the open file."""
    with path.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring new names and moves within a folder to disk. Windows cannot, and does not need it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
