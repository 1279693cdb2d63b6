# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import click
import pytest

from sfumato import Budget, Ledger
from sfumato.accounting import Relation
from sfumato.cli import completion_values
from sfumato.cli.flags import give_flags  # noqa: F401 - the module is imported first by the command line
from sfumato.cli.settings import LABEL_METHODS, MODELS, PUBLIC_SETS
from sfumato.datasets import names


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)

    def make(**said):
        made = click.Context(click.Command("stats"))
        made.params.update(said)
        return made

    return make


def opened(place, *accounts):
    for name in accounts:
        Ledger(place).open(name, privacy_unit="id", budget=Budget(epsilon=1, delta=0))


def test_accounts_are_those_of_the_ledger_that_the_command_would_use(context, monkeypatch):
    opened("ledger.db", "usual")
    opened("other.db", "other")
    assert completion_values.accounts(context(), "") == ["usual"]
    assert completion_values.accounts(context(ledger="other.db"), "") == ["other"]
    Path("sfumato.toml").write_text('ledger = "other.db"\n')
    assert completion_values.accounts(context(), "o") == ["other"]
    monkeypatch.setenv("SFUMATO_LEDGER", "ledger.db")
    assert completion_values.accounts(context(), "") == ["usual"]


def test_completing_makes_nothing_and_fails_silently(context, tmp_path):
    assert completion_values.accounts(context(), "") == []
    assert list(tmp_path.iterdir()) == []
    Path("ledger.db").write_text("not a database")
    assert completion_values.accounts(context(), "") == []
    assert completion_values.accounts(context(ledger="postgresql://nobody@localhost:1/none"), "") == []
    Path("sfumato.toml").write_text("unknown = 3\n")
    assert completion_values.accounts(context(), "") == []


def test_experiments_are_found_without_importing_them():
    from sfumato.experiments.catalog import REPORTS, experiments

    assert completion_values.experiment_names("") == [*experiments(), *REPORTS, "all"]


def test_lists_of_words_are_those_of_the_library():
    from sfumato.labels.recipes import METHODS
    from sfumato.training.models.recipes import models_of

    assert set(LABEL_METHODS) == set(METHODS)
    assert set(PUBLIC_SETS) == set(names())
    assert {model for name in names() for model in models_of(name)} == set(MODELS)
    assert completion_values.relations("") == [each.value for each in Relation]
