# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato import Budget, Ledger
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.ledger.state import Progress
from sfumato.training import Charge, CheckpointError, Clipping, DpSgd, NoisyStep, PoissonSampling
from sfumato.training.payment import Payment


def run_of(noise=3.0):
    return DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.1),
        noise=[(noise, 5)],
        relation="add-remove",
    )


@pytest.fixture
def account(tmp_path):
    """Return an account with a budget for one run."""
    return Ledger(tmp_path / "l.db").open("a", privacy_unit="example", budget=Budget(epsilon=2, delta=1e-5))


def payment(account, noise=3.0):
    return Payment(Charge(account=account, purpose="test"), run_of(noise), generator=None)


def test_an_account_and_a_purpose_belong_together(account):
    with pytest.raises(InvalidParameterError, match="purpose"):
        Payment(Charge(account=account), run_of(), generator=None)
    with pytest.raises(InvalidParameterError, match="account"):
        Payment(Charge(purpose="test"), run_of(), generator=None)


def test_without_an_account_nothing_is_recorded():
    free = Payment(Charge(), run_of(), generator=None)
    assert free.reserve() is None and free.begun and not free.committed and not free.charged
    free.begin(claim="x")
    free.claim("y", known="x")
    free.commit(claim="y")
    free.refund()
    assert free.number is None and free.release_number is None and free.last_claim == ""


def test_a_run_is_charged_begun_and_committed_in_this_order(account):
    paid = payment(account)
    assert paid.charged and paid.reserve() == paid.number and not paid.begun
    paid.begin(claim="first")
    assert paid.begun and paid.last_claim == "first" and not paid.committed
    paid.claim("second", known="first")
    paid.commit(claim="second")
    assert paid.committed and paid.release_number == 1
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED]


def test_a_run_that_never_began_is_refunded(account):
    paid = payment(account)
    paid.reserve()
    spent = account.spent().epsilon
    paid.refund()
    assert spent > 0 and account.spent().epsilon == 0


def test_a_run_that_is_too_dear_leaves_nothing(account):
    with pytest.raises(BudgetExceededError):
        payment(account, noise=0.3).reserve()
    assert account.releases() == []


def test_a_run_is_resumed_under_its_own_charge_alone(account):
    paid = payment(account)
    number = paid.reserve()
    paid.begin(claim="first")
    again = payment(account)
    again.resume(number, finished=False)
    assert again.number == number and len(account.releases()) == 1
    with pytest.raises(CheckpointError, match="another event"):
        payment(account, noise=4.0).resume(number, finished=False)
    paid.commit(claim="first")
    payment(account).resume(number, finished=True)  # only to hand over what was paid for
    with pytest.raises(CheckpointError, match="finished"):
        payment(account).resume(number, finished=False)
