# SPDX-License-Identifier: Apache-2.0
"""One schema for every source: the same question has the same answer, or the same refusal."""

import csv
import datetime
import json
import os

import duckdb
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sfumato as sf
from sfumato import cli
from sfumato.errors import ColumnTypeError, InvalidParameterError
from sfumato.private import PrivateData, fit
from sfumato.statistics import histogram, mean, private_table
from sfumato.statistics.questions.top_k import top_k
from sfumato.statistics.sources.schema import plain_type_of, read_types

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

ROWS = 600
NAMES = ("who", "age", "children", "member", "income", "since")
TYPES = {"age": "number", "children": "integer", "member": "boolean", "since": "date"}
PEOPLE = {
    "who": [f"p{i}" for i in range(ROWS)],
    "age": [20.5 + i % 60 for i in range(ROWS)],
    "children": [i % 3 for i in range(ROWS)],
    "member": [i % 4 == 0 for i in range(ROWS)],
    "income": [">50K" if i % 60 > 30 else "<=50K" for i in range(ROWS)],
    "since": [datetime.date(2020 + i % 2, 1, 1) for i in range(ROWS)],
}
CENTS = 1e4  # an epsilon at which answers are what they are


def arrow() -> pa.Table:
    return pa.table(PEOPLE)


def of_delimited(path, delimiter):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([NAMES, *zip(*PEOPLE.values(), strict=True)])
    return {"source": str(path)}


def of_parquet(path):
    pq.write_table(arrow(), path)
    return {"source": str(path)}


def of_duckdb(path):
    people = arrow()  # DuckDB finds it by this name
    with duckdb.connect(str(path)) as connection:
        connection.sql("CREATE TABLE people AS SELECT * FROM people")
    assert len(people) == ROWS
    return {"source": f"duckdb://{path}", "table": "people"}


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory):
    runtime = tmp_path_factory.mktemp("runtime")
    runtime.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_RUNTIME_DIR", str(runtime))
        import pgserver

        server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="stop")
        rows = ", ".join(
            f"('{who}', {age}, {children}, {member}, '{income}', '{since}')"
            for who, age, children, member, income, since in zip(*PEOPLE.values(), strict=True)
        )
        columns = "who text, age float8, children bigint, member boolean, income text, since date"
        server.psql(f"CREATE TABLE people ({columns}); INSERT INTO people VALUES {rows}")
        yield {"source": server.get_uri(), "table": "people"}
        server.cleanup()


FILES = ["csv", "tsv", "parquet", "duckdb", "postgresql"]
SOURCES = [*FILES, "pandas", "polars", "pyarrow", "ibis"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory, postgresql):
    """Give the same people in every kind of source."""
    folder = tmp_path_factory.mktemp("people")
    of_duckdb(folder / "ibis.duckdb")
    connected = ibis.duckdb.connect(folder / "ibis.duckdb")
    yield {
        "csv": of_delimited(folder / "people.csv", ","),
        "tsv": of_delimited(folder / "people.tsv", "\t"),
        "parquet": of_parquet(folder / "people.parquet"),
        "duckdb": of_duckdb(folder / "people.duckdb"),
        "postgresql": postgresql,
        "pandas": {"source": pd.DataFrame(PEOPLE).assign(since=lambda f: pd.to_datetime(f["since"]))},
        "polars": {"source": pl.DataFrame(PEOPLE)},
        "pyarrow": {"source": arrow()},
        "ibis": {"source": connected.table("people")},
    }
    connected.disconnect()


@pytest.fixture(scope="module")
def tables(sources):
    """Give the tables of all sources, with the types that a CSV file does not have."""
    opened = {}
    for name, given in sources.items():
        rest = {key: value for key, value in given.items() if key != "source"}
        opened[name] = private_table(given["source"], **rest, types=TYPES)
    yield opened
    for name in ("duckdb", "postgresql"):
        opened[name].owned.engine.disconnect()


def logistic(*classes):
    return sf.LogisticRegression(epsilon=500.0, clip_norm=100.0, classes=classes, random_state=0)


def predicted(table, target, *classes):
    model = fit(table, logistic(*classes), target=target, features=["age"])
    return model.predict([[25.0], [75.0]]).tolist()


