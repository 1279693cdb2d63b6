# SPDX-License-Identifier: Apache-2.0
import hashlib

import pytest

from sfumato.datasets import adult, load
from sfumato.datasets.columns import Category
from sfumato.datasets.files import Content

TRAIN = b"""39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, \
2174, 0, 40, United-States, <=50K
58, ?, 83311, HS-grad, 9, Divorced, ?, Wife, Black, Female, 0, 0, 13, ?, >50K

"""
TEST = b"""|1x3 Cross validator
16, Private, 1, 11th, 7, Separated, Sales, Own-child, Other, Male, 99999, 0, 99, Hong, >50K.

"""


@pytest.fixture
def tiny(folder, monkeypatch):
    (folder / "adult").mkdir()
    for name, content, data in (("TRAIN", adult.TRAIN, TRAIN), ("TEST", adult.TEST, TEST)):
        (folder / content.path).write_bytes(data)
        known = Content(path=content.path, sha256=hashlib.sha256(data).hexdigest())
        monkeypatch.setattr(adult, name, known)
    return load("adult", folder=folder)


def row(examples, index, names):
    values = examples.features[index].tolist()
    return {name: value for name, value in zip(names, values, strict=True) if value != 0}


def test_rows_are_encoded_by_the_published_lists_and_ranges(tiny):
    first = row(tiny.train, 0, tiny.feature_names)
    assert first["age"] == pytest.approx((39 - 16) / 84)
    assert first["workclass=State-gov"] == first["native-country=United-States"] == 1
    assert len(first) == 4 + 8  # no loss; age, education, gain and hours; one of each of eight categories
    assert tiny.train.labels.tolist() == [0, 1]


def test_a_question_mark_goes_to_the_catch_all(tiny):
    second = row(tiny.train, 1, tiny.feature_names)
    assert {"workclass=other", "occupation=other", "native-country=other"} <= set(second)


def test_the_test_file_s_first_line_and_full_stops_are_handled(tiny):
    assert tiny.test.labels.tolist() == [1]
    only = row(tiny.test, 0, tiny.feature_names)
    assert only["capital-gain"] == only["hours-per-week"] == 1 and "age" not in only


def test_adult_is_what_its_authors_published(real):
    data = load("adult", folder=real)
    assert data.train.labels.bincount().tolist() == [24_720, 7_841]
    assert data.test.labels.bincount().tolist() == [12_435, 3_846]
    assert data.train.features.shape == (32_561, 112) and len(data.feature_names) == 112
    unknown = data.train.features[:, [n.endswith("=other") for n in data.feature_names]]
    assert int((unknown.sum(1) > 0).sum()) == 2_399  # as the description counts rows with a `?`


def test_the_lists_are_those_of_the_description(real):
    text = (real / "adult" / "adult.names").read_text()
    listed = dict(
        line.rstrip(".\n").split(": ") for line in text.splitlines() if ": " in line and line[0] != "|"
    )
    ours = {c.name: ", ".join(c.values) for c in adult.COLUMNS if isinstance(c, Category)}
    assert ours == {name: values for name, values in listed.items() if name in ours}
    assert len(ours) == 8
