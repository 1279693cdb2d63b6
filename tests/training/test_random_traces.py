# SPDX-License-Identifier: Apache-2.0
"""What a model, a loss or a data set draws tells nothing: global random state does not depend on the rows."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sfumato.testing import seeded
from sfumato.training import (
    Clipping,
    DpSgd,
    NoisyStep,
    PassSettings,
    PoissonSampling,
    PrivateGradients,
    Runtime,
    Trainer,
    make_private,
)

STEPS = 5
NO_NOISE = 1e-12  # a noise multiplier that leaves the sums as they are
DRAWS = torch.Generator().manual_seed(1)
X, Y = torch.randn(60, 3, generator=DRAWS), torch.arange(60) % 2
ENGINES = ["book-keeping", "functional"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(dropout=0.5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Dropout(dropout), nn.Linear(48, 2))


class Blurred(Dataset):
    """Rows that are changed at random when they are read, from every global generator."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return self._rows

    def __getitem__(self, place):
        x = X[place] + 0.1 * torch.randn(3) + random.gauss(0, 0.1)
        return x + float(np.random.standard_normal()), Y[place]  # noqa: NPY002


def augment(rows, generator):
    x, y = rows
    return x + 0.1 * torch.randn_like(x), y


def loss(model, x, y):
    return F.cross_entropy(model(x) + 0.1 * torch.randn(2), y, reduction="none")


def states():
    """Return the states of all global generators."""
    _, keys, *rest = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), (keys.tolist(), rest), random.getstate()


def start():
    torch.manual_seed(7), np.random.seed(7), random.seed(7)  # noqa: NPY002


# --- runs ------------------------------------------------------------------------------------------------


def trainer(data, folder=None, *, rate=0.4, generator=None, steps=STEPS, watch=None, **options):
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=rate),
        noise=[(1.0, steps)],
        relation="add-remove",
    )
    settings = {"public_size": 60, "delta": 1e-5, "checkpoint_every": 1, "generator": generator}
    if watch is not None:  # called once before the run, and after each step
        settings["schedule"] = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, watch)
    return Trainer(network(), data, mechanism=mechanism, folder=folder, **settings | options)


KINDS = {
    "dropout": {},
    "pieces": {"runtime": Runtime(microbatch_size=3)},
    "loss and augment": {"loss": loss, "augment": augment, "views": 2, "runtime": Runtime(check=False)},
    "functional": {"runtime": Runtime(engine="functional")},
}


def traces(data, folder, options):
    """Return the random state after each step, at the end, and in the checkpoint."""
    seen = []
    made = trainer(data, folder, watch=lambda step: seen.append(states()) or 1.0, **options)
    start()
    made.fit()
    written = torch.load(folder / "checkpoint.pt", weights_only=True)["random"]
    return seen[-STEPS:], states(), [each["cpu"].tolist() for each in written]


@pytest.mark.parametrize("kind", [*KINDS, "data set"])
def test_runs_over_other_rows_leave_the_same_random_state_and_write_it(kind, tmp_path):
    """With secure draws each run has batches of other sizes, even over the same rows."""
    found = []
    for name, rows, rate in (("a", 60, 0.4), ("b", 59, 0.4), ("c", 0, 0.4), ("d", 60, 0.9)):
        data = Blurred(rows) if kind == "data set" else (X[:rows], Y[:rows])
        found.append(traces(data, tmp_path / name, KINDS.get(kind, {}) | {"rate": rate}))
    after, last, written = found[0]
    assert len(after) == STEPS and written == [last[0]]
    assert all(each == found[0] for each in found)


def test_a_run_with_rows_that_fail_leaves_the_random_state_as_it_was():
    def failing(model, x, y):
        if bool((y > 5).any()):
            raise RuntimeError
        return F.cross_entropy(model(x), y, reduction="none")

    made = trainer((X, torch.full((60,), 7)), loss=failing, rate=1.0, runtime=Runtime(engine="functional"))
    start()
    before = states()
    with pytest.warns(UserWarning, match="row by row"):
        made.fit()
    assert states() == before