DAY = datetime.date(2020, 1, 1)
ANSWERS = {
    "mean of numbers": (
        lambda t: mean(t["age"], bounds=(0, 100), epsilon=CENTS).value,
        pytest.approx(50.0, abs=0.1),
    ),
    "mean of whole numbers": (
        lambda t: mean(t["children"], bounds=(0, 5), epsilon=CENTS).value,
        pytest.approx(1.0, abs=0.1),
    ),
    "mean of true and false": (
        lambda t: mean(t["member"], bounds=(0, 1), epsilon=CENTS).value,
        pytest.approx(0.25, abs=0.1),
    ),
    "categories of text": (
        lambda t: histogram(t.categories("income"), categories=[">50K", "?"], epsilon=CENTS).value.counts,
        (290, 0),
    ),
    "categories of whole numbers": (
        lambda t: histogram(t.categories("children"), categories=[1, 2, 7], epsilon=CENTS).value.counts,
        (200, 200, 0),
    ),
    "categories of true and false": (
        lambda t: histogram(t.categories("member"), categories=[True, False], epsilon=CENTS).value.counts,
        (150, 450),
    ),
    "categories of dates": (
        lambda t: histogram(t.categories("since"), categories=[DAY], epsilon=CENTS).value.counts,
        (300,),
    ),
    "top of whole numbers": (
        lambda t: top_k(t.categories("children"), k=1, categories=[7, 2], epsilon=CENTS).value,
        (2,),
    ),
    "keys of text": (lambda t: t.keys("income", epsilon=50, delta=0.1).release().value, ["<=50K", ">50K"]),
    "keys of whole numbers": (
        lambda t: t.keys("children", epsilon=50, delta=0.1).release().value,
        [0, 1, 2],
    ),
    "groups of whole numbers": (
        lambda t: t.group_by("children", keys=[0, 5]).count(epsilon=CENTS).release().value,
        {0: 200, 5: 0},
    ),
    "groups of two columns": (
        lambda t: t.group_by("income", "member", keys=[(">50K", True)]).count(epsilon=CENTS).release().value,
        {(">50K", True): 70},
    ),
    "classes of text": (lambda t: predicted(t, "income", "<=50K", ">50K"), ["<=50K", ">50K"]),
    "classes of whole numbers": (lambda t: len(predicted(t, "children", 0, 1, 2)), 2),
    "classes of true and false": (lambda t: len(predicted(t, "member", False, True)), 2),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_source_gives_the_same_answer(tables, name):
    ask, expected = ANSWERS[name]
    assert {source: ask(table) for source, table in tables.items()} == dict.fromkeys(tables, expected)


def through(ask):
    """Return a question of one column that needs an account, and pays if it is not refused."""
    return lambda table, account: ask(table, account=account, epsilon=0.1)


REFUSED = {
    "mean of text": through(lambda t, **terms: mean(t["income"], bounds=(0, 1), **terms)),
    "mean of dates": through(lambda t, **terms: mean(t["since"], bounds=(0, 1), **terms)),
    "rows of text": lambda t, account: t.rows("age", "income"),
    "mean by group of text": lambda t, account: t.group_by("member", keys=[True]).mean(
        "income", bounds=(0, 1), epsilon=0.1
    ),
    "a number as a category of text": through(
        lambda t, **terms: histogram(t.categories("income"), categories=[1, 2], **terms)
    ),
    "a text as a category of whole numbers": through(
        lambda t, **terms: top_k(t.categories("children"), k=1, categories=["1"], **terms)
    ),
    "a number as a key of text": lambda t, account: t.group_by("income", keys=[1]),
    "a text as a key of dates": lambda t, account: t.group_by("since", keys=["2020-01-01"]),
    "numbers as classes of text": lambda t, account: fit(t, logistic(0, 1), target="income", account=account),
    "texts as classes of numbers": lambda t, account: fit(
        t, logistic("0", "1"), target="children", account=account
    ),
    "a text as a target of a line": lambda t, account: fit(
        t,
        sf.estimators.TheilSen(epsilon=1.0, feature_bounds=(0, 1), target_bounds=(0, 1)),
        target="income",
        features=["age"],
        account=account,
    ),
}
TEXTS = {
    "mean of text": (
        "column 'income' has type text, which is not a number; nothing was charged. Name a column of "
        "numbers; or, if its texts are numbers, declare the type when you open the data: "
        "types={'income': 'number'}."
    ),
    "a number as a category of text": (
        "column 'income' has type text, but a given category has another type; nothing was charged. "
        "Pass texts; or, if its texts are values of type integer, declare the type when you open the data: "
        "types={'income': 'integer'}."
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_source_refuses_in_the_same_words_before_anything_is_charged(tables, account, name):
    said = {}
    for source, table in tables.items():
        with pytest.raises(ColumnTypeError, match="nothing was charged") as refusal:
            REFUSED[name](table, account)
        said[source] = str(refusal.value)
    assert said == dict.fromkeys(tables, TEXTS.get(name, said["csv"]))
    assert account.spent().epsilon == 0 and not account.releases()


ARRAYS = {
    "numpy": np.array(["a", "1"]),
    "numpy objects": np.array(["a", None], dtype=object),
    "list": ["a", "1"],
    "pandas": pd.Series(["a", "1"], name="income"),
    "pandas categories": pd.Series(["a", "1"], name="income", dtype="category"),
    "pandas without a value": pd.Series([None], name="income", dtype="string"),
    "polars": pl.Series("income", ["a", "1"]),
    "polars without a value": pl.Series("income", [None], dtype=pl.String),
    "pyarrow": pa.chunked_array([["a", "1"]]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_text_is_refused_in_the_same_words(name, account):
    with pytest.raises(ColumnTypeError) as refusal:
        mean(ARRAYS[name], bounds=(0, 1), epsilon=0.1, account=account)
    named = getattr(ARRAYS[name], "name", "values")
    assert str(refusal.value) == TEXTS["mean of text"].replace("income", named)
    assert account.spent().epsilon == 0


def test_categories_of_another_type_than_an_array_are_refused(account):
    for values, categories in (
        (np.array([1, 2]), ["1"]),
        (pl.Series([1.5]), ["1.5"]),
        (np.array(["1"]), [1]),
        (pd.Series([True]), ["True"]),
    ):
        with pytest.raises(ColumnTypeError, match="category has another type; nothing was charged"):
            histogram(values, categories=categories, epsilon=0.1, account=account)
    assert account.spent().epsilon == 0
    mixed = histogram([1, "a", None, 1], categories=[1, "a"], epsilon=CENTS)
    assert mixed.value.counts == (2, 1)  # a list has no type of its own


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.zeros(2), "number"),
        (np.zeros(2, dtype=np.uint8), "integer"),
        (np.array([True]), "boolean"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "timestamp"),
        (np.array([None, 1]), None),
        ([1, 2], None),
        (pd.Series([1], dtype="Int64"), "integer"),
        (pd.Series(["a"], dtype="string"), "text"),
        (pl.Series([datetime.date(2020, 1, 1)]), "date"),
        (pl.Series([{"a": 1}]), None),
        (pa.array([1.5]), "number"),
        (pa.array([True]), "boolean"),
    ],
    ids=str,
)
def test_the_type_of_an_array_is_what_it_declares(values, kind):
    assert plain_type_of(values) == kind


# --- declared types ---------------------------------------------------------------------------------------


def read(tmp_path, kind, *cells, source="csv"):
    """Return what becomes of texts that are declared to be of a type."""
    if source == "csv":
        (tmp_path / "t.csv").write_text("\n".join(["k,x", *(f"{i},{cell}" for i, cell in enumerate(cells))]))
        table = private_table(tmp_path / "t.csv", types={"x": kind})
    else:
        table = private_table(pd.DataFrame({"x": pd.Series(cells, dtype=object)}), types={"x": kind})
    return sorted(table.categories("x").tallies().elements(), key=str)


@pytest.mark.parametrize("source", ["csv", "pandas"])
def test_a_text_that_does_not_fit_its_declared_type_is_missing(tmp_path, source):
    assert read(tmp_path, "number", "1.5", " 2 ", "1e3", "x", "1,5", source=source) == [1.5, 1000, 2.0]
    assert read(tmp_path, "integer", "1", "-2", " 3 ", "3.7", "1e3", "9" * 30, "x", source=source) == [
        -2,
        1,
        3,
    ]
    assert read(tmp_path, "boolean", "true", "no", "1", "2", source=source) == [False, True, True]
    assert read(tmp_path, "date", "2024-02-29", "2023-02-29", "x", source=source) == [
        datetime.date(2024, 2, 29)
    ]
    assert read(tmp_path, "text", "1", "x", source=source) == ["1", "x"]


def test_objects_of_pandas_are_read_one_by_one_by_the_declared_type(tmp_path):
    cells = [True, 1, "2", 2.5, 10**400, -(10**400), None, "x", 3.0]
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    numbers = private_table(frame, types={"x": "number"})["x"].ordered((-9, 9)).tolist()
    assert numbers == [-9.0, 1.0, 1.0, 2.0, 2.5, 3.0, 9.0]
    assert read(tmp_path, "integer", *cells, source="pandas") == [1, 1, 2, 3]
    large = pa.table({"x": [2**60, 2**60 + 1]})
    declared = private_table(large, types={"x": "integer"}).categories("x")
    assert declared.tally([2**60, 2**60 + 1]).tolist() == [1, 1]


@pytest.mark.parametrize("more", ["x", None, 10**400, 2.5], ids=repr)
def test_no_row_changes_what_a_declared_column_of_objects_is(more):
    for cells in ([True, None], [1, 2], [1.5, None], [1, 10**400]):
        tables = [
            private_table(pd.DataFrame({"x": rows}), types={"x": "number"})
            for rows in (cells, [*cells, more])
        ]
        assert tables[0].schema == tables[1].schema == {"x": "float64"}
        before, after = (table["x"].ordered((-9, 9)).tolist() for table in tables)
        assert set(before) <= set(after) and len(after) - len(before) in (0, 1)


def test_types_may_be_in_a_file(tmp_path):
    (tmp_path / "t.csv").write_text("age,city\n30,Rome\n")
    (tmp_path / "types.toml").write_text('age = "number"\n')
    assert private_table(tmp_path / "t.csv", types=tmp_path / "types.toml").schema["age"] == "float64"
    (tmp_path / "types.toml").write_text("age = 3\n")
    with pytest.raises(InvalidParameterError, match="types must map names"):
        read_types(tmp_path / "types.toml")
    (tmp_path / "types.toml").write_text("age: number\n")
    with pytest.raises(InvalidParameterError, match="is not TOML"):
        read_types(tmp_path / "types.toml")
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_types(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"x": "numbr"}, "Did you mean 'number'"),
        ({"x": "array<int64>"}, "cannot have the type 'array<int64>'"),
        ({"x": "timestamp('UTC')"}, "cannot have the type"),
        ({"x": "??"}, "Types are: number, integer, text, boolean, date, timestamp"),
        ({"y": "number"}, r"do not exist: y. The table has: x"),
        (["x"], "types must map names"),
    ],
)
def test_a_type_that_cannot_be_declared_is_refused(tmp_path, types, said):
    (tmp_path / "t.csv").write_text("x\n1\n")
    with pytest.raises(InvalidParameterError, match=said):
        private_table(tmp_path / "t.csv", types=types)


