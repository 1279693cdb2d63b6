# SPDX-License-Identifier: Apache-2.0
"""`sfumato doctor`: a table for people, JSON for programs, and 1 if something is broken."""

import json
from pathlib import Path

import pytest

from sfumato import Budget, Ledger
from sfumato.cli.doctor import packages
from sfumato.cli.doctor.findings import Finding, State


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Leave out checks that are tested elsewhere and depend on the machine."""
    monkeypatch.setattr("sfumato.cli.doctor.gpu.devices_of_driver", lambda: [])
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SFUMATO_DATA", raising=False)


def test_everything_is_checked_and_told_to_programs(ran, quick):
    code, out, _ = ran("doctor --json")
    said = json.loads(out)
    assert code == 0 and said["ok"] is True
    assert [*dict.fromkeys(each["area"] for each in said["checks"])] == [
        "versions",
        "noise",
        "data",
        "project",
        "ledger",
        "GPU",
    ]
    assert all(set(each) == {"area", "name", "state", "found", "advice"} for each in said["checks"])
    assert not Path("ledger.db").exists()


def test_something_broken_ends_with_1_and_says_what_to_do(ran, quick):
    Path("ledger.db").write_bytes(b"not a database")
    code, out, _ = ran("doctor")
    assert code == 1
    assert "BROKEN  ledger, ledger:" in out and out.rstrip().endswith("1 broken, 1 warning.")
    assert out.index("BROKEN  ledger") < out.index("WARNING  ledger")  # what is urgent comes first
    assert json.loads(ran("doctor --json")[1])["ok"] is False


def test_warnings_end_with_0(ran, quick):
    Ledger("ledger.db").open("a", privacy_unit="id", budget=Budget(epsilon=1, delta=0))
    Path("ledger.db").chmod(0o644)
    code, out, _ = ran("doctor")
    assert code == 0 and "Run: chmod 600" in out and "0 broken, 1 warning." in out


def test_the_ledger_is_that_of_the_flag_the_environment_or_the_settings(ran, quick, monkeypatch):
    def missing():
        checks = json.loads(ran("doctor --json")[1])["checks"]
        return next(each["found"] for each in checks if each["area"] == "ledger")

    assert "there is none at ledger.db" in missing()
    Path("sfumato.toml").write_text('ledger = "settings.db"\n')
    assert "settings.db" in missing()
    monkeypatch.setenv("SFUMATO_LEDGER", "environment.db")
    assert "environment.db" in missing()
    code, out, _ = ran("doctor --ledger flag.db")
    assert code == 1 and "flag.db" in out


def test_settings_that_are_wrong_are_told_and_do_not_stop_the_rest(ran, quick):
    Path("sfumato.toml").write_text('ledgr = "x.db"\n')
    code, out, _ = ran("doctor --json")
    said = {(each["area"], each["name"]): each for each in json.loads(out)["checks"]}
    assert code == 1 and "Did you mean 'ledger'?" in said["project", "sfumato.toml"]["found"]
    assert said["ledger", "ledger"]["state"] == "absent" and said["noise", "statistics"]["state"] == "ok"


def test_a_check_that_fails_does_not_stop_the_others(ran, quick, monkeypatch):
    def failing():
        raise RuntimeError("no metadata")
        yield Finding(area="a", name="n", state=State.OK, found="")

    monkeypatch.setattr(packages, "check", failing)
    code, out, _ = ran("doctor --json")
    checks = json.loads(out)["checks"]
    assert code == 1 and "no metadata" in checks[0]["found"] and len(checks) > 5


def test_a_table_has_80_columns(ran, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = ran("doctor")
    assert max(map(len, out.splitlines())) <= 80
