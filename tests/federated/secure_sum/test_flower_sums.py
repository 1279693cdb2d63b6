# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from sfumato import Budget, Ledger
from sfumato.accounting import events
from sfumato.accounting.events import TruncatedPoissonSampledDpEvent
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.flower_mod import RECORD, secure_sum_mod
from sfumato.federated.secure_sum.flower_sums import GridSums
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.training import (
    Clipping,
    DpSgd,
    NoisyStep,
    PoissonSampling,
    Runtime,
    TruncatedPoissonSampling,
    train,
)
from sfumato.training.engine.contributions import NoisySummer

NODES = [100, 200, 300, 400, 500]


def mechanism(**options):
    facts = {"dimension": 6, "clip_norm": 10.0, "noise_multiplier": 1e-3, "cohort": 4, "least_survivors": 3}
    return SecureSum(**{**facts, **options})


def moving(by, agreed, *, step=None):
    """Return an app that moves the model; what is no number is raised."""
    app = ClientApp(mods=[secure_sum_mod(agreed, rounds=3)])

    @app.train()
    def train(message, context):
        assert step is None or message.content["config"]["server-round"] == step + 1
        if isinstance(by, Exception):
            raise by
        if by == "shape":
            return Message(RecordDict({"arrays": ArrayRecord([np.ones(9)])}), reply_to=message)
        state = message.content["arrays"].to_torch_state_dict()
        moved = {name: value - by for name, value in state.items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    return app


class Buffered(nn.Linear):
    """A layer with a buffer, which is sent but not trained."""

    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("count", torch.zeros(3))


def grid_of(grid, moves, agreed, *, step=None):
    nodes = grid({})
    nodes.apps.update({node: moving(by, agreed, step=step) for node, by in moves.items()})
    nodes.contexts.update({node: Context(1, node, {}, RecordDict(), {}) for node in moves})
    return nodes


def sums(grid, **options):
    agreed = mechanism(**options)
    nodes = grid_of(grid, {node: 0.1 * i for i, node in enumerate(NODES)}, agreed, step=2)
    return nodes, GridSums(nodes, NODES, agreed)


def test_the_sum_of_a_batch_comes_back_by_parameter(grid):
    nodes, found = sums(grid)
    assert isinstance(found, NoisySummer) and found.summation == mechanism()
    total = found.noisy_sum(Buffered(), (torch.tensor([1, 3]),), step=2, noise_multiplier=1e-3)
    assert set(total) == {"weight", "bias"} and total["weight"].shape == (2, 2)
    assert np.abs(total["weight"].numpy() - 0.4).max() < 0.2
    invited = [m for m in nodes.received if "keys" in m.content[RECORD]]
    assert len(invited) == 4  # two of them add noise alone


def test_a_batch_without_clients_is_noise_alone(grid):
    _, found = sums(grid)
    total = found.noisy_sum(Buffered(), (), step=2, noise_multiplier=1e-3)
    assert total is not None and np.abs(total["bias"].numpy()).max() < 0.2


def test_too_many_drop_outs_give_no_sum(grid):
    nodes, found = sums(grid)
    nodes.lost = {"vector": NODES}
    assert found.noisy_sum(Buffered(), (torch.arange(2),), step=2, noise_multiplier=1e-3) is None


def test_a_batch_larger_than_the_cohort_is_refused_before_anybody_is_asked(grid):
    nodes, found = sums(grid)
    with pytest.raises(InvalidParameterError, match="cohort=4"):
        found.noisy_sum(Buffered(), (torch.arange(5),), step=2, noise_multiplier=1e-3)
    assert not nodes.received


def test_any_batch_fits_a_cohort_of_all_nodes(grid):
    assert sums(grid)[1].largest_batch == 4
    _, found = sums(grid, cohort=5)
    assert found.largest_batch is None
    total = found.noisy_sum(Buffered(), (torch.arange(5),), step=2, noise_multiplier=1e-3)
    assert np.abs(total["bias"].numpy() - 1.0).max() < 0.2


@pytest.fixture
def account(tmp_path):
    budget = Budget(epsilon=40.0, delta=1e-2)
    return Ledger(tmp_path / "ledger.db").open("people", privacy_unit="client", budget=budget)


def small(**options):
    """Return the mechanism of a run."""
    return mechanism(**{"dimension": 2, "clip_norm": 1.0, "noise_multiplier": 2.0} | options)


def run_of(nodes, sampling, account, *, folder=None, resume=False, **options):
    """Train for three rounds on a grid."""
    found = small(**options)
    run = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0), summation=found),
        sampling=sampling,
        noise=[(2.0, 3)],
        relation="add-remove",
    )
    settings = {"public_size": 5, "delta": 1e-2, "progress": False, "privacy_unit": "client"}
    settings |= {"account": account, "purpose": "a run", "folder": folder, "resume": resume}
    settings |= {} if folder is None else {"checkpoint_every": 1}
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    engine = GridSums(nodes, NODES, found)
    return train(model, (torch.arange(5),), mechanism=run, runtime=Runtime(engine=engine), **settings)


MOVES = {node: 0.1 * i for i, node in enumerate(NODES)}
CUT = TruncatedPoissonSampling(sampling_rate=0.9, batch_size=4, public_size=5)


