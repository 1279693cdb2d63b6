# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess
from pathlib import Path

import pytest

from sfumato import Budget, Ledger
from sfumato.cli.doctor import settings_health
from sfumato.cli.doctor.findings import State

FILE = """
ledger = "ledger.db"
account = "study"
privacy_unit = "client_id"
data = "people.csv"
[types]
age = "number"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)
    Path("sfumato.toml").write_text(FILE)
    Path("people.csv").write_text("client_id,age\n1,20\n")
    Path("people.csv").chmod(0o600)
    Ledger("ledger.db").open("study", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    return tmp_path


def found(change=("", "")):
    if change[0]:
        text = Path("sfumato.toml").read_text()
        assert change[0] in text
        Path("sfumato.toml").write_text(text.replace(*change))
    return {each.name: each for each in settings_health.check()}


def test_a_good_project_is_fine(project):
    assert {each.state for each in found().values()} == {State.OK}
    assert set(found()) == {"sfumato.toml", "account"}


def test_no_project_is_not_broken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [each.state for each in settings_health.check()] == [State.ABSENT]


@pytest.mark.parametrize(
    ("change", "name", "state", "said"),
    [
        (("account =", "acount ="), "sfumato.toml", State.BROKEN, "Did you mean 'account'?"),
        (('account = "study"', ""), "account", State.WARNING, "names no account"),
        (('"study"', '"other"'), "account", State.BROKEN, "has no account 'other'"),
        (("ledger.db", "none.db"), "account", State.BROKEN, "there is no ledger"),
        (('"client_id"', '"user_id"'), "privacy unit", State.BROKEN, "every release is refused"),
        (("people.csv", "none.csv"), "data", State.WARNING, "there is no file 'none.csv'"),
        (('"number"', '"numbr"'), "types", State.WARNING, "'numbr' of column 'age'"),
        (("ledger.db", "postgresql://a:s3cret@localhost:1/x"), "password", State.WARNING, "has the password"),
    ],
)
def test_what_does_not_fit_is_told(project, change, name, state, said):
    findings = found(change)
    assert findings[name].state is state and said in findings[name].found and findings[name].advice
    assert "s3cret" not in str([each.to_dict() for each in findings.values()])


def test_data_that_others_can_read_is_a_warning(project):
    Path("people.csv").chmod(0o644)
    assert found()["data"].advice == "Run: chmod 600 people.csv"


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_what_git_would_keep_is_a_warning(project):
    subprocess.run(["git", "init", "--quiet", "."], check=True)
    findings = list(settings_health.check())
    kept = [each.found for each in findings if each.name == "git"]
    assert [text.partition(", ")[0] for text in kept] == [
        "git would keep people.csv",
        "git would keep ledger.db",
    ]
    Path(".gitignore").write_text("*.csv\n*.db\n")
    assert "git" not in found()
