# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.audit import Canaries
from sfumato.audit.federations.canary_clients import MADE_UP, ClientsWithCanaries, with_canaries
from sfumato.audit.runs.canary_coordinates import CanaryCoordinates, ModelWithCanaries
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.federated import (
    AssignedRows,
    LazyRows,
    LocalTraining,
    SecureSum,
    SimulatedSums,
    federate,
)
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    DpSgd,
    NoisyStep,
    PoissonSampling,
    Runtime,
    train,
)
from sfumato.training.engine.step.settings import Engines

torch.set_num_threads(1)

LOCAL = LocalTraining(batch_size=2, learning_rate=0.2)
CLIENTS = 20


class Numbers:
    """Gives client i the number i + 1 in all coordinates."""

    def __init__(self):
        self.asked = []

    def contributions(self, model, batch, *, step):
        self.asked.append((model, batch[0].tolist(), step))
        units = len(batch[0])
        ones = {name: torch.ones(units, *p.shape) for name, p in model.named_parameters()}
        return {
            name: value * (batch[0] + 1).view(-1, *[1] * (value.dim() - 1)) for name, value in ones.items()
        }

    def statement(self):
        return "It gives numbers."


def host(count=4):
    return ModelWithCanaries(nn.Linear(2, 1), CanaryCoordinates(count, tables=2))


def given(contributor, model, numbers, places, pulls):
    batch = torch.tensor(numbers), torch.tensor(places), torch.tensor(pulls)
    found = contributor.contributions(model, batch, step=3)
    return torch.cat([value.flatten(1) for value in found.values()], 1), found


def test_clients_are_asked_with_the_model_alone_and_are_zero_beside_it():
    inner, model = Numbers(), host()
    flat, found = given(ClientsWithCanaries(inner), model, [7, 0, 5], [0, 2, 0], [1.0, 9.0, 1.0])
    assert inner.asked == [(model.model, [7, 5], 3)]
    assert found["model.weight"].flatten(1).tolist() == [[8.0, 8.0], [0.0, 0.0], [6.0, 6.0]]
    assert flat[0].count_nonzero() == flat[2].count_nonzero() == 3


def test_a_canary_has_its_length_in_one_coordinate_of_its_own():
    model = host(4)
    flat, _ = given(ClientsWithCanaries(Numbers()), model, [0] * 4, [1, 2, 3, 4], [5.0, -6.0, 7.0, 0.0])
    assert flat.abs().sum(1).tolist() == [5.0, 6.0, 7.0, 0.0]
    assert len({int(row.abs().argmax()) for row in flat[:3]}) == 3
    loss = torch.tensor([5.0, -6.0, 7.0, 0.0]) * model.canaries(torch.arange(1, 5))
    for row, one in zip(flat, loss, strict=True):  # as the gradient of a canary's loss is
        grads = torch.autograd.grad(one, list(model.parameters()), retain_graph=True, allow_unused=True)
        wanted = [
            torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), grads, strict=True)
        ]
        assert torch.equal(row, torch.cat([g.flatten() for g in wanted]))


def test_a_cohort_without_clients_asks_nobody():
    inner = Numbers()
    given(ClientsWithCanaries(inner), host(), [0, 0], [1, MADE_UP[0]], [1.0, 1.0])
    assert not inner.asked
    assert ClientsWithCanaries(inner).all_made_up((torch.zeros(2), torch.tensor([1, -2]), torch.ones(2)))
    assert not ClientsWithCanaries(inner).all_made_up((torch.zeros(2), torch.tensor([0, 1]), torch.ones(2)))


def test_made_up_clients_push_all_tensors_or_one_of_them():
    flat, found = given(ClientsWithCanaries(Numbers()), host(), [0] * 4, list(MADE_UP), [2.0] * 4)
    assert found["model.weight"].flatten(1)[0].tolist() == [2.0, 2.0]
    assert found["model.bias"].flatten(1)[:, 0].tolist()[2:] == [0.0, 2.0]
    assert flat.isfinite().all()
    assert flat[1].count_nonzero() == 3


class Wrong(Numbers):
    def contributions(self, model, batch, *, step):
        return {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}


def test_updates_of_another_shape_are_refused_and_not_spread_over_clients():
    with pytest.raises(SfumatoError, match="one entry for each"):
        given(ClientsWithCanaries(Wrong()), host(), [1, 2], [0, 0], [1.0, 1.0])