def test_a_run_whose_batches_may_be_larger_than_the_cohort_is_refused_and_not_charged(grid, account):
    nodes = grid_of(grid, MOVES, small())
    with pytest.raises(InvalidParameterError, match="TruncatedPoissonSampling"):
        run_of(nodes, PoissonSampling(sampling_rate=0.5), account)
    assert not account.releases() and not nodes.received


def test_batches_that_are_cut_to_the_cohort_are_priced_as_such(grid, account):
    run = run_of(grid_of(grid, MOVES, small()), CUT, account)
    all_fit = grid_of(grid, MOVES, small(cohort=5))
    whole = run_of(all_fit, PoissonSampling(sampling_rate=0.9), account, cohort=5)
    assert {type(part) for part in events.leaves(run.mechanism.event())} == {TruncatedPoissonSampledDpEvent}
    assert run.price.epsilon > whole.price.epsilon  # that a batch was cut has a price
    assert [release.event for release in account.releases()] == [
        run.mechanism.event(),
        whole.mechanism.event(),
    ]


def test_rounds_that_are_skipped_are_charged_move_nothing_and_are_told(grid, account, caplog):
    nodes = grid_of(grid, MOVES, small())
    nodes.lost = {"vector": NODES[:3]}
    run = run_of(nodes, CUT, account)
    assert not run.model.weight.any() and run.mechanism.steps == 3
    assert "3 of the 3 rounds had no sum, because fewer than 3 clients" in run.statement()
    assert caplog.text.count("has no sum") == 3 and "round 2 has no sum" in caplog.text
    (release,) = account.releases()
    assert release.event == run.mechanism.event()


def test_clients_that_refuse_every_round_are_told_of(grid, account):
    run = run_of(grid_of(grid, MOVES, small(noise_multiplier=3.0)), CUT, account)
    assert not run.model.weight.any() and "3 of the 3 rounds had no sum" in run.statement()


def test_a_run_whose_rounds_all_have_sums_says_nothing_of_it(grid, account, caplog):
    run = run_of(grid_of(grid, MOVES, small()), CUT, account)
    assert run.model.weight.any()
    assert "had no sum" not in run.statement() and "no sum" not in caplog.text


def test_the_ledger_says_against_whom_its_price_is_and_what_holds_against_the_server(grid, account):
    run = run_of(grid_of(grid, MOVES, small()), CUT, account)
    (release,) = account.releases()
    told = f"a run [against those who see the models; against the server: {run.against_server}]"
    assert release.purpose == told and told in " ".join(str(account.statement()).split())
    assert str(run.against_server) in run.statement()


def test_a_server_that_died_goes_on_in_new_sessions_and_is_charged_once(grid, account, tmp_path):
    nodes = grid_of(grid, MOVES, small())
    ask, folder = nodes.send_and_receive, tmp_path / "run"

    def dies(messages, *, timeout=None):
        if any(m.content["config"]["server-round"] == 2 for m in messages if "config" in m.content):
            raise KeyboardInterrupt
        return ask(messages, timeout=timeout)

    nodes.send_and_receive = dies
    with pytest.raises(KeyboardInterrupt):
        run_of(nodes, CUT, account, folder=folder)
    nodes.send_and_receive = ask
    run = run_of(nodes, CUT, account, folder=folder, resume=True)
    assert run.mechanism.steps == 3 and len(account.releases()) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, 0.0, RuntimeError("a row"), "late", "shape"])
def test_one_client_moves_the_sum_by_at_most_the_clip_norm_whatever_it_sends(grid, bad, caplog):
    def summed(by):
        quiet = mechanism(dimension=2, clip_norm=1.0, noise_multiplier=1e-6, cohort=5, bits=32)
        nodes = grid_of(grid, MOVES | {NODES[1]: 0.0 if by == "late" else by}, quiet)
        nodes.lost = {"vector": [NODES[1]]} if by == "late" else {}
        model = nn.Linear(2, 1, bias=False)
        found = GridSums(nodes, NODES, quiet)
        with caplog.at_level("DEBUG", logger="sfumato"):
            total = found.noisy_sum(model, (torch.arange(5),), step=0, noise_multiplier=1e-6)
        return total["weight"], nodes.forms()

    (with_it, heard), (without_it, as_heard) = summed(bad), summed(0.0)
    assert bad == "late" or heard == as_heard  # no word more
    moved = (with_it - without_it).norm()
    assert moved <= 1.0 + 1e-3 and "a row" not in caplog.text
    assert (moved > 0.9) == (bad == 1e30)  # the one that is usable and long is clipped


def test_fewer_nodes_than_the_cohort_are_refused(grid):
    for nodes in ([1, 2, 3], [1, 1, 2, 3, 4]):
        with pytest.raises(InvalidParameterError, match="cohort=4"):
            GridSums(grid({}), nodes, mechanism())


def test_the_statement_tells_what_the_server_knows():
    mechanism = SecureSum(dimension=2, clip_norm=1.0, noise_multiplier=1.0, cohort=2, least_survivors=2)
    assert "not against the server" in GridSums(None, [1, 2], mechanism).statement()
