# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from sfumato.cli.project.settings_file import ProjectSettings, read_settings
from sfumato.errors import InvalidParameterError

WHOLE = """
ledger = "ledger.db"
account = "study"
privacy_unit = "client_id"
data = "people.csv"

[types]
age = "number"

[bounds]
age = [18, 100.5]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("sfumato.toml")


def test_everything_in_the_file_is_read(file):
    file.write_text(WHOLE)
    found = read_settings()
    assert (found.ledger, found.account) == ("ledger.db", "study")
    assert (found.privacy_unit, found.data) == ("client_id", "people.csv")
    assert found.type_options == ["age=number"]
    assert found.bounds_of("age") == (18.0, 100.5) and found.bounds_of("income") is None


def test_without_a_file_nothing_is_set(file):
    assert read_settings() == ProjectSettings()
    assert read_settings().type_options == [] and read_settings().bounds_of("age") is None


def test_a_file_of_a_folder_above_is_not_read(file, monkeypatch, tmp_path):
    file.write_text(WHOLE)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert read_settings() == ProjectSettings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('acount = "a"', "unknown key 'acount' in 'sfumato.toml'. Did you mean 'account'"),
        ('privacy-unit = "a"', "Did you mean 'privacy_unit'"),
        ('zzz = "a"', "Known are: ledger, account, privacy_unit, data, types, bounds"),
        ("ledger = 3", "ledger in 'sfumato.toml' must be text in quotes"),
        ('types = "number"', "types in 'sfumato.toml' must be a table"),
        ("[types]\nage = 3", "the type of column 'age' in 'sfumato.toml' must be a text"),
        ("[bounds]\nage = [100, 18]", r"the bounds of column 'age' in .* must be two numbers"),
        ("[bounds]\nage = [0, nan]", "must be two numbers"),
        ("[bounds]\nage = [0, 1, 2]", "must be two numbers"),
        ('[bounds]\nage = ["0", "1"]', "must be two numbers"),
        ("[bounds]\nage = 3", "must be two numbers"),
        ("ledger = ", "is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_refused_with_what_to_change(file, text, says):
    file.write_text(text)
    with pytest.raises(InvalidParameterError, match=says):
        read_settings()


def test_a_file_that_cannot_be_read_is_refused(file):
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_settings()
    file.unlink()
    file.mkdir()
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_settings()
