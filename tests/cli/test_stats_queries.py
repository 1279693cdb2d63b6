# SPDX-License-Identifier: Apache-2.0
import json
import shlex

import pytest

from sfumato import Budget, Ledger, cli

AGE = "--type age=number --type client_id=integer"
WORKLOAD = """
group_by = "city"
keys = ["Rome", "Oslo"]
where = "age >= 30 AND NOT city = 'Bonn'"

[statistics]
n = {count = true}
total = {sum = "age", bounds = [0, 100], share = 2}
middle = {median = "age", bounds = [0, 100]}
people = {count_distinct = "client_id"}
"""


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run a command beside people.csv, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"{i},{20 + i % 60},{'Rome' if i % 4 else 'Oslo'},{'f' if i % 3 else 'm'}" for i in range(2000)]
    (tmp_path / "people.csv").write_text("\n".join(["client_id,age,city,sex", *rows]))
    (tmp_path / "asks.toml").write_text(WORKLOAD)

    def run(line: str):
        monkeypatch.setattr("sys.argv", ["sfumato", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_a_statistic_of_groups_is_a_table(says):
    code, out, err = says(
        f"stats people.csv mean age {AGE} --bounds 0 100 --group-by city --key Rome --key Oslo "
        "--where 'age >= 30' --epsilon 5 --json"
    )
    assert code == 0, err
    said = json.loads(out)
    assert [row["key"]["city"] for row in said["rows"]] == ["Rome", "Oslo"]
    assert all(row["answer"]["value"] == pytest.approx(54.5, abs=4) for row in said["rows"])


def test_several_columns_take_domains_and_common_keys_can_be_found(says):
    keys = "--key city=Rome --key city=Oslo --key sex=f"
    code, out, err = says(f"stats people.csv count --group-by city --group-by sex {keys} --epsilon 5 --json")
    assert code == 0, err
    assert [row["key"] for row in json.loads(out)["rows"]] == [
        {"city": "Rome", "sex": "f"}, {"city": "Oslo", "sex": "f"},
    ]  # fmt: skip
    code, out, err = says("stats people.csv count --group-by city --epsilon 2 --delta 1e-6 --json")
    assert [row["key"]["city"] for row in json.loads(out)["rows"]] == ["Oslo", "Rome"], err


def test_a_workload_is_one_charge_and_is_written_to_a_file(says, tmp_path):
    Ledger("people.db").open("people", privacy_unit="client_id", budget=Budget(epsilon=2, delta=1e-6))
    asks = f"stats people.csv --workload asks.toml {AGE} --privacy-unit client_id"
    code, out, err = says(f"{asks} --epsilon 1.5 --ledger people.db --account people --out table.csv")
    assert code == 0 and "Rome" in out, err
    assert (tmp_path / "table.csv").read_text().startswith("city,n,n_lower,n_upper,total")
    assert len(Ledger("people.db").account("people").releases()) == 1
    code, out, err = says(f"{asks} --epsilon 1.5 --ledger people.db --account people")
    assert code != 0 and "query fits with --epsilon 0" in " ".join(err.split())


def test_a_plan_spends_nothing(says):
    code, out, err = says(f"stats people.csv --workload asks.toml {AGE} --epsilon 1 --plan --json")
    assert code == 0, err
    assert [each["name"] for each in json.loads(out)["statistics"]] == ["n", "total", "middle", "people"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stats people.csv --epsilon 1", "name a statistic"),
        ("stats people.csv count --workload asks.toml --epsilon 1", "leave them out"),
        ("stats people.csv count --group-by city --epsilon 1", "is private"),
        ("stats people.csv keys city --where 'age > 1' --epsilon 1", "no groups"),
        ("stats people.csv count --where 'age > (SELECT 1)' --epsilon 1", "WHERE"),
        ("stats people.csv count --group-by city --group-by sex --key Rome --epsilon 1", "column=value"),
        ("stats people.csv mean age --type age=number --where 'age > 1' --epsilon 1", "bounds"),
        ("stats people.csv --workload missing.toml --epsilon 1", "cannot be read"),
        ("stats people.csv --workload wrong.toml --epsilon 1", "group_buy"),
        ("stats people.csv --workload empty.toml --epsilon 1", "[statistics]"),
        ("stats people.csv --workload kind.toml --epsilon 1", "must ask one of"),
    ],
)
def test_what_does_not_fit_is_refused(says, tmp_path, line, said):
    (tmp_path / "wrong.toml").write_text("group_buy = 'city'\n[statistics]\nn = {count = true}")
    (tmp_path / "empty.toml").write_text("group_by = 'city'")
    (tmp_path / "kind.toml").write_text("[statistics]\nn = {share = 1}")
    code, _, err = says(line)
    assert code != 0 and said in " ".join(err.split())
