# SPDX-License-Identifier: Apache-2.0
"""A run asked for what an account has left is admitted, at the noise that a plan would find."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sfumato.accounting import plan
from sfumato.errors import BudgetExceededError
from sfumato.ledger import Account, Budget, Ledger
from sfumato.training.budget import dp_sgd_for
from sfumato.training.description import Privacy
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.train import train

SIZES = {"public_size": 1000, "expected_batch_size": 20, "epochs": 2}
CLIPPING = Clipping(clip_norm=1.0)
DATA = torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64)


@pytest.fixture
def account(tmp_path: Path) -> Account:
    budget = Budget(epsilon=3, delta=1e-5)
    return Ledger(tmp_path / "ledger.db", person="ada").open("a", privacy_unit="example", budget=budget)


def _train(account: Account, epsilon: float, purpose: str):
    return train(
        nn.Linear(2, 2), DATA, **SIZES, epsilon=epsilon, account=account, purpose=purpose, progress=False
    )


def test_all_of_an_unused_account_buys_the_run_that_was_planned(account: Account) -> None:
    run = _train(account, 3, "all")
    planned = plan(epsilon=3, delta=1e-5, **SIZES)
    assert run.mechanism.noise_multiplier(0) == pytest.approx(planned.noise_multiplier, rel=1e-6)
    assert run.guarantee.epsilon <= 3
    assert run.guarantee.delta == 1e-5


def test_a_run_that_names_no_epsilon_takes_the_same_noise_as_one_that_asks_for_all(account: Account) -> None:
    by_account = dp_sgd_for(Privacy(**SIZES, clipping=CLIPPING), account=account)
    by_epsilon = dp_sgd_for(Privacy(**SIZES, clipping=CLIPPING, epsilon=3), account=account)
    assert by_account.noise_multiplier(0) == pytest.approx(by_epsilon.noise_multiplier(0), rel=1e-4)


def test_a_second_run_asked_for_what_the_refusal_says_is_left_is_admitted(account: Account) -> None:
    _train(account, 1, "first")
    with pytest.raises(BudgetExceededError) as refused:
        _train(account, 2.9, "too much")
    left = float(str(refused.value).split("Gaussian release of at most epsilon=")[1].split(" ")[0])
    assert left == pytest.approx(account.remaining().run_epsilon, rel=1e-3)
    run = _train(account, left, "what is left")
    planned = plan(epsilon=left, delta=1e-5, **SIZES).noise_multiplier
    assert planned <= run.mechanism.noise_multiplier(0) <= 1.03 * planned
    assert run.guarantee.epsilon <= left


def test_no_noise_is_added_to_a_run_that_fits_as_planned(account: Account) -> None:
    _train(account, 1, "first")
    run = dp_sgd_for(Privacy(**SIZES, clipping=CLIPPING, epsilon=1), account=account)
    assert run.noise_multiplier(0) == pytest.approx(plan(epsilon=1, delta=1e-5, **SIZES).noise_multiplier)


def test_an_account_that_is_used_up_says_so_by_its_name(account: Account) -> None:
    _train(account, 3, "all")
    with pytest.raises(BudgetExceededError, match=r"account 'a' has too little left.*Grant more budget"):
        dp_sgd_for(Privacy(**SIZES, clipping=CLIPPING), account=account)
    assert len(account.releases()) == 1
