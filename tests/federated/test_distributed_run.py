# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.audit import Canaries
from sfumato.errors import InvalidParameterError
from sfumato.federated import LocalTraining, federate, iid
from sfumato.federated.distributed_run import distributed_run
from sfumato.federated.secure_sum.secure_sum import IntegerNoise
from sfumato.ledger import Budget, Ledger
from sfumato.testing import seeded
from sfumato.training import AdaptiveClip, Clipping, CyclicBatches, DpSgd, NoisyStep, PoissonSampling

SETTINGS = {"epsilon": 4.0, "delta": 1e-3, "steps": 10, "expected_batch_size": 50.0, "public_size": 200}
KINDS = [kind.value for kind in IntegerNoise]


@pytest.mark.parametrize("noise", IntegerNoise)
def test_noise_of_clients_is_that_of_a_server_at_the_same_price(noise):
    run = distributed_run(nn.Linear(20, 10), noise, SETTINGS)
    central = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.25),
        noise=[(1.0, 10)],
        relation="add-remove",
    ).calibrated(epsilon=4.0, delta=1e-3)
    assert run.price(delta=1e-3).epsilon <= 4.0
    assert run.noise_multiplier(0) == pytest.approx(central.noise_multiplier(0), rel=1e-3)


def test_more_noise_than_the_budget_needs_runs_to_the_end_and_less_is_stopped():
    assert (
        distributed_run(nn.Linear(2, 2), IntegerNoise.SKELLAM, SETTINGS | {"noise_multiplier": 9.0}).steps
        == 10
    )
    short = distributed_run(nn.Linear(2, 2), IntegerNoise.SKELLAM, SETTINGS | {"noise_multiplier": 0.9})
    assert short.steps < 10 and short.price(delta=1e-3).epsilon <= 4.0


@pytest.mark.parametrize("multiplier", [None, 0.9])
def test_without_a_delta_that_of_the_account_holds(multiplier, tmp_path):
    budget = Budget(epsilon=8.0, delta=1e-6)  # the default for 200 clients is 1e-3
    account = Ledger(tmp_path / "ledger.db").open("phones", privacy_unit="client", budget=budget)
    settings = SETTINGS | {"delta": None, "noise_multiplier": multiplier, "steps": 3}
    run = distributed_run(nn.Linear(2, 2), IntegerNoise.SKELLAM, settings | {"account": account})
    strict, loose = (
        distributed_run(nn.Linear(2, 2), IntegerNoise.SKELLAM, settings | {"delta": delta})
        for delta in (1e-6, None)
    )
    assert run == strict != loose
    assert run.price(delta=1e-6).epsilon <= 4.0 < loose.price(delta=1e-6).epsilon


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": None}, "epsilon"),
        ({"expected_batch_size": 201.0}, "at most clients=200"),
        ({"sampling": CyclicBatches(batch_size=10, public_size=200)}, "sampling has no meaning"),
        (
            {
                "clipping": Clipping(
                    clip_norm=1.0, adaptive=AdaptiveClip(quantile=0.5, count_noise_multiplier=9.0)
                )
            },
            "fixed norm",
        ),
        ({"clipping": Clipping(clip_norm=1.0), "clip_norm": 1.0}, "not both"),
    ],
)
def test_what_clients_cannot_do_is_refused(wrong, said):
    with pytest.raises(InvalidParameterError, match=said):
        distributed_run(nn.Linear(2, 2), IntegerNoise.SKELLAM, SETTINGS | wrong)


@pytest.mark.parametrize("noise", KINDS)
def test_a_federation_with_little_noise_is_that_of_a_server(noise):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=draws)
    rows = x, (x.sum(1) > 0).long()

    def trained(**options):
        torch.manual_seed(0)
        return federate(
            nn.Linear(3, 2),
            iid(rows, clients=10),
            rounds=3,
            expected_cohort_size=10,
            local=LocalTraining(epochs=1, batch_size=4, learning_rate=0.2),
            noise_multiplier=1e-2,
            clip_norm=1.0,
            delta=1e-3,
            progress=False,
            generator=seeded(0),
            **options,
        )

    central, distributed = trained(), trained(noise=noise)
    for found, wanted in zip(distributed.model.parameters(), central.model.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=0.02)
    assert "noise of the clients" in distributed.statement() and "its update" in distributed.statement()
    assert distributed.guarantee.privacy_unit == "client"


def test_sums_of_an_audited_run_have_room_for_canaries():
    plain = distributed_run(nn.Linear(2, 2), IntegerNoise.SKELLAM, SETTINGS).step.summation
    audited = distributed_run(
        nn.Linear(2, 2), IntegerNoise.SKELLAM, SETTINGS, audit=Canaries(count=50)
    ).step.summation
    assert audited.dimension == plain.dimension + 2 * 51
    assert audited.cohort > plain.cohort
