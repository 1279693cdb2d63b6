# SPDX-License-Identifier: Apache-2.0
"""No extreme value changes what comes of a question, on any engine.

By default all extreme values of a type are in one table, of which the questions that read rows in different
ways are asked, and some of all others in turn. The slow tests ask everything, of each value alone.
"""

import inspect
from collections.abc import Iterator

import pytest

from sfumato import statistics
from sfumato.statistics.sources import engine_values

from . import poison
from .poison import KINDS, QUESTIONS, Kind, Sql, compared, covering, crowd, made, outcome, single

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

SLOW_TO_START = ("pyspark",)
TYPES = [
    pytest.param(name, place, kind, id=f"{name}-{kind.title}")
    for name, kinds in KINDS.items()
    if name not in SLOW_TO_START
    for place, kind in enumerate(kinds)
]
every_type = pytest.mark.parametrize(("name", "place", "kind"), TYPES)
TOLD_APART = ("keys of rows", "stable histogram")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, poison.Engine]]:
    folder = tmp_path_factory.mktemp("poison")
    with poison.duckdb() as duckdb, poison.postgresql(folder) as postgresql:
        yield {
            "duckdb": duckdb,
            "arrow": poison.Arrow(),
            "parquet": poison.Parquet(folder),
            "postgres": postgresql,
        }


def changes(engine: poison.Engine, kind: Kind, *how, **more) -> list[str]:
    """Return what extreme values change, and what fails without them."""
    found = list(compared(engine, kind, *how, **more))
    assert found
    return [
        f"{each.question}: {each.usual.kind} {each.usual.said}, but {each.extreme.kind} {each.extreme.said}"
        for each in found
        if each.changed or each.failed
    ]


@every_type
def test_extreme_values_change_nothing_that_comes_of_a_question(engines, name, place, kind):
    assert changes(engines[name], kind, crowd(kind), covering(place)) == []


@every_type
def test_extreme_values_that_many_have_are_keys_and_categories_or_left_out(engines, name, place, kind):
    asked = {question: QUESTIONS[question] for question in TOLD_APART}
    assert changes(engines[name], kind, crowd(kind), asked, copies=12) == []


@pytest.mark.slow
@every_type
def test_every_question_comes_to_the_same_with_extreme_values(engines, name, place, kind):
    engine = engines[name]
    for how in ({}, {"copies": 12}, {"usual": 0}):
        assert changes(engine, kind, crowd(kind), **how) == []
    assert changes(engine, kind, single(kind), covering(place)) == []


def test_a_value_that_stops_a_query_is_noticed(engines, monkeypatch):
    dates = next(kind for kind in KINDS["duckdb"] if kind.name == "DATE")
    asked = {"stable histogram": QUESTIONS["stable histogram"]}
    monkeypatch.setattr(engine_values, "dated", lambda value: value)
    [told] = changes(engines["duckdb"], dates, crowd(dates), asked)
    assert told.startswith("stable histogram: answered , but QueryFailedError")


def test_a_type_that_an_engine_cannot_compute_with_is_refused_before_it_is_paid_for(engines):
    oids = next(kind for kind in KINDS["postgres"] if kind.name == "OID")
    refused = outcome(QUESTIONS["mean"], made(engines["postgres"], oids))
    assert (refused.kind, refused.charged) == ("InvalidParameterError", False)
    assert refused.said.startswith("postgres refuses this query before it reads a row")


def test_every_way_to_ask_is_in_the_matrix():
    asked = inspect.getsource(inspect.getmodule(poison.questions))
    public = {name: getattr(statistics, name) for name in statistics.__all__}
    releases = [
        n for n, f in public.items() if inspect.isfunction(f) and "epsilon" in inspect.signature(f).parameters
    ]
    same = {"quantile": "median", "standard_deviation": "variance"}  # but for the noise
    assert [name for name in releases if f"_S.{same.get(name, name)}(" not in asked] == []
    assert len(QUESTIONS) > 70 and all(map(len, KINDS.values()))
    assert all(len(kind.extreme) for kinds in KINDS.values() for kind in kinds)


def test_all_questions_are_asked_by_default_of_some_type():
    turns = [covering(place) for place in range(max(map(len, KINDS.values())))]
    assert set().union(*turns) == set(QUESTIONS)


def test_engines_are_told_by_the_names_that_ibis_gives_them(engines):
    assert {name for name, engine in engines.items() if isinstance(engine, Sql)} == {"duckdb", "postgres"}
    assert all(engine.name == name for name, engine in engines.items())
