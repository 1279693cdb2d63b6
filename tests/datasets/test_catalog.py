# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.datasets import load, names
from sfumato.errors import InvalidParameterError


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        InvalidParameterError, match=r"unknown data set 'minst'. Use one of: digits, .*shakespeare"
    ):
        load("minst")


def test_names_are_the_eight_sets():
    assert names() == (
        *("digits", "breast-cancer", "mnist", "fashion-mnist"),
        *("cifar10", "credit-default", "adult", "shakespeare"),
    )


@pytest.mark.parametrize("name", [name for name in names() if name != "cifar10"])  # that one has a slow test
def test_every_set_keeps_its_bounds_and_carries_its_name_source_and_license(name, request):
    folder = None if name in names()[:2] else request.getfixturevalue("real")
    data = load(name, folder=folder)
    assert data.name == name and data.source and data.license
    for examples in (data.train, data.test):
        assert examples.features.min() >= data.bounds[0] and examples.features.max() <= data.bounds[1]
        assert examples.labels.min() >= 0 and examples.labels.max() < data.num_classes


def test_the_embedded_sets_look_at_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "absent"))
    assert len(load("digits").train) == 1_437
