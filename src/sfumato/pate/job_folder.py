# SPDX-License-Identifier: Apache-2.0
"""The folder of a labeling job: tried before the charge, held by one process, never used for a second job.

Guarantee  Answers that were paid for are not overwritten: a folder that holds some is refused before the
           charge. The key of the partition can be read by its owner only.
Failure    A folder that cannot be written, or that another process uses, is an error before the charge.
Not here   The files of teachers (`teaching.files`), which a later job with the same units uses again.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.pate.run import FILES, PAID_FILES
from sfumato.pate.teaching import ranks
from sfumato.pate.teaching.partition import Partition

__all__ = ["TEACHERS", "job_folder", "kept_partition"]

TEACHERS = "teachers"
_KEY = "partition.key"


@contextmanager
def job_folder(folder: Path | None) -> Generator[None]:
    """Return a context in which this process alone uses a folder.

    Args:
        folder: The folder, or None for none. It is made if needed.

    Raises:
        InvalidParameterError: If it cannot be written, holds answers, or is used by another process.
    """
    if folder is None:
        yield
        return
    _require_writable(folder)
    lock = FileLock(folder / f".job-{ranks.rank()}.lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InvalidParameterError(
            f"another process runs a labeling job in {str(folder)!r}. Wait for it, or use another folder."
        ) from None
    try:
        _require_unused(folder)
        yield
    finally:
        lock.release()


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TEACHERS).mkdir(mode=0o700, exist_ok=True)
        for place in (folder, folder / TEACHERS):
            with tempfile.NamedTemporaryFile(dir=place):
                pass
    except OSError as error:
        raise InvalidParameterError(
            f"the folder {str(folder)!r} cannot be used: {error.strerror}. Give one that can be read and "
            "written."
        ) from error
    taken = [name for name in FILES if (folder / name).is_dir()]
    if taken:
        raise InvalidParameterError(
            f"{str(folder / taken[0])!r} is a folder, where a file will be written. Use another folder."
        )


def _require_unused(folder: Path) -> None:
    if any((folder / name).exists() for name in PAID_FILES):
        raise InvalidParameterError(
            f"the folder {str(folder)!r} holds the answers of another job, which were paid for. Read them "
            "with ReleasedAnswers.load_classes; for a new job use another folder, or move "
            f"{' and '.join(PAID_FILES)} away to ask the same teachers again."
        )


def kept_partition(folder: Path, teachers: tuple[int, ...]) -> Partition:
    """Return the partition whose key a folder keeps, or a new one, which the folder then keeps.

    Args:
        folder: The folder of the job.
        teachers: The number of teachers of each group.

    Returns:
        The partition.

    Raises:
        InvalidParameterError: If the key cannot be read, or is none.
    """
    place = folder / TEACHERS / _KEY
    try:
        if place.exists():
            return Partition(teachers=teachers, key=place.read_bytes())
        partition = Partition.draw(teachers)
        part = _files.part_of(place)
        part.unlink(missing_ok=True)
        part.touch(mode=0o600, exist_ok=False)  # before it has content that others could read
        _files.write_whole(place, partition.key)
    except OSError as error:
        raise InvalidParameterError(
            f"the key {str(place)!r} cannot be used: {error.strerror}. Use another folder."
        ) from error
    return partition
