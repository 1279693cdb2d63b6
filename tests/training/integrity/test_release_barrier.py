# SPDX-License-Identifier: Apache-2.0
import copy
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.errors import NotPrivateError, UnsupportedModelError, UnsupportedUseError
from sfumato.testing import seeded
from sfumato.training import make_private, train
from sfumato.training.engine.losses import cross_entropy
from sfumato.training.integrity import release_barrier as barriers
from sfumato.training.integrity.release_barrier import Barrier, refuse_rewriting, refuse_unsafe

from ..gradients import private_gradients
from ..leaky import LEAKY, PLAIN, Leaking, Part, X, quietly, state


def test_a_pass_that_fails_leaves_nothing_and_raises_its_own_error():
    def fails(m, x):
        m.items.append(x)
        m.mean.add_(1)
        raise KeyError("full")

    model = Part(quietly(fails))
    with pytest.raises(KeyError, match="full"), Barrier(model).guarding(thorough=True):
        model(X)
    assert not model.items and not model.mean.any()


def test_a_pass_that_fails_and_cannot_be_undone_is_refused_without_its_words():
    def fails(m, x):
        m.weight.add_(1)
        raise KeyError(f"row {x[0, 0]}")

    model = Part(quietly(fails))
    with pytest.raises(NotPrivateError, match="weight") as error, Barrier(model).guarding(thorough=False):
        model(X)
    assert error.value.__cause__ is None and error.value.__suppress_context__


# --- when ---------------------------------------------------------------------------------------------------


def test_the_first_passes_and_powers_of_two_are_thorough_and_others_are_drawn(monkeypatch):
    made = []

    class Thorough(barriers.Thorough):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(barrier._passes)

    monkeypatch.setattr(barriers, "Thorough", Thorough)
    monkeypatch.setattr(barriers.secrets, "randbelow", lambda most: 0 if barrier._passes == 20 else 1)
    barrier = Barrier(Part())
    for _ in range(40):
        with barrier.guarding():
            pass
    assert made == [1, 2, 3, 4, 8, 16, 21, 32]


def test_a_replay_takes_the_place_of_work_unless_a_thorough_look_is_due(monkeypatch):
    monkeypatch.setattr(barriers.secrets, "randbelow", lambda most: 0 if barrier._passes == 20 else 1)
    barrier = Barrier(Part())
    done = [barrier.run(lambda: "worked", replay=lambda: "replayed") for _ in range(40)]
    assert [place for place, how in enumerate(done, 1) if how == "worked"] == [1, 2, 3, 4, 8, 16, 21, 32]
    assert barrier.run(lambda: "worked", replay=lambda: None) == "worked"  # nothing was recorded
    with pytest.raises(NotPrivateError):
        barrier.run(lambda: setattr(barrier._model, "count", 5), replay=lambda: None)


def test_what_is_changed_between_passes_is_nobodys_business():
    model = Part()
    barrier = Barrier(model)
    for thorough in [True, False, False, True, False]:
        model.count += 1
        model.items.append(torch.ones(2))
        model.fresh = torch.ones(1)
        model.eval() if model.count % 2 else model.train()
        model.added = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.add_(1)
            model.mean.data.add_(1)
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        with barrier.guarding(thorough=thorough):
            model(X)


# --- known beforehand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_is_renormalized_when_it_is_read_is_refused(kind, frozen):
    model = nn.Sequential(kind(9, 3, max_norm=1.0), nn.Linear(3, 2))
    model[0].requires_grad_(not frozen)
    with pytest.raises(NotPrivateError, match=rf"0 \({kind.__name__}\) has max_norm=1: .*Set max_norm=None"):
        refuse_unsafe(model)
    refuse_unsafe(nn.Sequential(kind(9, 3)))


def test_a_power_iteration_is_refused_while_training():
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    with pytest.raises(NotPrivateError, match="power iteration"):
        refuse_rewriting(model)
    refuse_rewriting(model.eval())
    with Barrier(model).guarding(thorough=True):
        model(X)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", ["spectral_norm", "weight_norm"])
