# SPDX-License-Identifier: Apache-2.0
"""Every kind of release goes to JSON, to CSV and to a frame, and comes back as it was."""

import csv
import datetime as dt
import io
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato import statistics as s
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError, MissingDependencyError
from sfumato.ledger import Account, Ledger
from sfumato.statistics.release import Covers, Interval, Parts, Release

DRAW = np.random.default_rng(0)
AGES = DRAW.uniform(18, 90, 3000)
ROWS = np.column_stack([AGES, AGES / 2, DRAW.uniform(0, 10, 3000)])
CITIES = ["Rome"] * 2000 + ["Oslo"] * 1000
TABLE = pd.DataFrame({"city": CITIES, "year": [2020, 2021, 2022] * 1000, "age": AGES})
EACH = {"bounds": (0, 100), "epsilon": 1.0}
PURE = {"epsilon": 1.0}
BOTH = {"epsilon": 1.0, "delta": 1e-6}
PROMISE = Guarantee(epsilon=0.5, delta=0.0, relation=Relation.ADD_REMOVE, privacy_unit="row")
FIXED = ["epsilon", "delta", "relation", "privacy_unit", "guarantee", "recorded", "account", "notes"]


def grouped(*columns: str, keys: list[Any]) -> Any:
    return s.private_table(TABLE).group_by(*columns, keys=keys)


# What is asked, and the labels that its parts have; none where the answer is one number.
KINDS: dict[str, tuple[Callable[[], Release[Any]], list[str]]] = {
    "count": (lambda: s.count(AGES, **PURE), []),
    "sum": (lambda: s.sum(AGES, **EACH), []),
    "mean": (lambda: s.mean(AGES, **EACH), []),
    "mean of a population": (lambda: s.mean(AGES, **EACH, population=True), []),
    "variance": (lambda: s.variance(AGES, **EACH), []),
    "standard deviation": (lambda: s.standard_deviation(AGES, **EACH), []),
    "clipped share": (lambda: s.clipped_share(AGES, **EACH), []),
    "median": (lambda: s.median(AGES, **EACH), []),
    "quantile with an interval": (lambda: s.quantile(AGES, q=0.3, level=0.9, **EACH), []),
    "Karwa-Vadhan": (lambda: s.karwa_vadhan_mean(AGES, bounds=(0, 100), stddev=30.0, **BOTH), []),
    "CoinPress": (lambda: s.coinpress_mean(AGES, bounds=(0, 100), stddev=30.0, **BOTH), []),
    "rows of a table": (lambda: s.private_table(TABLE).count(**PURE).release(), []),
    "quantiles": (lambda: s.quantiles(AGES, qs=(0.25, 0.5), **EACH), ["q"]),
    "bounds": (lambda: s.bounds(AGES, **PURE), ["bound"]),
    "bins": (lambda: s.histogram(AGES, edges=(0, 50, 100), **PURE), ["bin_lower", "bin_upper"]),
    "categories": (lambda: s.histogram(CITIES, categories=["Rome", "Lima"], **PURE), ["category"]),
    "stable categories": (lambda: s.stable_histogram(CITIES, **BOTH), ["category"]),
    "top k": (
        lambda: s.top_k(CITIES, k=2, categories=["Rome", "Oslo", "Lima"], **PURE),
        ["rank", "category"],
    ),
    "ranges": (
        lambda: s.first_above(AGES, ranges=[(0, 10), (20, 60)], threshold=100, **PURE),
        ["range_lower", "range_upper"],
    ),
    "counted ranges": (
        lambda: s.first_above(AGES, ranges=[(0, 10), (20, 60)], threshold=100, counted=True, **PURE),
        ["range_lower", "range_upper"],
    ),
    "groups": (lambda: grouped("city", keys=["Rome", "Lima"]).mean("age", **EACH).release(), ["key_city"]),
    "groups of two columns": (
        lambda: grouped("city", "year", keys=[("Rome", 2020), ("Oslo", 2021)]).count(**PURE).release(),
        ["key_city", "key_year"],
    ),
    "sums of groups": (lambda: grouped("year", keys=[2020]).sum("age", **EACH).release(), ["key_year"]),
    "keys": (lambda: s.private_table(TABLE).keys("city", **BOTH).release(), ["key_city"]),
    "keys of two columns": (
        lambda: s.private_table(TABLE).keys("city", "year", **BOTH).release(),
        ["key_city", "key_year"],
    ),
    "covariance": (lambda: s.covariance(ROWS, bounds=(0, 100), **BOTH), ["row", "column"]),
    "correlation": (
        lambda: s.correlation(ROWS, bounds=(0, 100), epsilon=50.0, delta=1e-6),
        ["row", "column"],
    ),
    "CoinPress means": (lambda: s.coinpress_means(ROWS, bounds=(0, 100), stddev=30.0, **BOTH), ["column"]),
    "CoinPress covariance": (
        lambda: s.coinpress_covariance(ROWS, bounds=(0, 100), stddev=30.0, **BOTH),
        ["row", "column"],
    ),
    "components": (
        lambda: s.principal_components(ROWS, components=2, bounds=(0, 100), **BOTH),
        ["part", "component", "column"],
    ),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys(), scope="module")
