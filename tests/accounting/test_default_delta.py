# SPDX-License-Identifier: Apache-2.0
"""There is one default for delta, and everything that has a public size uses it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sfumato import _check, statistics
from sfumato.accounting import default_delta, plan
from sfumato.accounting.default_delta import delta_note
from sfumato.accounting.events import PureDpEvent
from sfumato.cli.app import app
from sfumato.errors import InvalidParameterError
from sfumato.estimators import StandardScaler
from sfumato.labels import LabelDpSgd
from sfumato.ledger import Budget, Ledger
from sfumato.statistics.groups.key_discovery import KeyDiscovery
from sfumato.training.budget import dp_sgd_for
from sfumato.training.description import Privacy
from sfumato.training.privacy.clipping import Clipping


@given(st.integers(1, 10**15))
def test_the_default_is_the_largest_power_of_ten_below_one_over_the_size(size):
    delta = default_delta(size)
    assert delta * size < 1 <= 10 * delta * size * (1 + 1e-12)
    assert f"{delta:e}".startswith("1.000000e-")


@pytest.mark.parametrize("size", [0, -1, 1.5, 10**400])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidParameterError, match="public_size"):
        default_delta(size)


SIZES = {"public_size": 1437, "expected_batch_size": 64, "epochs": 2}


def test_plan_train_and_the_command_line_have_the_same_default():
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    said = json.loads(CliRunner().invoke(app, ["plan", "--epsilon=2", *flags, "--json"]).stdout)
    planned = plan(epsilon=2, **SIZES)
    run = dp_sgd_for(Privacy(epsilon=2, **SIZES, clipping=Clipping(clip_norm=1.0)))
    assert planned.delta == said["delta"] == default_delta(1437) == 1e-4
    assert said["noise_multiplier"] == pytest.approx(planned.noise_multiplier)
    assert run.noise_multiplier(0) == pytest.approx(planned.noise_multiplier)


def test_a_run_charged_to_an_account_uses_the_delta_of_the_account(tmp_path):
    budget = Budget(epsilon=2, delta=1e-7)
    account = Ledger(tmp_path / "ledger.db").open("a", privacy_unit="example", budget=budget)
    run = dp_sgd_for(Privacy(epsilon=2, **SIZES, clipping=Clipping(clip_norm=1.0)), account=account)
    assert run.noise_multiplier(0) == pytest.approx(plan(epsilon=2, delta=1e-7, **SIZES).noise_multiplier)


def test_without_a_public_size_there_is_no_default():
    with pytest.raises(InvalidParameterError, match="Give delta"):
        plan(epsilon=2, sampling_rate=0.01, steps=100)


# --- a delta that is too large ---------------------------------------------------------------------------

BUY = {
    "a mean": lambda delta: statistics.mean([1.0], bounds=(0, 1), epsilon=1.0, delta=delta),
    "quantiles": lambda delta: statistics.quantiles(
        [1.0], qs=(0.5,), bounds=(0, 1), epsilon=1.0, delta=delta
    ),
    "a covariance": lambda delta: statistics.covariance(
        [[1.0, 2.0]], bounds=(0, 1), epsilon=1.0, delta=delta
    ),
    "keys": lambda delta: KeyDiscovery(columns=("a",), epsilon=1.0, delta=delta),
    "an estimator": lambda delta: StandardScaler(epsilon=1.0, delta=delta, bounds=(0, 1)).fit([[1.0]]),
    "a plan": lambda delta: plan(epsilon=2, delta=delta, **SIZES),
    "a run": lambda delta: dp_sgd_for(
        Privacy(epsilon=2, delta=delta, **SIZES, clipping=Clipping(clip_norm=1.0))
    ),
    "labels": lambda delta: LabelDpSgd(
        epsilon=1.0, delta=delta, classes=2, public_size=9, steps=1, expected_batch_size=3
    ),
    "an account": lambda delta: Ledger.temporary().open(
        "a", privacy_unit="row", budget=Budget(epsilon=1, delta=delta)
    ),
    "a grant": lambda delta: (
        Ledger.temporary()
        .open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=1e-6))
        .grant(delta=delta, reason="why not")
    ),
}


@pytest.mark.parametrize("buy", BUY.values(), ids=BUY.keys())
def test_a_delta_that_promises_nothing_is_refused_wherever_one_is_bought(buy):
    with pytest.raises(InvalidParameterError, match=r"delta must be at most 0.1, but 0.5.* was given"):
        buy(0.5)
    buy(0.05)


@pytest.mark.parametrize(
    "line",
    [
        "account --noise-multiplier 1 --delta 0.5",
        "plan --epsilon 3 --delta 0.5 --sampling-rate 0.1 --steps 10",
        "train digits --epsilon 1 --delta 0.5",
        "train digits --private labels --epsilon 1 --delta 0.5",
    ],
)
def test_the_command_line_refuses_it_in_the_same_words(line):
    refused = CliRunner().invoke(app, line.split())
    assert "delta must be at most 0.1, but 0.5 was given" in str(refused.exception)


def test_an_account_that_was_opened_with_more_can_still_be_read(tmp_path, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(_check, "delta", lambda **values: None)
        ledger = Ledger(tmp_path / "ledger.db")
        ledger.open("old", privacy_unit="row", budget=Budget(epsilon=1, delta=0.5))
    account = Ledger(tmp_path / "ledger.db").account("old")
    account.reserve(PureDpEvent(0.1), relation="add-remove", purpose="p")
    account.grant(epsilon=1.0, reason="of epsilon alone")
    assert account.budget.delta == 0.5 and "0.5)-differential privacy" in account.statement().text


@pytest.mark.parametrize(
    ("delta", "size", "large"),
    [
        (1e-6, None, False),
        (1e-3, None, False),
        (0.01, None, True),
        (0.01, 99, False),
        (0.01, 100, True),
        (1e-4, 10**6, True),
        (0.0, 10**6, False),
    ],
)
def test_a_delta_is_large_where_it_is_not_below_one_over_the_units(delta, size, large):
    assert (delta_note(delta, size) is not None) is large


def test_a_release_and_the_command_line_say_that_a_delta_is_large():
    release = statistics.mean([1.0], bounds=(0, 1), epsilon=1.0, delta=0.05)
    assert any("delta 0.05 is large" in note for note in release.notes)
    for line in ("account --noise-multiplier 9 --delta 0.05", "plan --epsilon 3 --delta 1e-3 --epochs 1"):
        sizes = " --public-size 5000 --expected-batch-size 50" if line.startswith("plan") else ""
        said = json.loads(CliRunner().invoke(app, f"{line}{sizes} --json".split()).stdout)
        assert "is large" in said["notes"][0]