def test_the_older_functions_that_write_a_weight_at_each_pass_are_refused(norm):
    model = nn.Sequential(getattr(nn.utils, norm)(nn.Linear(3, 2)))
    for mode in (True, False):
        with pytest.raises(UnsupportedModelError, match=rf"0 \(Linear\).*parametrizations\.{norm}"):
            refuse_rewriting(model.train(mode))


def test_running_statistics_are_refused_while_training():
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        refuse_unsafe(nn.BatchNorm1d(3))
    refuse_unsafe(nn.BatchNorm1d(3).eval())


def test_not_private_is_no_unsupported_use_so_that_no_engine_falls_back():
    assert issubclass(NotPrivateError, UnsupportedModelError)
    assert not issubclass(NotPrivateError, UnsupportedUseError)


# --- caches -------------------------------------------------------------------------------------------------


class Rotary(nn.Module):
    """Tables of cosines and sines for as many positions as were seen, as language models have them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", torch.tensor([1.0, 0.1]), persistent=False)
        self.longest = 0

    def forward(self, x):
        length = x.shape[1]
        if length > self.longest:
            self.longest = length
            angles = torch.outer(torch.arange(length, dtype=torch.float32), self.inv_freq).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        return x * self.cos[:length] + x.roll(2, -1) * self.sin[:length]


class Masked(nn.Module):
    """A mask that is made at first use, of the input's type."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        length = x.shape[1]
        if self.mask is None or self.mask.shape[0] != length:
            self.mask = x.new_ones(length, length).tril()
        return torch.einsum("ts,bsd->btd", self.mask, x)


class Keyed(nn.Module):
    """Caches by public shapes, and what it did last."""

    def __init__(self):
        super().__init__()
        self.cache, self.config = {}, SimpleNamespace(shape=None, sizes=[])

    def forward(self, x):
        key = tuple(x.shape[1:])
        if key not in self.cache:
            self.cache[key] = torch.full(key, 0.5)
        self.config.shape, self.config.sizes = x.shape[1:], [1000 * n for n in key]
        self.size = 1000 * x.shape[1]
        return x * self.cache[key]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


def frozen_batch_norm():
    norm = nn.BatchNorm1d(5).eval().requires_grad_(False)
    norm.train = lambda mode=True: norm
    return norm


CLEAN = {
    "rotary": Rotary,
    "mask": Masked,
    "keyed": Keyed,
    "dropout": lambda: nn.Dropout(0.3),
    "frozen batch norm": frozen_batch_norm,
    "tied": Tied,
    "attention": Attending,
    "recurrent": Recurrent,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "layer norm": lambda: nn.LayerNorm(4),
    "copied": lambda: copy.deepcopy(nn.Sequential(Rotary(), Masked())),
    "everything": lambda: nn.Sequential(Rotary(), nn.Linear(4, 4), Masked(), nn.Dropout(0.1), Keyed()),
}
ENGINES = ["auto", "functional", "loop"]
slower = pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run", "ignore:.*Going on with")


def sums(model, x):
    return model(x).flatten(1).square().sum(1)


def private_of(model, loss=sums, *, engine="auto", **options):
    kind = "functional" if engine == "loop" else engine
    private = private_gradients(
        model, loss, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4.0, engine=kind, **options
    )
    if engine == "loop":
        private._passes._engine.vectorized = False
    return private


@slower
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CLEAN)
def test_caches_and_layers_that_keep_nothing_are_no_alarm(name, engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), CLEAN[name](), nn.Linear(4, 2))
    private = private_of(model, engine=engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = [5] * 3 if name == "frozen batch norm" else [5, 3, 5, 7, 7, 2]
    for step, length in enumerate(lengths):
        private.backward(torch.randn(2 + step, length, 4))
        optimizer.step()
    assert private.steps == len(lengths)


def test_a_cache_gives_the_same_sums_whether_it_was_filled_before_or_not():
    x, found = torch.randn(4, 5, 4, generator=torch.Generator().manual_seed(0)), []
    for filled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Rotary(), Masked())
        if filled:
            model(torch.zeros(1, 5, 4))
        private = private_of(model)
        private.accumulate(x)
        found.append(torch.cat([total.clone() for total in private._sums.flat()]))
    assert torch.equal(*found)