def kind(request: pytest.FixtureRequest) -> tuple[Release[Any], list[str]]:
    ask, labels = request.param
    return ask(), labels


def test_every_question_is_one_of_the_kinds() -> None:
    asked = {"count", "sum", "mean", "variance", "standard_deviation", "clipped_share", "median", "quantile"}
    asked |= {"quantiles", "bounds", "histogram", "stable_histogram", "top_k", "first_above", "covariance"}
    asked |= {"correlation", "principal_components", "coinpress_mean", "coinpress_means"}
    asked |= {"coinpress_covariance", "karwa_vadhan_mean"}
    others = {"cost", "column_of", "rows_of", "categories_of", "private_table"}
    assert {name for name in s.__all__ if name.islower()} == asked | others


def flat(value: Any) -> list[Any]:
    """Return the numbers of a released value in order, by another way than the one under test."""
    if isinstance(value, s.Histogram):
        return list(value.counts)
    if isinstance(value, s.Components):
        arrays = (value.mean, value.components, value.explained_variance, value.explained_variance_ratio)
        return [*np.concatenate([array.ravel() for array in arrays]).tolist(), value.noise_level]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, tuple) and value and isinstance(value[0], s.Found):
        return [found.count for found in value]
    return np.ravel(value).tolist()


def test_json_has_the_numbers_and_the_intervals(kind: tuple[Release[Any], list[str]]) -> None:
    release, labels = kind
    found = json.loads(release.to_json())
    assert found["format"] == "sfumato release" and found["version"] == 1 and found["outcome"] == "released"
    entries = [found] if not labels else found["value"]
    intervals = [entry.get("interval") for entry in entries]
    if labels:
        assert [list(entry)[: len(labels)] for entry in entries] == [labels] * len(entries)
    if release.parts is None or release.parts.numbers is not None:
        assert [entry["value"] for entry in entries] == flat(release.value)
    if release.interval is None:
        assert intervals == [None] * len(entries)
    else:
        stated = release.interval if isinstance(release.interval, tuple) else (release.interval,)
        assert [i["lower"] for i in intervals] == [i.lower for i in stated]
        assert [i["upper"] for i in intervals] == [i.upper for i in stated]
        assert {i["level"] for i in intervals} == {i.level for i in stated}
        assert [i["covers"] for i in intervals] == [[c.value for c in i.covers] for i in stated]


def test_json_has_the_guarantee_and_the_notes(kind: tuple[Release[Any], list[str]]) -> None:
    release, _ = kind
    found = json.loads(release.to_json())
    promised = release.guarantee
    assert found["guarantee"] == {
        "epsilon": promised.epsilon,
        "delta": promised.delta,
        "relation": "add-remove",
        "privacy_unit": "row",
        "text": str(promised),
    }
    assert found["notes"] == list(release.notes)
    assert found["recorded"] is False and found["account"] is None


def test_csv_has_one_row_for_each_number_and_reads_back(kind: tuple[Release[Any], list[str]]) -> None:
    release, labels = kind
    frame = pd.read_csv(io.StringIO(release.to_csv()))
    measured = ["value", "lower", "upper", "level", "covers", "outcome"]
    assert list(frame) == ["name", *labels, *measured, *FIXED]
    if release.parts is None or release.parts.numbers is not None:
        cells = [row["value"] for row in csv.DictReader(io.StringIO(release.to_csv(), newline=""))]
        assert [float(cell) for cell in cells] == flat(release.value)  # not a digit is lost
        assert frame["value"].tolist() == pytest.approx(flat(release.value), rel=1e-12)
    else:
        assert frame["value"].isna().all() and len(frame) == len(release.value)
    if release.interval is not None:
        stated = release.interval if isinstance(release.interval, tuple) else (release.interval,)
        assert frame["lower"].tolist() == pytest.approx([i.lower for i in stated], rel=1e-12)
        assert frame["upper"].tolist() == pytest.approx([i.upper for i in stated], rel=1e-12)
        assert frame["covers"].tolist() == [", ".join(c.value for c in i.covers) for i in stated]
    assert frame["epsilon"].tolist() == pytest.approx([release.guarantee.epsilon] * len(frame), rel=1e-12)
    assert set(frame["guarantee"]) == {str(release.guarantee)}
    assert set(frame["notes"]) == {"; ".join(release.notes)}
    assert not frame["recorded"].any()