class RealSums(Numbers):
    summation = generator = largest_batch = None

    def noisy_sum(self, model, batch, *, step, noise_multiplier):
        raise AssertionError("nobody is asked")


def test_sums_of_real_clients_cannot_be_joined():
    with pytest.raises(InvalidParameterError, match="RoundCanaries"):
        with_canaries(RealSums())


def test_engines_of_rows_stay_as_they_are():
    assert with_canaries(Engines.AUTO) is Engines.AUTO
    contributor = ClientsWithCanaries(Numbers())
    assert contributor.statement() == "It gives numbers."
    assert "Numbers" in repr(contributor)


# --- whole runs -------------------------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def rows():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(2 * CLIENTS, 3, generator=draws)
    return x, (x.sum(1) > 0).long()


def run(*, audit=True, count=200, **settings):
    given = {"rounds": 4, "expected_cohort_size": CLIENTS, "noise_multiplier": 2.0, "evaluate_every": 4}
    given["generator"] = seeded(0)
    return federate(
        network(),
        settings.pop("clients", AssignedRows(rows(), torch.arange(2 * CLIENTS) % CLIENTS, clients=CLIENTS)),
        local=LOCAL,
        delta=1e-5,
        progress=False,
        audit=Canaries(count=count) if audit else None,
        **given | settings,
    )


@pytest.mark.parametrize("noise", [None, "discrete-gaussian", "skellam"])
def test_a_federated_run_that_is_right_is_not_refuted(noise):
    found = run(noise=noise)
    assert not found.audit.refuted
    assert found.audit.blind is None
    assert 0 < found.audit.best.epsilon < found.epsilon
    names = [check.name for check in found.audit.checks]
    assert "noise of each step" in names and "contributions of canaries" in names and "updates" in names
    assert ("contributions in the model's own tensors" in names) == (noise is None)
    assert "A step is" in found.statement() or "update" in found.statement()


def test_sums_without_room_for_canaries_are_refused_before_anything_is_charged():
    sums = SecureSum(dimension=26, clip_norm=1.0, noise_multiplier=2.0, cohort=20, least_survivors=20)
    step = NoisyStep(clipping=Clipping(clip_norm=1.0), summation=sums)
    mechanism = DpSgd(
        step=step, sampling=PoissonSampling(sampling_rate=1.0), noise=[(2.0, 2)], relation="zero-out"
    )
    with pytest.raises(InvalidParameterError, match="dimension=428"):
        train(
            network(),
            (torch.arange(CLIENTS),),
            mechanism=mechanism,
            public_size=CLIENTS,
            delta=1e-5,
            learning_rate=1.0,
            runtime=Runtime(engine=SimulatedSums(Numbers(), sums)),
            audit=Canaries(count=200),
        )


def test_canaries_cost_nothing_and_no_client_sees_them():
    asked = []
    features, labels = rows()

    def read(client):
        asked.append(client)
        return features[client::CLIENTS], labels[client::CLIENTS]

    clients = LazyRows(read, clients=CLIENTS, like=(features[:0], labels[:0]))
    audited = run(clients=clients)
    assert audited.guarantee == run(audit=False).guarantee
    assert sorted(asked) == sorted(4 * [*range(CLIENTS)])  # once a round, and in no trial


def test_an_audited_run_that_was_interrupted_goes_on_with_its_canaries(tmp_path):
    def stop(model, step):
        if step == 2:
            raise KeyboardInterrupt

    kept = {"folder": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        run(on_evaluation=stop, evaluate_every=1, **kept)
    resumed = run(evaluate_every=1, resume=True, **kept)
    assert not resumed.audit.refuted
    assert len(resumed.audit.in_scores) + len(resumed.audit.out_scores) == 200


@pytest.mark.slow
@pytest.mark.parametrize("noise", [None, "discrete-gaussian", "skellam"])
def test_right_runs_are_accused_no_more_often_than_the_confidence_allows(noise):
    refuted = sum(run(noise=noise, generator=seeded(seed)).audit.refuted for seed in range(40))
    assert refuted <= 6  # of 40 at 5% each: more has a chance of 0.3%


@pytest.mark.slow
def test_adaptive_clipping_and_sampled_cohorts_are_audited():
    clipping = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=4.0))
    assert not run(clipping=clipping, expected_cohort_size=CLIENTS / 2, rounds=10).audit.refuted