@slower
def test_a_cache_of_a_model_that_refuses_zeros_is_filled_with_ones():
    class Careful(Keyed):
        def forward(self, x):
            if not x.any():
                raise ValueError("a length of 0")
            return super().forward(x)

    private = private_of(nn.Sequential(Careful(), nn.Linear(4, 2)))
    private.backward(torch.randn(3, 5, 4))
    assert private.steps == 1


def test_work_runs_again_once_and_only_where_something_changed():
    model, done = nn.Sequential(Keyed()), []
    barrier = Barrier(model)

    def work():
        done.append("rows")
        return model(torch.ones(3, 5, 4))

    for _ in range(3):
        barrier.run(work, lambda: done.append("zeros") or model(torch.zeros(1, 5, 4)))
    assert done == ["rows", "zeros", "rows", "rows", "rows"]


class Counted(Keyed):
    def forward(self, x):
        self.cache[len(x)] = True
        return x


def test_a_cache_by_the_number_of_rows_is_refused():
    model = nn.Sequential(Counted())
    with pytest.raises(NotPrivateError, match=r"\['0.cache'\].*put back"):
        Barrier(model).run(lambda: model(torch.ones(5, 3, 4)), lambda: model(torch.zeros(1, 3, 4)))
    assert not model[0].cache


@pytest.mark.parametrize("options", [{}, {"microbatch_size": 2}, {"engine": "functional"}], ids=str)
def test_engines_that_show_one_row_at_a_time_do_not_tell_how_many_there_are(options):
    model = nn.Sequential(nn.Linear(4, 4), Counted())
    private_of(model, **options).backward(torch.ones(5, 3, 4))
    assert list(model[1].cache) == [1]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_are_made_by_rows_of_zeros():
    model = nn.Sequential(nn.LazyLinear(2))
    barrier = Barrier(model)
    barrier.run(lambda: model(X), lambda: model(torch.zeros(1, 3)))
    assert model[0].weight.shape == (2, 3)


# --- private gradients --------------------------------------------------------------------------------------


@slower
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", PLAIN)
def test_no_step_is_taken_with_a_model_that_keeps_something(way, engine, check):
    model = Leaking(quietly(LEAKY[way][0]))
    private = private_of(model, engine=engine, check=check)
    with pytest.raises(NotPrivateError, match="part"):
        private.backward(X)
    assert private.steps == 0 and all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(model.part.frozen.data, torch.ones(3))
    assert not model.part.mean.any() and not model.part.items
    assert not re.search(r"(?<![\w.])777(?!\d)", repr(vars(model.part)))  # as a number, not within an address


@slower
@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_begins_to_keep_something_later_is_refused_then(engine):
    private = private_of(model := Leaking(None), engine=engine)
    for _ in range(5):
        private.backward(X)
    model.part.do = quietly(LEAKY["running average"][0])
    for _ in range(2):
        with pytest.raises(NotPrivateError, match=r"'part.mean'"):
            private.backward(X)
    assert private.steps == 5 and not model.part.mean.any()


def _is_marked(x):
    """Whether it comes of a row of 50,000s."""
    return bool(x.abs().max() > 1000)


@slower
@pytest.mark.parametrize("keep", ["attribute", "new attribute", "list", "buffer"])
def test_what_is_kept_of_one_row_alone_is_put_back_before_the_next_one_runs(keep):
    seen = []

    def do(part, x):
        seen.append((len(part.items), hasattr(part, "later"), part.mean.sum().item()))
        if _is_marked(x):
            if keep == "list":
                part.items.append(x.sum().item())
            elif keep == "buffer":
                part.mean = part.mean + x.sum().item()
            else:
                setattr(part, "later" if keep == "new attribute" else "training", x.sum().item())

    private = private_of(model := Leaking(do))
    rows = X.clone()
    rows[0] = 50_000.0
    for _ in range(4):
        private.backward(rows)
    assert private.steps == 4 and set(seen) == {(0, False, 0.0)} and len(seen) > 12
    assert model.part.training is True