def test_a_seeded_run_with_dropout_repeats_itself_whatever_the_state_outside():
    weights = []
    for outside in (1, 2):
        made = trainer((X, Y), generator=seeded(3))
        torch.manual_seed(outside)
        weights.append(made.fit().model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class StoppedError(Exception):
    """The run is stopped from outside."""


def test_a_resumed_run_with_dropout_equals_an_uninterrupted_one(tmp_path):
    def stop(step):
        if step == 3:
            raise StoppedError
        return 1.0

    data = Blurred(60)
    whole = trainer(data, tmp_path / "a", generator=seeded(3), watch=lambda step: 1.0).fit()
    with pytest.raises(StoppedError):
        trainer(data, tmp_path / "b", generator=seeded(3), watch=stop).fit()
    broken = trainer(data, tmp_path / "b", generator=seeded(3), watch=lambda step: 1.0).fit(resume=True)
    one, other = whole.model.state_dict(), broken.model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


# --- private gradients in a loop of one's own ------------------------------------------------------------


def private_of(model, *, generator=None, engine="auto", microbatch_size=None, noise_multiplier=NO_NOISE):
    return PrivateGradients(
        model,
        clip_norm=100.0,
        noise_multiplier=noise_multiplier,
        expected_batch_size=1.0,
        passes=PassSettings(engine=engine, microbatch_size=microbatch_size),
        generator=generator,
    )


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sizes", [(0, 0), (1, 7), (30, 2)])
def test_steps_put_the_random_state_back_whatever_the_batch(engine, sizes):
    private = private_of(network(), engine=engine, microbatch_size=4)
    start()
    before = states()
    for size in sizes:
        private.backward(X[:size], Y[:size])
        assert states() == before


def test_a_step_without_rows_cannot_be_told_from_one_with_rows():
    """Numpy drops a normal that it has in store: in each step, or this would tell which ones had rows."""
    found = []
    for size in (0, 3):
        private = private_of(network())
        start()
        np.random.standard_normal(1)  # noqa: NPY002
        private.backward(X[:size], Y[:size])
        found.append(states())
    assert found[0] == found[1]


def test_draws_of_the_loop_between_steps_go_on():
    private = private_of(network())
    start()
    drawn = [torch.rand(1).item() for _ in range(4)]
    start()
    found = []
    for size in (3, 0, 8, 5):
        found.append(torch.rand(1).item())
        private.backward(X[:size], Y[:size])
    assert found == drawn and len(set(drawn)) == 4


@pytest.mark.parametrize("make", [lambda: None, lambda: seeded(4)], ids=["secure", "seeded"])
@pytest.mark.parametrize("engine", ENGINES)
def test_masks_differ_from_step_to_step(make, engine):
    model = network()
    private = private_of(model, generator=make(), engine=engine)
    found = []
    for _ in range(4):
        torch.manual_seed(0)  # a caller who repeats their own draws does not repeat the masks
        private.backward(X[:1], Y[:1])
        found.append(gradient(model).clone())
    assert all(not torch.allclose(a, b, atol=1e-6) for i, a in enumerate(found) for b in found[:i])


def test_without_dropout_the_same_step_has_the_same_gradient():
    model = network(dropout=0.0)
    private = private_of(model)
    found = []
    for _ in range(2):
        private.backward(X[:1], Y[:1])
        found.append(gradient(model).clone())
    assert torch.allclose(*found, atol=1e-6)


def test_masks_differ_between_the_parts_of_a_step():
    model, totals = network(), []
    for parts in (1, 2):
        private = private_of(model, generator=seeded(4))
        for _ in range(parts):
            private.accumulate(X[:1], Y[:1])
        private.finish()
        totals.append(gradient(model).clone())
    assert not torch.allclose(2 * totals[0], totals[1], atol=1e-6)


def test_a_loop_that_goes_on_from_a_state_has_the_same_masks():
    model = network()
    private = private_of(model, generator=seeded(4))
    for _ in range(3):
        private.backward(X[:4], Y[:4])
    wanted, state = gradient(model).clone(), private.state_dict()
    again = private_of(model, generator=seeded(4))
    again.load_state_dict(state | {"history": [(NO_NOISE, 2)]})
    again.backward(X[:4], Y[:4])
    assert torch.equal(gradient(model), wanted)


# --- a loop that was made private ------------------------------------------------------------------------


def looped(rows, *, batches_per_step=1, read=None):
    """Take steps in a loop of Opacus' kind; return the states after each step, and what the loop drew."""
    model = network()
    parts = make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(reduction="none"),
        data_loader=DataLoader(Blurred(rows), batch_size=15),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        public_size=60,
    )
    start()
    seen, drawn = [], []
    for x, y in parts.data_loader:
        drawn.append(torch.rand(1).item())
        parts.optimizer.zero_grad()
        parts.criterion(parts.module(x), y).backward()
        parts.optimizer.step()
        seen.append(states())
    return seen, drawn


def test_a_loop_that_was_made_private_leaves_the_same_random_state_over_other_rows():
    found = [looped(rows) for rows in (60, 60, 59, 1)]
    assert all(each == found[0] for each in found)
    seen, drawn = found[0]
    assert len(seen) == len(set(drawn)) == 4  # the loop's own draws go on


def test_masks_of_a_private_loop_differ_from_step_to_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 2))
    parts = make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        criterion=nn.CrossEntropyLoss(reduction="none"),
        data_loader=DataLoader(torch.utils.data.TensorDataset(torch.ones(1, 40), Y[:1]), batch_size=1),
        noise_multiplier=NO_NOISE,
        max_grad_norm=100.0,
        public_size=1,
        generator=seeded(1),
    )
    found = []
    for _ in range(3):
        for x, y in parts.data_loader:
            parts.criterion(parts.module(x), y).backward()
            parts.optimizer.step()
            found.append((gradient(model).abs() > 1e-6).tolist())
    assert len({str(each) for each in found}) == 3
