# SPDX-License-Identifier: Apache-2.0
"""A flag goes before the environment, which goes before `sfumato.toml`, which goes before a default."""

import json
from pathlib import Path

import pytest

from sfumato import Budget, Ledger
from sfumato.cli.federation_settings import FederationSettings
from sfumato.cli.pate_settings import PateSettings
from sfumato.cli.project.defaults import charged_to, choose, in_environment, in_project, ledger_at
from sfumato.cli.settings import TrainSettings
from sfumato.cli.synthesis_settings import SynthesisSettings

FILE = """
ledger = "project.db"
account = "study"
privacy_unit = "client_id"
data = "people.csv"

[types]
age = "number"

[bounds]
age = [18, 100]
"""
PEOPLE = "client_id,age,city\n" + "".join(f"{i},{20 + i % 60},Rome\n" for i in range(500))


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)
    Path("sfumato.toml").write_text(FILE)
    Path("people.csv").write_text(PEOPLE)
    Path("others.csv").write_text(PEOPLE)
    for place, name in (("project.db", "study"), ("other.db", "study"), ("other.db", "more")):
        Ledger(place).open(name, privacy_unit="client_id", budget=Budget(epsilon=9, delta=1e-6))
    return tmp_path


def releases(place="project.db", name="study"):
    return len(Ledger(place, create=False).account(name).releases())


def test_the_order_of_places_for_a_ledger(project, monkeypatch):
    assert ledger_at("flag.db") == "flag.db"
    assert ledger_at(None) == "project.db"
    monkeypatch.setenv("SFUMATO_LEDGER", "environment.db")
    assert ledger_at(None) == "environment.db" and ledger_at("flag.db") == "flag.db"
    monkeypatch.delenv("SFUMATO_LEDGER")
    Path("sfumato.toml").unlink()
    assert ledger_at(None) == "ledger.db"


def test_the_order_of_places_for_an_account(project, monkeypatch):
    assert charged_to(None, None) == ("project.db", "study")
    assert charged_to("other.db", None) == ("other.db", "study")
    assert charged_to(None, "more") == ("project.db", "more")
    monkeypatch.setenv("SFUMATO_LEDGER", "other.db")
    assert charged_to(None, None) == ("other.db", "study")
    assert charged_to("flag.db", "more") == ("flag.db", "more")


def test_the_environment_alone_charges_nothing(project, monkeypatch):
    Path("sfumato.toml").unlink()
    monkeypatch.setenv("SFUMATO_LEDGER", "other.db")
    assert charged_to(None, None) == (None, None)
    assert charged_to(None, "more") == ("other.db", "more")


def test_an_account_without_a_ledger_in_the_file_is_in_the_usual_one(project):
    Path("sfumato.toml").write_text('account = "study"\n')
    assert charged_to(None, None) == ("ledger.db", "study")
    assert charged_to(None, "another") == (None, "another")  # refused later: it names no ledger
    Path("sfumato.toml").write_text('ledger = "project.db"\n')
    assert charged_to(None, None) == (None, None)


def test_types_and_bounds_are_those_of_the_named_data_alone(project):
    ours = choose("./people.csv", ledger=None, account=None, types=["city=text"])
    assert ours.types == ["age=number", "city=text"] and ours.bounds_of("age") == (18.0, 100.0)
    assert (ours.privacy_unit, ours.account) == ("client_id", "study")
    others = choose("others.csv", ledger=None, account=None)
    assert others.types == [] and others.bounds_of("age") is None
    assert (others.privacy_unit, others.account) == ("client_id", "study")
    elsewhere = choose("others.csv", ledger="other.db", account="more")
    assert elsewhere.privacy_unit is None
    assert choose("people.csv", ledger=None, account=None, privacy_unit="city").privacy_unit == "city"