def test_a_database_that_cannot_convert_softly_says_so(tables):
    people = tables["postgresql"].owned.expression
    with pytest.raises(
        InvalidParameterError, match=r"has type text in the schema.*Make a view in the database"
    ):
        private_table(people, types={"income": "number"})
    assert private_table(people, types={"income": "text"}).schema["income"] == "string"


def test_a_table_without_numbers_says_which_types_to_declare(tmp_path):
    (tmp_path / "t.csv").write_text("age,city\n30,Rome\n")
    with pytest.raises(ColumnTypeError, match=r"\(age, city\).*types=\{'COLUMN': 'number'\}"):
        fit(private_table(tmp_path / "t.csv"), logistic("Rome", "Oslo"), target="city")


# --- models -----------------------------------------------------------------------------------------------


def test_rows_with_another_label_are_left_out_and_labels_come_back_as_they_are(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *["1,a", "-1,b", "9,c", "9,"] * 300]))
    rows = private_table(tmp_path / "t.csv", types={"x": "number"}).rows("x", "y", classes=("b", "a"))
    assert np.unique(np.concatenate(list(rows.batches())), axis=0).tolist() == [[-1.0, 0.0], [1.0, 1.0]]
    table = private_table(tmp_path / "t.csv", types={"x": "number"})
    model = fit(table, logistic("b", "a"), target="y")
    assert model.classes_.tolist() == ["b", "a"] and model.predict([[1.0], [-1.0]]).tolist() == ["a", "b"]


