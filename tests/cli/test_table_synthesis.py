# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize` on a table: bought and declared columns, one charge, and plain errors."""

import json
from pathlib import Path

import pandas as pd
import pytest

from sfumato import Budget, Ledger, cli
from sfumato.generative import TableGenerator

LINE = "synthesize people.csv --type age=number --epsilon 50 --delta 1e-5 --out made.csv"
DOMAIN = """
[age]
lower = 0
upper = 100
bins = 4
whole = true
[city]
values = ["Rome", "Oslo"]
"""


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"p{i // 2},{20 if i % 10 < 7 else 80},{'Rome' if i % 10 < 7 else 'Oslo'}" for i in range(800)]
    Path("people.csv").write_text("\n".join(["who,age,city", *rows]) + "\n")
    Path("people.toml").write_text(DOMAIN)

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_declared_columns_are_synthesized_and_the_generator_is_kept(says):
    code, out, err = says(f"{LINE} --domain people.toml --count 1000")
    assert code == 0, err
    made = pd.read_csv("made.csv")
    assert list(made.columns) == ["age", "city"] and len(made) == 1000
    assert abs((made["city"] == "Rome").mean() - 0.7) < 0.05
    assert (made[made["city"] == "Oslo"]["age"].dropna() >= 75).mean() > 0.95
    assert "differential privacy" in " ".join(out.split())
    assert len(TableGenerator.load("made.generator.npz").sample(5)) == 5


def test_a_unit_is_charged_once_and_is_not_synthesized(says):
    account = Ledger("ledger.db").open("a", privacy_unit="who", budget=Budget(epsilon=60.0, delta=1e-5))
    line = f"{LINE.replace('made.csv', 'made.parquet')} --privacy-unit who --contribution-bound 2"
    code, out, err = says(f"{line} --ledger ledger.db --account a --json")
    assert code == 0, err
    assert len(account.releases()) == 1 and json.loads(out)["account"] == "a"
    assert list(pd.read_parquet("made.parquet").columns) == ["age", "city"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--epsilon 0", "epsilon must be"),
        ("--method dp-cgan", "is for images"),
        ("--contribution-bound 2", "--privacy-unit"),
        ("--domain none.toml", "cannot be read"),
        ("--domain wrong.toml", "column 'age'"),
        ("--domain odd.toml", "unknown must be"),
        ("--target town", "town"),
        ("--out made", ".parquet or .csv"),
        ("--out people.csv", "exists"),
        ("--out nowhere/made.csv", "nothing can be written"),
    ],
)
def test_wrong_lines_are_told_and_nothing_is_made(says, more, said):
    Path("wrong.toml").write_text("[age]\nlowest = 3\n")
    Path("odd.toml").write_text('[age]\nunknown = "date"\n')
    name = more.split()[0]
    line = " --".join(p for p in LINE.split(" --") if not p.startswith(name.removeprefix("--") + " "))
    code, _, err = says(f"{line} {more}")
    assert code == 2 and said in " ".join(err.split()), err
    assert not Path("made.csv").exists()


def test_delta_is_needed_without_an_account(says):
    code, _, err = says("synthesize people.csv --epsilon 1 --out made.csv")
    assert code == 2 and "--delta" in err