WRITES = {
    "buffer": lambda part, x: part.mean.add_(x.sum()),
    "frozen parameter": lambda part, x: part.frozen.add_(1),
    "trained parameter": lambda part, x: part.trained.add_(1),
    "through .data": lambda part, x: part.frozen.data.add_(x.sum()),
    "attribute": lambda part, x: part.plain.mul_(2),
    "array": lambda part, x: part.array.__iadd__(x.sum().item()),
    "bytearray": lambda part, x: part.bytes.__setitem__(0, 7),
    "resized": lambda part, x: part.mean.resize_(9),
    "gradient": lambda part, x: setattr(part.frozen, "grad", x[0].clone()),
    "hook": lambda part, x: part.register_forward_hook(lambda module, given, found: 0 * found),
    "hook on backward": lambda part, x: part.register_full_backward_hook(lambda module, given, found: given),
}


@slower
@pytest.mark.parametrize("write", WRITES)
def test_what_one_row_writes_in_place_is_undone_and_nobody_is_told(write):
    def taken(marked):
        torch.manual_seed(0)
        seen, wrote = [], []

        def do(part, x):
            seen.append((part.mean.tolist(), part.frozen.tolist(), part.plain.tolist(), part.array.tolist()))
            wrote.append(_is_marked(x))
            if wrote[-1] and marked:
                WRITES[write](part, x)

        model = Leaking(quietly(do))
        model.part.plain = torch.ones(2)
        vars(model.part)["trained"] = model.layer.bias
        private = private_of(model, generator=seeded(1))
        rows = X.clone()
        rows[0] = 50_000.0
        before = state(model)
        found = []
        for _ in range(4):
            private.backward(rows)
            found.append([p.grad.clone() for p in model.layer.parameters()])
            private.drop()
        assert private.steps == 4 and state(model) == before and any(wrote)
        return found, len(set(map(repr, seen)))

    (plain, one), (marked, same) = taken(False), taken(True)
    assert one == 1
    for step, (ours, theirs) in enumerate(zip(plain, marked, strict=True)):
        assert all(map(torch.equal, ours, theirs)), step
    assert same == 1 or write in (
        "through .data",
        "array",
        "bytearray",
        "gradient",
    )  # then one pass runs anew


@slower
@pytest.mark.parametrize("order", [(50.0, 70.0), (70.0, 50.0)])
def test_a_gradient_that_one_row_sets_is_put_back_though_another_row_changed_types(order):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            largest = float(x.max())
            if largest == 50.0:
                self.layer.weight.grad = torch.ones_like(self.layer.weight)
            if largest == 70.0:
                self.double()
            return self.layer(x)

    torch.manual_seed(0)
    private = private_of(model := Both())
    rows = torch.ones_like(X)
    rows[0], rows[1] = order
    for _ in range(2):  # at the second step there is a gradient from before
        private.backward(rows)
    assert private.steps == 2 and model.layer.weight.dtype is torch.float32


@slower
@pytest.mark.parametrize("write", ["buffer", "through .data", "frozen"])
def test_one_row_that_fails_and_one_that_writes_in_place_stop_nothing_together(write):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            largest = float(x.max())
            if largest == 70.0:
                raise ValueError
            if largest == 50.0:
                {"buffer": self.mean.add_, "through .data": self.mean.data.add_}.get(write, self.freeze)(1)
            return self.layer(x) + self.mean[:2]

        def freeze(self, number):
            self.layer.requires_grad_(False)

    torch.manual_seed(0)
    private = private_of(model := Both())
    for first, second in ((50.0, 70.0), (70.0, 50.0)):
        rows = X.clone().fill_(1.0)
        rows[0], rows[1] = first, second
        private.backward(rows)
    assert private.steps == 2 and not model.mean.any() and model.layer.weight.requires_grad


