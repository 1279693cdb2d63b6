# SPDX-License-Identifier: Apache-2.0
"""The files of trained teachers, one for each, so that only one has to be in memory, and of their queries.

A file holds a line that names its format, the key of what the teacher was trained from, a keyed hash, and
the teacher as joblib writes it. Queries get a key of their own, and their file is removed after the votes.

Guarantee  A file is used only if its key is the expected one and its keyed hash fits: one that is of other
           rows or settings, incomplete, damaged, or planted by someone without the partition's key is never
           loaded. Files can be read by their owner only.
Failure    A file that is missing or changed when it is needed is an error; it says nothing about the rows.
Not here   Protection: a teacher is NOT private. The folder says so in a README. A temporary folder is
           removed at the end of the process, and stays after `kill -9` or a power failure.
"""

import hashlib
import hmac
import os
import shutil
import tempfile
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from sfumato import _files
from sfumato.errors import InvalidParameterError, QueryFailedError

__all__ = ["README", "TeacherFolder", "is_trained", "read", "write"]

README: Final = (
    "The teachers in this folder learned from private data and are NOT protected. Never publish them.\n"
)
_FORMAT: Final = b"sfumato teacher 1\n"
_HASH: Final = 32  # bytes


class TeacherFolder:
    """Where the teachers of one ensemble are kept.

    Args:
        path: The folder, or None for a private temporary one, which is removed at the end.

    Raises:
        InvalidParameterError: If the folder cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.temporary = path is None
        try:
            self.path = Path(tempfile.mkdtemp(prefix="sfumato-pate-") if path is None else path).absolute()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_readme(self.path)
        except OSError as error:
            raise InvalidParameterError(
                f"the folder {os.fspath(path or tempfile.gettempdir())!r} cannot be used: {error.strerror}. "
                "Give one that can be read and written."
            ) from error
        self._remove = weakref.finalize(self, _remove, self.path) if self.temporary else None

    def place(self, number: int) -> Path:
        """Return the file of a teacher."""
        return self.path / f"teacher-{number:05d}.joblib"

    @contextmanager
    def queries(self, content: bytes, *, secret: bytes) -> Generator[tuple[Path, bytes]]:
        """Return a context with a file of public rows, which every process can read, and its key."""
        key = os.urandom(_HASH)
        place = self.path / f"queries-{key[:8].hex()}.joblib"
        try:
            write(place, content, key=key, secret=secret)
            yield place, key
        finally:
            place.unlink(missing_ok=True)

    @contextmanager
    def locked(self, rank: int) -> Generator[None]:
        """Return a context that keeps other processes from training in this folder."""
        lock = FileLock(self.path / f".lock-{rank}", mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InvalidParameterError(
                f"another process trains teachers in {str(self.path)!r}. Wait for it, or use another folder."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._remove is not None:
            self._remove()


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _write_readme(folder: Path) -> None:
    with suppress(FileExistsError):
        descriptor = os.open(folder / "README.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(README)


def write(path: Path, content: bytes, *, key: bytes, secret: bytes) -> None:
    """Write a teacher, whole or not at all, for its owner only.

    Args:
        path: The file.
        content: The teacher.
        key: What it was trained from, 32 bytes.
        secret: The key of the hash.
    """
    part = _files.part_of(path)
    part.unlink(missing_ok=True)
    part.touch(mode=0o600, exist_ok=False)  # before it has content that others could read
    _files.write_whole(path, b"".join((_FORMAT, key, _mark(content, key, secret), content)))


def is_trained(path: Path, *, key: bytes, secret: bytes) -> bool:
    """Return whether a file holds the whole teacher that a key stands for."""
    return _content(path, key, secret) is not None


def read(path: Path, *, key: bytes, secret: bytes) -> bytes:
    """Return a teacher.

    Args:
        path: The file.
        key: What it was trained from.
        secret: The key of the hash.

    Returns:
        The content.

    Raises:
        QueryFailedError: If the file is missing, damaged or of another training.
    """
    content = _content(path, key, secret)
    if content is None:
        raise QueryFailedError(
            f"the file {str(path)!r} of a teacher is missing, damaged or was replaced since training. Train "
            "again with the same partition and folder: files that are whole are used again."
        )
    return content


def _content(path: Path, key: bytes, secret: bytes) -> bytes | None:
    try:
        found = path.read_bytes()
    except OSError:
        return None
    head = len(_FORMAT) + 2 * _HASH
    content: Any = memoryview(found)[head:]
    expected = b"".join((_FORMAT, key, _mark(content, key, secret)))
    return bytes(content) if hmac.compare_digest(found[:head], expected) else None


def _mark(content: bytes, key: bytes, secret: bytes) -> bytes:
    state = hashlib.blake2b(key, key=secret, digest_size=_HASH)
    state.update(content)
    return state.digest()
