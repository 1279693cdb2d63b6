# SPDX-License-Identifier: Apache-2.0
"""Synthetic rows of a private table: right at a large epsilon, one charge, missing cells and units kept."""

import numpy as np
import pandas as pd
import pytest

import sfumato as sf
from sfumato.errors import BudgetExceededError, InvalidParameterError, QueryFailedError
from sfumato.generative import Category, NoisyMarginals, Number, UnknownNumber
from sfumato.private import synthetic_rows

QUICK = NoisyMarginals(rounds=2, iterations=20)
TYPES = {"city": "text", "age": "number", "smokes": "boolean"}
DECLARED = {"city": Category(values=("Rome", "Oslo")), "age": Number(lower=0, upper=80, bins=8, whole=True)}


def table(rows=1200):
    place = np.arange(rows)
    city = np.where(place % 10 < 6, "Rome", "Oslo").astype(object)
    city[place % 10 == 9] = None
    age = np.where(place % 10 < 6, 25, 65).astype(float)
    age[5::10] = np.nan
    return pd.DataFrame({"person": place // 2, "city": city, "age": age, "smokes": place % 4 == 0})


def opened(tmp_path, *, epsilon=500.0, **more):
    settings = {"privacy_unit": "person", "contribution_bound": 2, **more}
    return sf.open(
        "people",
        table(),
        budget=sf.Budget(epsilon=epsilon, delta=1e-5),
        ledger=tmp_path / "ledger.db",
        **settings,
    )


def test_rows_are_right_at_a_large_epsilon_and_missing_cells_stay(tmp_path):
    data = opened(tmp_path)
    made = data.synthesize(DECLARED, epsilon=300.0, method=QUICK, progress=False)
    assert made.marginal("city").round(2).tolist() == [0.6, 0.3, 0.1]
    drawn = made.sample(2000, seed=0)
    rome, oslo = drawn[drawn["city"] == "Rome"]["age"], drawn[drawn["city"] == "Oslo"]["age"]
    assert rome.dropna().between(20, 30).mean() > 0.95 and oslo.dropna().between(60, 70).mean() > 0.95
    assert abs(rome.isna().mean() - 1 / 6) < 0.05
    assert len(data.account.releases()) == 1 and made.guarantee.privacy_unit == "person"
    assert "One person has at most 2 rows; further rows were left out." in made.statement()


def test_all_columns_but_the_unit_are_bought_by_default(tmp_path):
    made = opened(tmp_path, types=TYPES).synthesize(epsilon=300.0, method=QUICK, progress=False)
    assert list(made.sample(3).columns) == ["city", "age", "smokes"]
    shares = made.sample(2000, seed=0)["smokes"].astype(str).value_counts(normalize=True)
    assert abs(shares["True"] - 0.25) < 0.05


def test_the_types_of_a_csv_file_are_bought_unless_they_are_declared(tmp_path):
    rows = [
        f"{place // 2},{place % 50},{place % 7 / 2},{'Rome' if place % 3 else 'Oslo'}" for place in range(900)
    ]
    (tmp_path / "people.csv").write_text("\n".join(["person,age,size,city", *rows, "7,a word,,\n"]))
    data = sf.open(
        "people",
        tmp_path / "people.csv",
        types={"size": "text"},
        privacy_unit="person",
        contribution_bound=2,
        budget=sf.Budget(epsilon=200, delta=1e-5),
        ledger=tmp_path / "ledger.db",
    )
    made = data.synthesize(epsilon=100.0, method=QUICK, progress=False).domain.columns
    assert list(made) == ["age", "size", "city"] and len(data.account.releases()) == 1
    assert isinstance(made["age"], Number) and made["age"].whole
    assert isinstance(made["size"], Category) and "0.5" in made["size"].values
    assert made["city"] == Category(values=("Oslo", "Rome"))


def test_a_unit_costs_as_many_rows_as_it_may_have(tmp_path):
    """With twice the rows of a unit, the same noise in counts costs more: the claim must know the bound."""
    seen = []

    class Watched(NoisyMarginals):
        def fit(self, data, **given):
            seen.append((given["rows_per_unit"], len(data.read().table["city"])))
            raise QueryFailedError("enough")

    for bound in (1, 2):
        with pytest.raises(QueryFailedError):
            opened(tmp_path, contribution_bound=bound).synthesize(DECLARED, epsilon=1.0, method=Watched())
    assert seen == [(1, 600), (2, 1200)]


def test_what_cannot_be_paid_or_synthesized_costs_nothing(tmp_path):
    data = opened(tmp_path, epsilon=1.0)
    with pytest.raises(BudgetExceededError):
        data.synthesize(DECLARED, epsilon=2.0, progress=False)
    with pytest.raises(InvalidParameterError, match="privacy unit"):
        data.synthesize({"person": Number(lower=0, upper=9, bins=3)}, epsilon=0.5, progress=False)
    with pytest.raises(InvalidParameterError):
        data.synthesize({"town": Category(values=("Rome",))}, epsilon=0.5, progress=False)
    dates = sf.open(
        "dates",
        pd.DataFrame({"day": pd.to_datetime(["2026-01-01", "2026-01-02"])}),
        budget=sf.Budget(epsilon=1.0, delta=1e-5),
        ledger=tmp_path / "other.db",
        types={"day": "timestamp"},
    )
    for domain in (None, {"day": Category(values=("2026-01-01",))}):
        with pytest.raises(InvalidParameterError, match="cannot be synthesized"):
            dates.synthesize(domain, epsilon=0.5, progress=False)
    assert data.account.releases() == dates.account.releases() == []


@pytest.mark.parametrize(
    "cell",
    [None, "", "x" * 100_000, "a\nb", "NaN", "inf", "1e999", "\u202e"],
    ids=["none", "empty", "long", "lines", "nan", "inf", "large", "reversed"],
)
def test_no_text_stops_a_release(tmp_path, cell):
    frame = pd.DataFrame({"tea": [*["green"] * 30, cell], "size": [*[1.5] * 30, np.inf]})
    budget, types = sf.Budget(epsilon=9.0, delta=1e-5), {"tea": "text", "size": "number"}
    data = sf.open("t", frame, budget=budget, ledger=tmp_path / "l.db", types=types)
    for domain in ({"tea": Category(values=("green",)), "size": Number(lower=0, upper=2, bins=2)}, None):
        made = data.synthesize(domain, epsilon=1.0, method=QUICK, progress=False)
        assert list(made.sample(2).columns) == ["tea", "size"]


def test_an_empty_table_has_a_generator(tmp_path):
    frame = pd.DataFrame({"tea": pd.Series([], dtype=str), "size": pd.Series([], dtype=float)})
    budget, types = sf.Budget(epsilon=9.0, delta=1e-5), {"tea": "text", "size": "number"}
    data = sf.open("t", frame, budget=budget, ledger=tmp_path / "l.db", types=types)
    for domain in ({"tea": Category(values=("green",)), "size": Number(lower=0, upper=2, bins=2)}, None):
        made = data.synthesize(domain, epsilon=1.0, method=QUICK, progress=False)
        assert len(made.sample(3)) == 3


def test_a_failing_read_stays_spent_and_quotes_nothing(tmp_path, monkeypatch):
    data = opened(tmp_path)

    def ask(read, account):
        monkeypatch.setattr(synthetic_rows, "_cell", lambda text, kind: read())
        return data.synthesize(DECLARED, epsilon=1.0, method=QUICK, progress=False)

    def fails():
        raise ValueError("a private value")

    before = len(data.account.releases())
    with pytest.raises(QueryFailedError) as caught:
        ask(fails, data.account)
    assert "private value" not in str(caught.value) and caught.value.__cause__ is None
    assert len(data.account.releases()) == before + 1 and data.account.spent().epsilon > 0


@pytest.mark.parametrize(
    ("text", "kind", "cell"),
    [
        ("Rome", "text", "Rome"),
        ("", "text", ""),
        ("true", "boolean", True),
        ("False", "boolean", False),
        ("", "boolean", None),
        ("3.5", "number", 3.5),
        ("7", "integer", 7.0),
        ("", "number", None),
        ("x", "number", None),
        ("7.0", "text", "7.0"),
    ],
)
def test_cells_have_the_type_of_their_column(text, kind, cell):
    assert synthetic_rows._cell(text, kind) == cell


@pytest.mark.parametrize("cell", [40, "unknown", None, 10**400, True])
def test_one_value_of_a_frame_does_not_decide_what_is_released(tmp_path, cell):
    """The types of pandas depend on it, so the frame is refused whatever it is; with types it is not."""
    frame = pd.DataFrame({"age": [*range(20, 60), cell], "size": pd.array([*range(41)], dtype="Int64")})
    terms = {"budget": sf.Budget(epsilon=9.0, delta=1e-5)}
    data = sf.open("t", frame, ledger=tmp_path / "l.db", **terms)
    with pytest.raises(InvalidParameterError, match=r"'age', 'size' was chosen by pandas.*types="):
        data.synthesize(epsilon=1.0, method=QUICK, progress=False)
    assert data.account.releases() == []
    types = {"age": "number", "size": "integer"}
    typed = sf.open("u", frame, ledger=tmp_path / "m.db", types=types, **terms)
    made = typed.synthesize(epsilon=1.0, method=QUICK, progress=False)
    assert [type(field) for field in made.domain.columns.values()] == [Number, Number]


@pytest.mark.parametrize("column", [[7.0, 8.5], [7, 8], [True, False]])
def test_a_word_in_a_declared_column_of_a_frame_changes_no_other_cell(tmp_path, column):
    """Pandas makes all of them text; they are the same categories as before."""
    for place, cells in enumerate((column * 50, [*column * 50, "word"])):
        frame = pd.DataFrame({"code": cells})
        budget = sf.Budget(epsilon=900.0, delta=1e-5)
        data = sf.open(f"t{place}", frame, budget=budget, ledger=tmp_path / f"{place}.db")
        domain = {"code": Category(values=tuple(column))}
        made = data.synthesize(domain, epsilon=800.0, method=QUICK, progress=False)
        assert made.marginal("code")[:2] == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("age", Category(values=("18", "19"))),
        ("smokes", Category(values=("yes", "no"))),
        ("city", Number(lower=0, upper=9)),
        ("city", UnknownNumber()),
    ],
)
def test_a_declaration_that_does_not_fit_the_type_is_refused_before_the_charge(tmp_path, name, declared):
    data = opened(tmp_path, types=TYPES)
    with pytest.raises(InvalidParameterError, match=f"column '{name}' is "):
        data.synthesize({name: declared}, epsilon=1.0, progress=False)
    assert data.account.releases() == []