def test_a_write_of_one_row_to_what_is_not_copied_is_refused():
    torch.manual_seed(0)

    def do(part, x):
        if _is_marked(x):
            part.mean.add_(1)

    private = private_of(model := Leaking(quietly(do)))
    private._passes._barrier._keep_bytes = 0
    rows = X.clone()
    rows[0] = 50_000.0
    with pytest.raises(NotPrivateError, match=r"could not be put back in \['part.mean'\]"):
        private.backward(rows)
    assert model.part.mean.any()


@pytest.mark.parametrize("engine", ["auto", "book-keeping", "functional"])
def test_a_table_that_is_renormalized_is_refused_before_any_row_is_read(engine):
    model = nn.Sequential(nn.Embedding(9, 3, max_norm=1.0), nn.Linear(3, 2))
    with pytest.raises(NotPrivateError, match="max_norm"):
        private_of(model, engine=engine)


@slower
def test_a_table_that_is_renormalized_by_hand_is_refused_and_put_back():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(9, 3))

        def forward(self, x):
            return nn.functional.embedding(x, self.weight, max_norm=1.0)

    model = nn.Sequential(Table(), nn.Linear(3, 2))
    with pytest.raises(NotPrivateError, match=r"'0.weight'"):
        private_of(model).backward(torch.tensor([[1, 4], [4, 7]]))
    assert torch.equal(model[0].weight.data, torch.ones(9, 3))


@slower
def test_pieces_of_a_batch_are_all_watched():
    model = Leaking(None)
    private = private_of(model, microbatch_size=1)
    for _ in range(2):
        private.backward(X)
    seen = []

    def do(part, x):
        seen.append(part.mean.sum().item())
        if x[0, 0] == model.layer(X[2:])[0, 0]:
            part.mean.add_(1)

    model.part.do = quietly(do)
    private.backward(X)  # an error would tell of the row
    assert private.steps == 3 and not model.part.mean.any() and not any(seen)


# --- every door ---------------------------------------------------------------------------------------------


Y = torch.tensor([0, 1, 1])


class Keeps(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.do, self.extra = do, 0.0
        self.layer, self.table = nn.Linear(3, 2), nn.Embedding(9, 3)
        self.center = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.do(self, x.detach())
        return self.layer(x + self.center + self.table(x[:, 0].abs().long() % 9))

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def _count(m, x):
    m.seen += x.shape[0]


def _add_extra(m, x):
    m.extra = m.extra + x.sum()


KEPT = {
    "a parameter": lambda m, x: m.center.data.copy_(x.mean(0)),
    "a frozen parameter": lambda m, x: m.frozen.data.copy_(x.mean(0)),
    "a counter of rows": _count,
    "a running average": lambda m, x: m.average.lerp_(x.mean(0), 0.1),
    "extra state": _add_extra,
    "a table": lambda m, x: None,  # that is renormalized when it is read
}


def by_gradients(model):
    private_of(model, cross_entropy).backward(X, Y)


def by_train(model):
    options = {"public_size": 3, "expected_batch_size": 3, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-5}
    train(model, (X, Y), **options, progress=False)


def by_make_private(model):
    module, optimizer, criterion, loader, _ = make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        criterion=nn.CrossEntropyLoss(reduction="none"),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=3),
        public_size=3,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        criterion(module(x), y).backward()
        optimizer.step()


every_door = pytest.mark.parametrize("door", [by_gradients, by_train, by_make_private])


@every_door
def test_a_model_that_keeps_nothing_goes_through_every_door(door):
    door(Keeps(lambda m, x: None))


@slower
@every_door
@pytest.mark.parametrize("where", KEPT)
def test_nothing_of_a_row_leaves_through_any_door(where, door):
    torch.manual_seed(0)
    model = Keeps(KEPT[where])
    model.table.max_norm = 0.1 if where == "a table" else None
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NotPrivateError):
        door(model)
    after = model.state_dict()
    assert all(torch.equal(after[n], before[n]) for n in before if isinstance(before[n], torch.Tensor))
    assert model.extra == 0.0