def test_a_frame_has_the_same_rows_with_types(kind: tuple[Release[Any], list[str]]) -> None:
    release, labels = kind
    frame = release.to_pandas()
    again = pd.read_csv(io.StringIO(release.to_csv()))
    assert list(frame) == list(again) and len(frame) == len(again)
    for name in [*labels, "value", "lower", "upper", "epsilon"]:
        pd.testing.assert_series_equal(frame[name], again[name], check_dtype=False)


def test_labels_name_what_was_asked() -> None:
    quantiles = json.loads(s.quantiles(AGES, qs=(0.25, 0.5), **EACH).to_json())["value"]
    assert [entry["q"] for entry in quantiles] == [0.25, 0.5]
    matrix = json.loads(s.covariance(ROWS, bounds=(0, 100), **BOTH).to_json())["value"]
    assert (matrix[1]["row"], matrix[1]["column"]) == ("column 0", "column 1")
    ranked = json.loads(s.top_k(CITIES, k=2, categories=["Oslo", "Rome"], epsilon=50.0).to_json())["value"]
    assert ranked == [{"rank": 1, "category": "Rome"}, {"rank": 2, "category": "Oslo"}]
    found = json.loads(grouped("city", "year", keys=[("Rome", 2020)]).count(**PURE).release().to_json())
    assert (found["value"][0]["key_city"], found["value"][0]["key_year"]) == ("Rome", 2020)


def test_an_answer_that_failed_keeps_its_guarantee() -> None:
    release = s.mean([], bounds=(0, 1), epsilon=1e-6)
    while release.value is not None:  # half of the time noise says that there are rows
        release = s.mean([], bounds=(0, 1), epsilon=1e-6)
    found = json.loads(release.to_json())
    assert found["outcome"] == "failed" and found["value"] is None and found["interval"] is None
    frame = pd.read_csv(io.StringIO(release.to_csv()))
    assert frame["outcome"].tolist() == ["failed"] and frame["value"].isna().all()
    assert frame["guarantee"].tolist() == [str(release.guarantee)]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: s.stable_histogram(["a"], epsilon=1.0, delta=1e-9),
        lambda: s.private_table(TABLE[:1]).keys("city", epsilon=1.0, delta=1e-9).release(),
        lambda: s.first_above([1.0], ranges=[(0, 10)], threshold=1e6, epsilon=1.0),
    ],
    ids=["categories", "keys", "ranges"],
)
def test_an_answer_that_found_nothing_keeps_its_guarantee(ask: Callable[[], Release[Any]]) -> None:
    release = ask()
    assert json.loads(release.to_json())["value"] == []
    frame = pd.read_csv(io.StringIO(release.to_csv()))
    assert frame["outcome"].tolist() == ["nothing found"] and frame["value"].isna().all()
    assert frame["guarantee"].tolist() == [str(release.guarantee)] and len(release.to_pandas()) == 1


def named(*names: Any) -> Release[Any]:
    parts = Parts(labels={"category": names}, numbers=tuple(float(i) for i in range(len(names))))
    return Release(name="categories", value=names, guarantee=PROMISE, event=PureDpEvent(0.5), parts=parts)


LABELS = [
    (dt.date(2024, 5, 1), "2024-05-01"),
    (dt.datetime(2024, 5, 1, 12, 30), "2024-05-01T12:30:00"),
    (pd.Timestamp("2024-05-01"), "2024-05-01T00:00:00"),
    (np.datetime64("2024-05-01"), "2024-05-01"),
    (dt.time(12, 30), "12:30:00"),
    (True, True),
    (np.bool_(False), False),
    (3, 3),
    (np.int64(3), 3),
    (2**70, 2**70),
    (0.1, 0.1),
    (math.inf, None),
    (math.nan, None),
    (None, None),
    ("Malmö", "Malmö"),
    ("\ud800", "\\ud800"),
    (b"bytes", "bytes"),
    (("a", 1), ["a", 1]),
]


