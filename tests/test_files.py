# SPDX-License-Identifier: Apache-2.0
"""A file is written whole or not at all, and is on disk before it gets its name."""

import os
import stat
from pathlib import Path

import pytest

from sfumato import _files


def test_a_file_is_written_and_replaced_without_leftovers(tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    _files.write_whole(place, b"first")
    _files.write_whole(place, lambda file: file.write(b"second"))
    assert place.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [place]


def test_a_failure_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    _files.write_whole(place, b"old")

    def broken(file) -> None:
        file.write(b"half of the n")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        _files.write_whole(place, broken)
    assert place.read_bytes() == b"old"
    assert set(tmp_path.iterdir()) == {place, _files.part_of(place)}


def test_content_is_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could leave the name with no content, or lose both."""
    place, steps = tmp_path / "page.html", list[str]()
    sync, move = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(_kind(handle)) or sync(handle))
    monkeypatch.setattr(Path, "replace", lambda path, to: steps.append("move") or move(path, to))
    _files.write_whole(place, b"new")
    assert steps == ["file", "move", "folder"]


def _kind(handle: int) -> str:
    return "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