@pytest.mark.parametrize("kind", [TrainSettings, PateSettings, SynthesisSettings])
def test_settings_of_commands_are_completed_for_data_of_ones_own(project, kind):
    found = in_project(kind(data="people.csv", epsilon=1.0))
    assert (found.ledger, found.account) == ("project.db", "study")
    assert (found.privacy_unit, found.type) == ("client_id", ["age=number"])
    said = kind(data="people.csv", ledger="other.db", account="more", privacy_unit="city")
    assert (in_project(said).ledger, in_project(said).account) == ("other.db", "more")
    assert in_project(said).privacy_unit == "city"


def test_images_are_charged_and_have_no_column_that_names_a_unit(project):
    found = in_project(TrainSettings(data="images.npz"))
    assert (found.account, found.privacy_unit, found.type) == ("study", None, None)


@pytest.mark.parametrize("kind", [TrainSettings, SynthesisSettings])
def test_public_sets_are_not_the_data_of_the_project(project, kind, monkeypatch):
    assert in_project(kind(data="digits", epsilon=1.0)) == kind(data="digits", epsilon=1.0)
    monkeypatch.setenv("SFUMATO_LEDGER", "other.db")
    assert in_project(kind(data="digits")) == kind(data="digits")
    assert in_project(kind(data="digits", account="more")).ledger == "other.db"


def test_a_federation_takes_the_ledger_of_the_environment_for_its_account(monkeypatch):
    monkeypatch.setenv("SFUMATO_LEDGER", "other.db")
    assert in_environment(FederationSettings(data="digits", account="a")).ledger == "other.db"
    said = FederationSettings(data="digits", account="a", ledger="flag.db")
    assert in_environment(said) == said and in_environment(FederationSettings()) == FederationSettings()


def test_stats_in_a_project_needs_neither_types_nor_bounds_and_is_charged(project, ran):
    code, out, err = ran("stats people.csv mean age --epsilon 1 --json")
    said = json.loads(out)
    assert code == 0, err
    assert said["recorded"] is True and said["account"] == "study" and releases() == 1
    assert 18 <= said["value"] <= 100
    ran("stats others.csv mean age --type age=number --bounds 18 100 --epsilon 1")
    assert releases() == 2
    ran("stats people.csv count --epsilon 1 --ledger other.db --account more")
    assert releases() == 2 and releases("other.db", "more") == 1


def test_stats_without_bounds_in_the_file_asks_for_them(project, ran):
    code, _, err = ran("stats others.csv mean age --type age=number --epsilon 1")
    assert code == 2 and "mean needs --bounds" in err and releases() == 0


def test_a_fit_in_a_project_is_charged(project, ran):
    code, _, err = ran(
        "fit people.csv logistic-regression --target city --label Rome --label Oslo --feature age "
        "--clip-norm 100 --epsilon 1"
    )
    assert code == 0 and releases() == 1, err


def test_another_unit_than_that_of_the_account_is_refused_by_the_ledger(project, ran):
    Path("sfumato.toml").write_text(FILE.replace('"client_id"', '"city"'))
    code, _, err = ran("stats people.csv mean age --epsilon 1")
    assert code == 2 and "client_id" in err and releases() == 0


def test_a_misspelled_key_stops_the_command_before_it_reads_data(project, ran):
    Path("sfumato.toml").write_text(FILE.replace("account =", "acount ="))
    code, _, err = ran("stats people.csv mean age --epsilon 1")
    assert code == 2 and "Did you mean 'account'?" in err and releases() == 0


def test_the_ledger_commands_read_the_file(project, ran):
    assert [each["account"] for each in json.loads(ran("ledger show --json")[1])] == ["study"]
    assert json.loads(ran("ledger show study --json")[1])["account"] == "study"
    assert len(json.loads(ran("ledger show --ledger other.db --json")[1])) == 2
    code, out, err = ran(
        "plan --account study --public-size 1000 --expected-batch-size 100 --epochs 1 --json"
    )
    assert code == 0 and json.loads(out)["delta"] == 1e-6, err
    free = ran("plan --epsilon 1 --delta 1e-5 --sampling-rate 0.1 --steps 10 --json")[1]
    assert json.loads(free)["epsilon"] <= 1  # a plan of its own does not look at an account
