# SPDX-License-Identifier: Apache-2.0
"""Samples meet their conditions; files come back; statements say what was done."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.accounting import events
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.domain import Category, Domain, Number
from sfumato.generative.tables.model.belief_propagation import ImpossibleError
from sfumato.generative.tables.model.graphical_model import GraphicalModel
from sfumato.generative.tables.table_generator import TableGenerator, saved_facts

DOMAIN = Domain(
    {
        "kind": Category(values=["a", "b", "never"]),
        "age": Number(lower=0, upper=99, bins=10, whole=True, missing=False),
        "pay": Number(lower=0.0, upper=1.0, bins=2),
    }
)
POTENTIALS = {
    (0, 1): np.log(np.outer([0.5, 0.3, 1.0, 0.2], np.arange(1.0, 11.0))),
    (0,): np.array([0.0, 0.0, -np.inf, 0.0]),
    (1, 2): np.log(np.full((10, 3), 1 / 3)),
}
FACTS = {"settings": {"degree": 2}, "measured": 2, "bought": 0, "rows_per_unit": 1, "bounded": False}
PROMISED = Guarantee(epsilon=1.0, delta=1e-6, relation=Relation.ADD_REMOVE, privacy_unit="row")


def made(**changes):
    terms = {
        "domain": DOMAIN,
        "model": GraphicalModel(sizes=DOMAIN.sizes, total=812.4, potentials=POTENTIALS),
        "guarantee": PROMISED,
        "facts": FACTS,
    }
    return TableGenerator(**{**terms, **changes})


def test_a_sample_has_as_many_rows_as_asked_for_or_as_the_table():
    assert len(made().sample(7, seed=0)) == 7 and len(made().sample(seed=0)) == 812


def test_a_seed_makes_the_same_rows_again():
    assert made().sample(50, seed=3).equals(made().sample(50, seed=3))
    assert not made().sample(50, seed=3).equals(made().sample(50, seed=4))


def test_a_condition_holds_in_every_row():
    rows = made().sample(200, given={"kind": "b", "age": 37}, seed=0)
    assert (rows["kind"] == "b").all() and (rows["age"] == 37).all()
    assert made().sample(3, given={"age": 37.0}, seed=0)["age"].tolist() == [37] * 3
    assert made().sample(20, given={"kind": None, "pay": None}, seed=0)["pay"].isna().all()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"city": "Rome"}, "no column 'city'"),
        ({"kind": "z"}, "no value 'z'"),
        ({"age": 200}, "between"),
        ({"age": "old"}, "between"),
        ({"age": None}, "between"),
        ({"age": math.nan}, "between"),
    ],
)
def test_a_condition_on_what_does_not_exist_is_refused(given, match):
    with pytest.raises(InvalidParameterError, match=match):
        made().sample(5, given=given)


def test_a_condition_of_probability_zero_is_an_error():
    with pytest.raises(ImpossibleError, match="probability 0"):
        made().sample(5, given={"kind": "never"})


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_a_wrong_number_of_rows_is_refused(n):
    with pytest.raises(InvalidParameterError):
        made().sample(n)


@pytest.mark.parametrize("wrong", [{"given": ["kind"]}, {"seed": -1}, {"seed": "a"}, {"seed": 1.5}])
def test_wrong_settings_of_a_sample_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        made().sample(3, **wrong)


def test_marginals_are_those_of_the_model():
    generator = made()
    found = generator.marginal(["age", "kind"])
    assert found.shape == (10, 4) and found.sum() == pytest.approx(1.0) and (found[:, 2] == 0).all()
    np.testing.assert_allclose(generator.marginal("kind"), found.sum(axis=0))
    for columns in ([], ["age", "age"], ["city"]):
        with pytest.raises(InvalidParameterError):
            generator.marginal(columns)


def test_a_saved_generator_comes_back(tmp_path):
    generator = made(account="survey", notes=("not recorded",))
    generator.save(tmp_path / "g.npz")
    found = TableGenerator.load(tmp_path / "g.npz")
    assert found.sample(50, seed=1).equals(generator.sample(50, seed=1))
    assert found.statement() == generator.statement() and found.guarantee == PROMISED
    assert found.domain == DOMAIN and found.to_dict() == generator.to_dict()


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("no generator")
    np.savez(tmp_path / "y.npz", a=np.zeros(3))
    for name in ("x", "y.npz", "absent"):
        with pytest.raises(InvalidParameterError, match="not a file"):
            TableGenerator.load(tmp_path / name)


def test_a_statement_says_who_is_protected_and_how_rows_are_bounded():
    assert "(1, 1e-06)-differential privacy for one row" in made().statement()
    assert "declared" in made().statement()
    many = made(facts={**FACTS, "rows_per_unit": 4})
    assert "at most 4 rows" in many.statement() and "not checked" in many.statement()
    assert "has at most 1 row; further" in made(facts={**FACTS, "bounded": True}).statement()


def test_a_statement_and_a_card_name_the_measured_sets_and_what_to_doubt():
    generator = with_event()
    assert generator.measured_sets == (("kind", "age"), ("age", "pay"))
    assert "the model: kind x age; age x pay." in generator.statement()
    card = generator.card()
    assert card.facts["sets of columns that were measured"] == "kind x age; age x pay"
    for text in (generator.statement(), card.to_markdown()):
        assert "small groups" in text and "were not measured may be wrong" in text
    assert "this generator alone" in card.to_markdown().lower()


def test_a_stated_unit_is_told_as_stated():
    promised = replace(PROMISED, privacy_unit="person")
    said = made(guarantee=promised).statement()
    assert "One person has at most 1 row; this was stated by the caller and not checked." in said
    assert "stated by the caller" not in made().statement()


def with_event(**changes):
    facts = FACTS | {"event": json.loads(events.to_json(events.PureDpEvent(1.0)))}
    return made(facts=facts, guarantee=replace(PROMISED, delta=0.0), **changes)


def test_the_card_of_a_loaded_generator_is_that_of_the_generator(tmp_path):
    notes = ("not recorded in a ledger: x", "for study only: the noise was seeded")
    generator = with_event(account="survey", notes=notes)
    generator.save(tmp_path / "g.npz")
    card = generator.card()
    assert TableGenerator.load(tmp_path / "g.npz").card().to_json() == card.to_json()
    assert card.accountant == "basic" and card.record_note == notes[0] and card.study_note == notes[1]
    assert saved_facts(tmp_path / "g.npz")["account"] == "survey"


@pytest.mark.parametrize("change", ["facts", "total"])
def test_a_changed_file_is_refused(tmp_path, change):
    with_event().save(tmp_path / "g.npz")
    with np.load(tmp_path / "g.npz") as file:
        arrays = {name: file[name] for name in file.files}
    if change == "facts":
        plain = json.loads(bytes(arrays["facts"]).decode())
        plain["guarantee"]["epsilon"] = 0.1
        arrays["facts"] = np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8)
    else:
        arrays["total"] = arrays["total"] + 1
    np.savez(tmp_path / "changed.npz", **arrays)
    with pytest.raises(InvalidParameterError, match="was changed"):
        TableGenerator.load(tmp_path / "changed.npz")


def test_a_notebook_shows_columns_and_no_row():
    shown = with_event(notes=("for study only: the noise was seeded",))._repr_html_()
    assert "kind, age, pay" in shown and "does not protect anyone" in shown
