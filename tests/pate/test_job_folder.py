# SPDX-License-Identifier: Apache-2.0
"""The folder of a job: what cannot be written, is in use or holds answers is refused before the charge."""

import multiprocessing
import os

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.pate.job_folder import job_folder, kept_partition


def test_no_folder_is_fine():
    with job_folder(None):
        pass


def test_a_new_folder_is_made_and_teachers_are_for_their_owner(tmp_path):
    with job_folder(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / "teachers").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["answers.npy", "answers.json"])
def test_paid_answers_are_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("paid")
    with pytest.raises(InvalidParameterError, match="paid for"), job_folder(tmp_path):
        pass
    assert (tmp_path / name).read_text() == "paid"


@pytest.mark.parametrize("name", ["answers.npy", "answers.json", "run.json", "student.joblib"])
def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidParameterError, match="is a folder"), job_folder(tmp_path):
        pass


def test_places_that_cannot_be_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "teachers").write_text("x")
    wrong = [tmp_path / "file", tmp_path / "file" / "in", tmp_path / "run"]
    if os.path.isdir("/proc"):
        wrong.append(type(tmp_path)("/proc/foo"))
    for place in wrong:
        with pytest.raises(InvalidParameterError, match="cannot be used"), job_folder(place):
            pass


def test_a_folder_in_use_is_refused_and_free_again_afterwards(tmp_path):
    taken = job_folder(tmp_path)
    with job_folder(tmp_path), pytest.raises(InvalidParameterError, match="another process"):
        taken.__enter__()
    with job_folder(tmp_path):
        pass


def _key(folder, found):
    try:
        with job_folder(folder):
            found.put(kept_partition(folder, (3,)).key)
    except InvalidParameterError as error:
        found.put(str(error))


def test_processes_that_share_a_new_folder_get_one_key_or_a_refusal(tmp_path):
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    workers = [context.Process(target=_key, args=(tmp_path, found)) for _ in range(4)]
    for worker in workers:
        worker.start()
    results = [found.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    keys = {result for result in results if isinstance(result, bytes)}
    assert keys == {(tmp_path / "teachers" / "partition.key").read_bytes()}
    assert all("another process" in result for result in results if isinstance(result, str))


def test_a_key_is_kept_and_a_wrong_one_is_told(tmp_path):
    with job_folder(tmp_path):
        first = kept_partition(tmp_path, (3,))
        assert kept_partition(tmp_path, (3,)) == first
    place = tmp_path / "teachers" / "partition.key"
    assert place.stat().st_mode & 0o777 == 0o600
    place.unlink()
    place.mkdir()
    with pytest.raises(InvalidParameterError, match="cannot be used"):
        kept_partition(tmp_path, (3,))
