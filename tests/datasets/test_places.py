# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pooch

from sfumato.datasets.places import cache_folder, data_folder, keep


def test_the_folder_given_comes_before_the_environment(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    assert data_folder(folder) == folder
    assert data_folder() == tmp_path


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("SFUMATO_DATA", "")
    monkeypatch.setenv("SFUMATO_CACHE", "")
    assert data_folder() is None
    assert cache_folder() == Path(pooch.os_cache("sfumato"))


def test_what_is_kept_is_whole_and_alone(cache):
    keep(cache / "a" / "b.bin", b"old")
    keep(cache / "a" / "b.bin", b"new")
    assert [(p.name, p.read_bytes()) for p in (cache / "a").iterdir()] == [("b.bin", b"new")]


def test_a_write_that_fails_leaves_what_was_there(cache, monkeypatch):
    def full(self, target):
        raise OSError("no space left on device")

    keep(cache / "b.bin", b"old")
    monkeypatch.setattr(Path, "replace", full)
    keep(cache / "b.bin", b"new")
    assert [(p.name, p.read_bytes()) for p in cache.iterdir()] == [("b.bin", b"old")]


def test_a_cache_that_cannot_be_written_is_done_without(unwritable_cache):
    keep(unwritable_cache / "a.bin", b"data")
    assert not unwritable_cache.exists()
