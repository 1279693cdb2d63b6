# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import lzma

import pytest
import torch

from sfumato.datasets import load, shakespeare
from sfumato.datasets.errors import DataNotFoundError
from sfumato.datasets.files import Content
from sfumato.datasets.shakespeare import ALPHABET, WINDOW, Role, encode_text, windows


def decode(ids: torch.Tensor) -> str:
    return "".join(ALPHABET[i] for i in ids.tolist())


def write(folder, monkeypatch, roles):
    lines = [json.dumps({"play": p, "title": p, "role": r, "speeches": s}) for p, r, s in roles]
    data = lzma.compress("\n".join(lines).encode())
    (folder / "text").mkdir()
    (folder / shakespeare.FILE.path).write_bytes(data)
    known = Content(path=shakespeare.FILE.path, sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(shakespeare, "FILE", known)
    return load("shakespeare", folder=folder)


def test_the_alphabet_is_fixed_and_has_a_place_for_the_rest():
    assert len(ALPHABET) == len(set(ALPHABET)) == 97
    assert decode(encode_text("Who's there?\nNay")) == "Who's there?\nNay"
    assert encode_text("ß\t").tolist() == [0, 0]


@pytest.mark.parametrize(("length", "count"), [(0, 0), (1, 0), (80, 0), (81, 1), (160, 1), (161, 2)])
def test_windows_are_whole_and_labels_come_one_later(length, count):
    now, later = windows(torch.arange(length), WINDOW)
    assert now.shape == later.shape == (count, WINDOW)
    assert later.equal(now + 1)
    assert now.flatten().equal(torch.arange(count * WINDOW))


def test_no_window_crosses_two_roles_and_a_short_role_has_none(folder, monkeypatch):
    roles = [(f"play{i}", "ROLE", [chr(65 + i % 26) * 90, chr(65 + i % 26) * 90]) for i in range(40)]
    data = write(folder, monkeypatch, [*(("play", f"SHORT {i}", ["Aye."]) for i in range(20)), *roles])
    for examples in (data.train, data.test):
        speakers = [set(decode(window)) - {"\n"} for window in examples.features]
        assert all(len(speaker) == 1 for speaker in speakers)
        assert examples.user_ids.bincount().tolist() == [2] * examples.num_units
    assert data.train.num_units + data.test.num_units == 40
    assert data.public_size == data.train.num_units and data.privacy_unit == "user"


def test_a_role_s_side_does_not_depend_on_the_others():
    sides = [Role("play", f"ROLE {i}", "").is_for_test for i in range(1000)]
    assert 150 < sum(sides) < 250
    assert Role("hamlet", "HAMLET", "x").is_for_test == Role("hamlet", "HAMLET", "").is_for_test


def test_where_to_put_the_file_is_said_where_it_is_missing(folder):
    with pytest.raises(
        DataNotFoundError, match=r"no public source of it is known. A copy belongs at text/sha"
    ):
        load("shakespeare", folder=folder)


def test_shakespeare_has_its_roles(real):
    data = load("shakespeare", folder=real)
    assert data.train.features.shape == (42_083, WINDOW) and data.test.features.shape == (11_274, WINDOW)
    assert data.public_size == 915 and data.test.num_units == 240
    assert data.train.features.min() > 0  # no character of the plays is unknown
    assert data.train.features[:, 1:].equal(data.train.labels[:, :-1])
