# SPDX-License-Identifier: Apache-2.0
"""`sfumato init` makes a project that runs at once, and overwrites nothing."""

import json
import os
import re
import stat
import tomllib
from pathlib import Path

import pytest

from sfumato import Budget, Ledger
from sfumato._extras import how_to_install
from sfumato.cli.project import init, templates

FILES = {"sfumato.toml", "first_release.py", "example.csv", "ledger.db", ".gitignore"}


def tree(folder="."):
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_project_has_a_ledger_settings_a_script_a_table_and_a_gitignore(ran):
    code, out, _ = ran("init study --privacy-unit person --epsilon 2 --delta 1e-5 --json")
    said = json.loads(out)
    assert code == 0 and {path.name for path in Path("study").iterdir()} == FILES
    account = Ledger("study/ledger.db", create=False).account("study")
    assert account.privacy_unit == "person" and account.budget == Budget(epsilon=2, delta=1e-5)
    settings = tomllib.loads(Path("study/sfumato.toml").read_text())
    assert settings["ledger"] == "ledger.db" and settings["account"] == "study"
    assert Path("study/example.csv").read_text().startswith("person,age,")
    assert "*.db" in Path("study/.gitignore").read_text().split()
    assert said["next"][0] == "cd study" and len(said["next"]) == 4


@pytest.mark.skipif(os.name != "posix", reason="permissions of other systems are others")
def test_others_cannot_read_the_ledger_and_the_data(ran):
    ran("init study")
    for name in ("ledger.db", "example.csv"):
        assert stat.S_IMODE(Path("study", name).stat().st_mode) == 0o600


def test_the_three_commands_that_it_prints_run_as_they_are(ran, monkeypatch, exit_code):
    _, out, _ = ran("init study")
    place, script, *lines = re.findall(r"^  (\S.*)$", out.partition("Next:\n")[2], re.MULTILINE)
    assert place == "cd study" and script == "python first_release.py" and len(lines) == 2
    folder = Path("study").resolve()
    monkeypatch.chdir(folder)
    assert exit_code(folder / "first_release.py", cwd=folder.parent) == 0  # from any folder
    account = Ledger("ledger.db", create=False).account("study")
    assert len(account.releases()) == 2 and account.spent().epsilon == pytest.approx(0.2)
    for line in lines:
        code, shown, err = ran(line.removeprefix("sfumato "))
        assert code == 0 and shown, err
    assert len(account.releases()) == 3


def test_in_this_folder_the_account_has_its_name(ran, tmp_path):
    _, out, _ = ran("init --json")
    said = json.loads(out)
    assert said["account"] == tmp_path.name and said["next"][0] == "python first_release.py"
    assert {path.name for path in tmp_path.iterdir()} == FILES


@pytest.mark.parametrize("name", ["sfumato.toml", "first_release.py", "example.csv"])
def test_a_file_that_is_there_is_named_and_nothing_is_made(ran, name):
    Path("study").mkdir()
    Path("study", name).write_text("mine")
    before = tree()
    code, out, err = ran("init study")
    assert code == 2 and out == "" and f"study/{name} is there already" in err
    assert tree() == before


def test_a_second_time_names_all_files(ran):
    ran("init study")
    before = tree()
    code, _, err = ran("init study --epsilon 5")
    assert code == 2 and all(name in err for name in ("sfumato.toml", "first_release.py", "example.csv"))
    assert tree() == before


def test_a_link_that_leads_nowhere_is_a_file_that_is_there(ran):
    Path("study").mkdir()
    Path("study/example.csv").symlink_to("../elsewhere.csv")
    assert ran("init study")[0] == 2 and not Path("elsewhere.csv").exists()


def test_a_ledger_that_is_there_is_used_only_if_it_is_named(ran):
    Path("study").mkdir()
    Ledger("study/ledger.db").open("older", privacy_unit="id", budget=Budget(epsilon=1, delta=0))
    before = tree()
    code, _, err = ran("init study")
    assert code == 2 and "pass --ledger study/ledger.db" in err and tree() == before
    assert ran("init study --ledger study/ledger.db")[0] == 0
    assert [a.name for a in Ledger("study/ledger.db", create=False).accounts()] == ["older", "study"]
    assert tomllib.loads(Path("study/sfumato.toml").read_text())["ledger"] == "ledger.db"


def test_a_ledger_elsewhere_is_written_relative_to_the_project(ran, monkeypatch):
    monkeypatch.setenv("SFUMATO_LEDGER", "team.db")
    assert ran("init study")[0] == 0
    assert tomllib.loads(Path("study/sfumato.toml").read_text())["ledger"] == "../team.db"
    assert Ledger("team.db", create=False).account("study").privacy_unit == "client_id"
    assert not Path("study/ledger.db").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("init study --epsilon 0", "--epsilon must be"),
        ("init study --epsilon nan", "--epsilon must be"),
        ("init study --delta 0.5", "--delta must be at most 0.1"),
        ("init study --privacy-unit age", "is the name of another column"),
        ("init study --privacy-unit City", "is the name of another column"),
        ("init study --ledger nowhere/ledger.db", "nowhere does not exist"),
        ("init study --ledger postgresql://ann:s3cret@host/db", "has a password"),
        ("init study --ledger mysql://host/db", "a ledger lives in a file"),
        ("init people.csv", "is a file. Give the name of a folder"),
        ("init people.csv/study", "cannot be made"),
    ],
)
def test_what_is_refused_leaves_nothing(ran, line, said):
    Path("people.csv").write_text("a\n1\n")
    code, out, err = ran(line)
    assert code == 2 and out == "" and said in err and "s3cret" not in err
    assert [path.name for path in Path().iterdir()] == ["people.csv"]


def test_a_name_that_is_none_leaves_nothing(ran):
    code, _, err = ran("init study --name", "two\nlines")
    assert code == 2 and "one line of printable characters" in err
    assert list(Path().iterdir()) == []


def test_an_account_with_another_budget_is_refused_and_its_ledger_stays(ran):
    Ledger("team.db").open("study", privacy_unit="client_id", budget=Budget(epsilon=3, delta=1e-6))
    before = tree()
    code, _, err = ran("init study --ledger team.db")
    assert code == 2 and "has a budget of" in err
    assert tree() == before and not Path("study").exists()


def test_a_failure_in_between_takes_away_what_was_made(ran, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(templates, "with_lines", full)
    code, out, _ = ran("init study --json")  # a .gitignore alone does not stop a project
    assert code == 0 and "Add to it: *.db" in json.loads(out)["notes"][0]
    monkeypatch.setattr(init, "_open_account", full)
    with pytest.raises(OSError, match="No space"):
        ran("init other/deep")
    assert not Path("other").exists()


def test_lines_of_a_gitignore_are_kept(ran):
    Path(".gitignore").write_text("*.csv\n/mine")
    said = json.loads(ran("init --json")[1])
    assert "*.csv" not in said["added_to_gitignore"] and "*.db" in said["added_to_gitignore"]
    assert Path(".gitignore").read_text().startswith("*.csv\n/mine\n")


def test_without_the_extra_for_files_it_says_what_to_install(ran, monkeypatch):
    monkeypatch.setattr(init, "find_spec", lambda name: None)
    notes = json.loads(ran("init study --json")[1])["notes"]  # a table would break the lines
    assert any(how_to_install("tables") in note for note in notes)
