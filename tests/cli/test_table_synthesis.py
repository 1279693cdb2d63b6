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
        ("--public-size 0", "--public-size must be"),
        ("--method dp-cgan", "is for images"),
        ("--contribution-bound 2", "--privacy-unit"),
        ("--domain none.toml", "no file 'none.toml', which --domain names"),
        ("--domain wrong.toml", "column 'age' has no setting 'lowest'"),
        ("--domain odd.toml", "unknown must be"),
        ("--domain text.toml", "column 'city' of the file of --domain: values must be a list"),
        ("--evaluation none.csv", "no file 'none.csv', which --evaluation names"),
        ("--target town", "not a column that is synthesized: these are 'who', 'age', 'city'"),
        ("--out made", ".parquet or .csv. 'made' was given"),
        ("--out people.csv", "exists"),
        ("--out nowhere/made.csv", "nothing can be written"),
    ],
)
def test_wrong_lines_are_told_and_nothing_is_made(says, more, said):
    Path("wrong.toml").write_text("[age]\nlowest = 3\n")
    Path("text.toml").write_text('[city]\nvalues = "Rome"\n')
    Path("odd.toml").write_text('[age]\nunknown = "date"\n')
    name = more.split()[0]
    line = " --".join(p for p in LINE.split(" --") if not p.startswith(name.removeprefix("--") + " "))
    code, _, err = says(f"{line} {more}")
    assert code == 2 and said in " ".join(err.split()), err
    assert not Path("made.csv").exists()


def test_a_file_alone_is_enough_and_what_was_decided_is_told(says):
    """As the documentation writes it: no delta, no types. Both come from public facts or are bought."""
    code, out, err = says("synthesize people.csv --epsilon 50 --out made.parquet --json")
    assert code == 0, err
    found = json.loads(out)
    assert found["guarantee"]["delta"] == 1e-9 and found["guarantee"]["epsilon"] <= 50
    notes = " ".join(found["notes"])
    assert "1e-09 is used" in notes and "age (integer), city (text)" in notes
    made = pd.read_parquet("made.parquet")
    assert str(made["age"].dtype) == "Int64" and set(made["city"].dropna()) == {"Rome", "Oslo"}


@pytest.mark.parametrize(("more", "delta"), [("--public-size 800", 1e-3), ("--delta 1e-5", 1e-5)])
def test_a_declared_size_or_delta_is_used(says, more, delta):
    line = "synthesize people.csv --type age=number --epsilon 50 --domain people.toml --out made.csv --json"
    code, out, err = says(f"{line} {more}")
    assert code == 0, err
    assert json.loads(out)["guarantee"]["delta"] == delta and "is used" not in out


def test_a_declaration_that_needs_a_type_says_which_option_declares_it(says):
    code, _, err = says("synthesize people.csv --epsilon 50 --domain people.toml --out made.csv")
    assert code == 2 and "declare the type: --type age=number" in " ".join(err.split())


def test_declared_types_are_not_bought(says):
    code, out, err = says(f"{LINE} --type city=text --type who=text")
    assert code == 0, err
    assert "types of these columns" not in out and "No delta" not in out


def test_a_holdout_gives_scores_errors_and_a_page(says):
    whole = pd.read_csv("people.csv")
    whole[::3].to_csv("public.csv", index=False)
    line = f"{LINE} --domain people.toml --evaluation public.csv --target city --count 300"
    code, out, err = says(f"{line} --report page.html --json")
    assert code == 0, err
    found = json.loads(out)["evaluation"]
    assert len(found["scores"]) == 4 and min(each["auroc"] for each in found["scores"]) > 0.95
    assert found["marginals"]["mean_two_way"] < 0.1 and len(found["maps"]) == 1
    page = Path("page.html").read_text()
    for part in (
        "ROC curves",
        "the rows in public.csv",
        "after real rows",
        "age x city",
        "by chance",
        "Oslo",
    ):
        assert part in page
    assert "t-SNE</" not in page


def test_a_page_without_a_holdout_shows_shares_and_says_what_is_missing(says):
    code, out, err = says(f"{LINE} --domain people.toml --report page.html")
    assert code == 0, err
    page = Path("page.html").read_text()
    assert "A holdout of them would add" in page and "75 to 100" in page and "ROC" not in page
    assert "No sign of collapse" in " ".join(out.split())


@pytest.mark.parametrize("target", ["age", "city"])
def test_a_target_that_no_classifier_can_predict_leaves_the_other_figures(says, target):
    pd.DataFrame({"age": [1, 2, 3], "city": ["Bern"] * 3}).to_csv("public.csv", index=False)
    code, out, err = says(f"{LINE} --domain people.toml --evaluation public.csv --target {target}")
    assert code == 0, err
    assert "Total-variation" in out and "AUROC" not in out and "No classifier was scored" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,town\n1,Rome\n2,Rome\n", "the column 'city'"),
        ("age,city\n1,Rome\n", "two rows"),
        ("", "be read"),
    ],
)
def test_a_wrong_holdout_is_told_before_the_charge(says, text, said):
    Path("public.csv").write_text(text)
    account = Ledger("ledger.db").open("a", privacy_unit="row", budget=Budget(epsilon=60.0, delta=1e-5))
    code, _, err = says(f"{LINE} --domain people.toml --evaluation public.csv --ledger ledger.db --account a")
    assert code == 2 and said in " ".join(err.split()) and account.releases() == []


def test_an_advice_of_types_is_told_as_the_option():
    from sfumato.cli.wording import in_options

    said = "declare it: types={'age': 'number', 'my age': 'text'}, or leave 'types={}' out."
    told = in_options(said, {"types": "--type"})
    assert told == "declare it: --type age=number --type 'my age=text', or leave 'types={}' out."
    assert in_options(said, {}) == said
