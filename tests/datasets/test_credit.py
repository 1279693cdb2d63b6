# SPDX-License-Identifier: Apache-2.0
import gzip
import hashlib

import pytest

from sfumato.datasets import credit, load
from sfumato.datasets.files import Content, Form

NAMES = "ID,LIMIT_BAL,SEX,EDUCATION,MARRIAGE,AGE," + ",".join(f"COLUMN{i}" for i in range(18)) + ",default"
ROWS = [
    f"{client},{20_000 * client},2,{client % 7},1,{18 + client},-2,-1,0,1,2,9,"
    f"0,-5000000,1000,0,0,5000000,0,0,0,0,0,{client},{client % 2}"
    for client in range(1, 11)
]
PUBLISHED = "".join(f"{line}\r\n" for line in (credit._HEADER, *ROWS)).encode()
NAMED = gzip.compress("".join(f"{line}\n" for line in (NAMES, *ROWS)).encode())


@pytest.fixture
def tiny(monkeypatch):
    """Give the checksums of a tiny set, of which a test then offers a form."""
    form = Form(
        path=credit.FILE.forms[0].path,
        sha256=hashlib.sha256(NAMED).hexdigest(),
        decode=credit.from_named_columns,
    )
    content = Content(path=credit.FILE.path, sha256=hashlib.sha256(PUBLISHED).hexdigest(), forms=(form,))
    monkeypatch.setattr(credit, "FILE", content)
    return content


def put(folder, path, data):
    (folder / path).parent.mkdir()
    (folder / path).write_bytes(data)


def test_both_forms_give_the_same_examples(tiny, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    put(folder, tiny.path, PUBLISHED)
    put(other, tiny.forms[0].path, NAMED)
    one, two = load("credit-default", folder=folder), load("credit-default", folder=other)
    assert one.train.features.equal(two.train.features) and one.test.labels.equal(two.test.labels)


def test_clients_are_split_by_their_own_number(tiny, folder):
    put(folder, tiny.path, PUBLISHED)
    data = load("credit-default", folder=folder)
    age = data.feature_names.index("AGE")
    assert [round(18 + 82 * v) - 18 for v in data.test.features[:, age].tolist()] == [5, 10]
    assert data.train.labels.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]


def test_undocumented_codes_go_to_the_catch_all_and_amounts_into_their_range(tiny, folder):
    put(folder, tiny.path, PUBLISHED)
    data = load("credit-default", folder=folder)
    column = data.feature_names.index
    assert data.train.features[:, column("EDUCATION=other")].tolist() == [
        0,
        0,
        0,
        0,
        1,
        1,
        0,
        0,
    ]  # codes 6, 0
    assert data.train.features[:, column("BILL_AMT2")].eq(0).all()
    assert data.train.features[:, column("BILL_AMT6")].eq(1).all()
    assert data.train.features[:, column("PAY_6")].eq(1).all()


def test_credit_default_is_what_its_author_published(real):
    data = load("credit-default", folder=real)
    labels = data.train.labels.bincount() + data.test.labels.bincount()
    assert labels.tolist() == [23_364, 6_636]
    assert (data.public_size, len(data.test), len(data.feature_names)) == (24_000, 6_000, 32)
    bills = [n.startswith("BILL") for n in data.feature_names]
    inside = data.train.features[:, bills]
    assert inside.min() > 0 and inside.max() < 1  # no real amount had to be moved in
