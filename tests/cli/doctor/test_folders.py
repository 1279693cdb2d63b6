# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from sfumato.cli.doctor import folders
from sfumato.cli.doctor.findings import State
from sfumato.datasets import names


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    return tmp_path


def found():
    return {each.name: each for each in folders.check()}


def test_the_folders_are_those_of_the_sets():
    from sfumato.datasets import adult, cifar, credit, idx, shakespeare

    files = {
        "mnist": idx.MNIST_FILES,
        "fashion-mnist": idx.FASHION_FILES,
        "cifar10": tuple(cifar.BATCHES.values()),
        "credit-default": (credit.FILE,),
        "adult": (adult.TRAIN, adult.TEST),
        "shakespeare": (shakespeare.FILE,),
    }
    assert list(folders.FOLDERS) == list(files) == list(names()[2:])
    for name, contents in files.items():
        assert {content.path.split("/")[0] for content in contents} == {folders.FOLDERS[name]}


def test_sets_are_found_in_both_places(places, monkeypatch):
    monkeypatch.setenv("SFUMATO_DATA", str(places / "data"))
    for folder in ("data/mnist", "cache/text", "data/adult"):
        (places / folder).mkdir(parents=True)
    (places / "data/mnist/train").write_text("x")
    (places / "cache/text/roles").write_text("x")
    said = found()["data sets"].found
    assert "files of: mnist, shakespeare;" in said and "adult" in said.partition("downloaded")[2]
    assert found()["SFUMATO_DATA"].state is State.OK


def test_a_folder_that_is_not_there_is_broken(places, monkeypatch):
    monkeypatch.setenv("SFUMATO_DATA", str(places / "none"))
    assert found()["SFUMATO_DATA"].state is State.BROKEN
    assert "which is no folder" in found()["SFUMATO_DATA"].found


def test_without_a_folder_the_cache_is_used_and_nothing_is_made(places):
    assert found()["SFUMATO_DATA"].state is State.ABSENT and found()["cache"].state is State.OK
    assert "no other set" in found()["data sets"].found
    assert list(places.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_warning(places, monkeypatch):
    (places / "cache").write_text("a file")
    assert found()["cache"].state is State.WARNING
    (places / "cache").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert "cannot be written" in found()["cache"].found


def test_a_folder_that_cannot_be_read_is_broken(places, monkeypatch):
    monkeypatch.setenv("SFUMATO_DATA", str(places))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != places)
    assert "cannot be read" in found()["SFUMATO_DATA"].found


def test_little_free_space_is_a_warning(places, monkeypatch):
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: usage)
    assert "which is little" in found()["cache"].found and found()["cache"].state is State.WARNING