def test_a_search_and_a_network_take_classes_of_text(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *["1,yes", "-1,no"] * 100, "1,maybe"]))
    table = private_table(tmp_path / "t.csv", types={"x": "number"})
    search = sf.estimators.Search(logistic("no", "yes"), candidates=[{"regularization": 1.0}], epsilon=600.0)
    assert fit(table, search, target="y").predict([[1.0], [-1.0]]).tolist() == ["yes", "no"]
    account = sf.Ledger(tmp_path / "l.db").open(
        "t", privacy_unit="row", budget=sf.Budget(epsilon=99, delta=1e-3)
    )
    data, network = PrivateData(table, account), torch.nn.Linear(1, 2)
    terms = {"features": ["x"], "target": "y", "public_size": 200, "expected_batch_size": 100, "steps": 30}
    terms |= {"noise_multiplier": 0.5, "delta": 1e-4, "learning_rate": 1.0, "progress": False}
    with pytest.raises(ColumnTypeError, match="has type text, but a given class has another type"):
        data.train(network, classes=(0, 1), **terms)
    assert not account.releases()
    data.train(network, classes=("no", "yes"), **terms)
    assert network(torch.tensor([[1.0], [-1.0]])).argmax(1).tolist() == [1, 0]


# --- the command line -------------------------------------------------------------------------------------


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run a command, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    connect, connected = ibis.connect, []

    def connecting(url):
        connected.append(connect(url))
        return connected[-1]

    monkeypatch.setattr(ibis, "connect", connecting)

    def run(*words: str):
        monkeypatch.setattr("sys.argv", ["sfumato", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, " ".join(err.split())

    yield run
    for backend in connected:  # which else end with the process
        backend.disconnect()


def place(source):
    return source["source"] + (f"#{source['table']}" if "table" in source else "")


DECLARED = [word for name, kind in TYPES.items() for word in ("--type", f"{name}={kind}")]
TOLD = [
    (["mean", "age", "--bounds", "0", "100"], 50.0),
    (["count", "income"], ROWS),
    (["histogram", "income", "--category", ">50K"], 290),
    (["histogram", "children", "--category", "1"], 200),
    (["histogram", "member", "--category", "true"], 150),
    (["histogram", "since", "--category", "2020-01-01"], 300),
]


def number_in(value):
    """Return the number of an answer, of a count by its category too."""
    return value[0]["value"] if isinstance(value, list) else value


@pytest.mark.parametrize("source", FILES)
def test_commands_give_the_same_answer_for_every_source(says, sources, source):
    for asked, expected in TOLD:
        code, out, err = says(
            "stats", place(sources[source]), *asked, *DECLARED, "--epsilon", "500", "--json"
        )
        assert code == 0, err
        assert number_in(json.loads(out)["value"]) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("source", FILES)
def test_commands_refuse_in_the_same_words_and_charge_nothing(says, sources, source, tmp_path):
    account = sf.Ledger(tmp_path / "l.db").open("p", privacy_unit="row", budget=sf.Budget(epsilon=9, delta=0))
    charged = ["--epsilon", "1", "--ledger", "l.db", "--account", "p"]
    where, target = place(sources[source]), ("--target", "children", "--label", "a", "--label", "b")
    refused = {
        ("stats", where, "mean", "income", "--bounds", "0", "1"): (
            "error: column 'income' has type text, which is not a number; nothing was charged. Name a column "
            "of numbers; or, if its texts are numbers, declare the type: --type income=number"
        ),
        ("stats", where, "histogram", "children", "--category", "one"): (
            "error: 'one' cannot be a value of column 'children', whose type is integer. Pass values of "
            "that type, or declare another type for the column."
        ),
        ("fit", where, "logistic-regression", *target, "--clip-norm", "1"): (
            "error: 'a' cannot be a value of column 'children', whose type is integer. Pass values of "
            "that type, or declare another type for the column."
        ),
    }
    for words, said in refused.items():
        assert says(*words, *DECLARED, *charged) == (2, "", said)
    assert not account.releases()


@pytest.mark.parametrize("source", FILES)
def test_text_classes_are_fitted_at_the_command_line(says, sources, source):
    words = [
        "--target",
        "income",
        "--label",
        "<=50K",
        "--label",
        ">50K",
        "--feature",
        "age",
        "--clip-norm",
        "100",
    ]
    command = ("fit", place(sources[source]), "logistic-regression", *words, *DECLARED)
    code, out, err = says(*command, "--epsilon", "400", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["classes"] == ["<=50K", ">50K"]
    (slope,), (intercept,) = told["coefficients"], told["intercept"]
    assert slope > 0 and 45 < -intercept / slope < 56  # the income rises at 51


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("age", "--type age declares nothing: give COLUMN=TYPE, such as --type age=number"),
        ("age=numbr", "Did you mean 'number'?"),
        ("agee=number", "do not exist: agee"),
        ("none.toml", "cannot be read"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_one_paragraph(says, sources, given, said):
    words = ("stats", place(sources["csv"]), "mean", "age", "--bounds", "0", "1", "--epsilon", "1")
    code, out, err = says(*words, "--type", given)
    assert code == 2 and not out and said in err


def test_types_of_a_file_are_declared_at_the_command_line(says, sources, tmp_path):
    (tmp_path / "types.toml").write_text('age = "text"\nchildren = "integer"\n')
    words = (
        "stats",
        place(sources["csv"]),
        "mean",
        "age",
        "--bounds",
        "0",
        "100",
        "--epsilon",
        "500",
        "--json",
    )
    assert says(*words, "--type", "types.toml")[0] == 2
    code, out, err = says(*words, "--type", "types.toml", "--type", "age=number")  # the later one holds
    assert code == 0, err
    assert json.loads(out)["value"] == pytest.approx(50.0, abs=1)