@pytest.mark.parametrize(("label", "expected"), LABELS, ids=[repr(label) for label, _ in LABELS])
def test_labels_are_written_as_json_knows_them(label: Any, expected: Any) -> None:
    assert json.loads(named(label).to_json())["value"][0]["category"] == expected
    named(label).to_csv()
    named(label).to_pandas()


def test_infinite_numbers_are_null_in_json_and_inf_in_csv() -> None:
    promised = Guarantee(epsilon=math.inf, delta=0.0, relation=Relation.ADD_REMOVE, privacy_unit="row")
    interval = Interval(lower=-math.inf, upper=3.0, level=0.9, covers=(Covers.NOISE,))
    release = Release(name="x", value=1.5, interval=interval, guarantee=promised, event=PureDpEvent(0.5))
    found = json.loads(release.to_json())
    assert found["guarantee"]["epsilon"] is None and found["interval"]["lower"] is None
    frame = pd.read_csv(io.StringIO(release.to_csv()))
    assert frame["epsilon"][0] == math.inf and frame["lower"][0] == -math.inf


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_of_a_csv_is_run_as_a_formula(text: str) -> None:
    def cells(**how: bool) -> list[str]:
        lines = named(text, -1.0, "a=1").to_csv(**how)
        return [row["category"] for row in csv.DictReader(io.StringIO(lines, newline=""))]

    assert cells() == [f"'{text}", "-1.0", "a=1"]
    assert cells(escape_formulas=False)[0] == text
    assert json.loads(named(text).to_json())["value"][0]["category"] == text
    assert named(text).to_pandas()["category"][0] == text


def test_text_with_commas_quotes_and_lines_reads_back() -> None:
    text = 'a, "b"\nc'
    assert pd.read_csv(io.StringIO(named(text).to_csv()))["category"].tolist() == [text]


def test_files_are_written_and_hold_what_is_returned(tmp_path: Any) -> None:
    release = named("Malmö", "\ud800")
    assert release.to_json(tmp_path / "r.json") == (tmp_path / "r.json").read_text(encoding="utf-8")
    release.to_csv(tmp_path / "r.csv")
    assert pd.read_csv(tmp_path / "r.csv")["category"].tolist() == ["Malmö", "\\ud800"]


def test_a_file_that_cannot_be_written_is_our_error(tmp_path: Any) -> None:
    for keep in (named("a").to_json, named("a").to_csv):
        with pytest.raises(InvalidParameterError, match=r"cannot be written: .*not lost"):
            keep(tmp_path / "none" / "r.csv")


def test_a_frame_needs_pandas_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        named("a").to_pandas()
    named("a").to_json(), named("a").to_csv()


def test_a_value_without_names_for_its_parts_is_refused() -> None:
    release = Release(name="pair", value=(1, 2), guarantee=PROMISE, event=PureDpEvent(0.5))
    for keep in (release.to_json, release.to_csv, release.to_pandas):
        with pytest.raises(InvalidParameterError, match="'pair' has no labels"):
            keep()


@pytest.mark.parametrize("labels", [{"q": (1,)}, {"q": (1, 2), "r": (1,)}])
def test_parts_of_unequal_length_are_refused(labels: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="one entry of each label"):
        Parts(labels=labels, numbers=(1.0, 2.0))


def test_a_release_says_whether_a_ledger_keeps_it(account: Account) -> None:
    kept = s.mean(AGES, bounds=(0, 100), epsilon=0.1, account=account)
    assert (kept.recorded, kept.account) == (True, "people") and not any("recorded" in n for n in kept.notes)
    found = json.loads(kept.to_json())
    assert (found["recorded"], found["account"]) == (True, "people")
    assert "not recorded" not in str(kept)

    loose = s.mean(AGES, **EACH)
    assert (loose.recorded, loose.account) == (False, None)
    assert str(loose).splitlines()[-1].strip().startswith("not recorded in a ledger: nothing adds its cost")


def test_a_release_of_a_temporary_account_says_so_too(account: Account) -> None:
    passing = Ledger.temporary().open("passing", privacy_unit="row", budget=account.budget)
    release = s.mean(AGES, bounds=(0, 100), epsilon=0.1, account=passing)
    assert (release.recorded, release.account) == (False, "passing")
    assert release.notes == ("not recorded in a ledger: its account ends with this process",)
