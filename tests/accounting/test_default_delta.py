# SPDX-License-Identifier: Apache-2.0
"""There is one default for delta, and everything that has a public size uses it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sfumato.accounting import default_delta, plan
from sfumato.cli.app import app
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Budget, Ledger
from sfumato.training.clipping import Clipping
from sfumato.training.planning import plan_run


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
    run = plan_run(epsilon=2, **SIZES, clipping=Clipping(clip_norm=1.0))
    assert planned.delta == said["delta"] == default_delta(1437) == 1e-4
    assert said["noise_multiplier"] == pytest.approx(planned.noise_multiplier)
    assert run.noise_multiplier(0) == pytest.approx(planned.noise_multiplier)


def test_a_run_charged_to_an_account_uses_the_delta_of_the_account(tmp_path):
    budget = Budget(epsilon=2, delta=1e-7)
    account = Ledger(tmp_path / "ledger.db").open("a", privacy_unit="example", budget=budget)
    run = plan_run(epsilon=2, **SIZES, clipping=Clipping(clip_norm=1.0), account=account)
    assert run.noise_multiplier(0) == pytest.approx(plan(epsilon=2, delta=1e-7, **SIZES).noise_multiplier)


def test_without_a_public_size_there_is_no_default():
    with pytest.raises(InvalidParameterError, match="Give delta"):
        plan(epsilon=2, sampling_rate=0.01, steps=100)
