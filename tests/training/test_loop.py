# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from sfumato import Budget, Ledger
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Runtime, Trainer

ROWS = 30
SEQUENCES = torch.randn(ROWS, 5, 3, generator=torch.Generator().manual_seed(0))
LENGTHS, LABELS = torch.arange(ROWS) % 5 + 1, torch.arange(ROWS) % 2
pytestmark = [
    pytest.mark.filterwarnings("ignore:packed sequences keep"),  # it is told that this is slow
    pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


class Packed(nn.Module):
    """A recurrent network over packed sequences, which may not have a length of 0."""

    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(width, 2)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0][-1])


def loss(model, x, lengths, y):
    return F.cross_entropy(model(x, lengths), y, reduction="none")


def trainer(model, account=None, *, group_size=1, **options):
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0), group_size=group_size),
        sampling=PoissonSampling(sampling_rate=0.3),
        noise=[(1.0, 3)],
        relation="add-remove",
    )
    purpose = None if account is None else "a test"
    options |= {"public_size": ROWS, "account": account, "purpose": purpose}
    options |= {"delta": 1e-5} if account is None else {}
    data = (SEQUENCES, LENGTHS, LABELS)
    return Trainer(model, data, mechanism=mechanism, loss=loss, generator=seeded(0), **options)


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("data", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5))


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.filterwarnings("ignore:the model or the loss does something")  # it is run row by row
def test_a_network_over_packed_sequences_is_trained(buffer):
    before = Packed()
    after = trainer(with_buffer() if buffer else Packed()).fit().model
    assert not torch.equal(before.rnn.weight_ih_l0, after.rnn.weight_ih_l0)


def test_what_fails_on_zeros_and_on_ones_is_told_and_not_paid_for(account):
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(\dx4 and 7x2\)"):
        trainer(Packed(width=7), account).fit()
    assert not any(release.spent for release in account.releases())


def with_buffer():
    model = Packed()
    model.register_buffer("scale", torch.ones(1))
    return model


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Packed, {"group_size": 2}),
        (Packed, {"runtime": Runtime(compile=True)}),
    ],
    ids=["groups are padded with zeros", "recordings are"],
)
def test_a_network_that_refuses_zeros_is_refused_where_steps_need_them(make, options, account):
    with pytest.raises(RuntimeError, match="Length of all samples"):
        trainer(make(), account, **options).fit()
    assert not any(release.spent for release in account.releases())


class WithNorm(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x, lengths):
        return self.out(self.norm(x.mean(1)))


def test_a_part_that_is_held_in_evaluation_mode_stays_in_it():
    model = WithNorm()
    model.norm.eval()
    trained = trainer(model).fit().model
    assert not trained.norm.training
    assert torch.equal(trained.norm.running_mean, torch.zeros(3))
    assert not torch.equal(trained.out.weight, WithNorm().out.weight)
