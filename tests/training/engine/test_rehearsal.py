# SPDX-License-Identifier: Apache-2.0
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.testing import seeded
from sfumato.training import PassSettings, PrivateGradients, train
from sfumato.training.engine.recording.faster_passes import FasterPasses
from sfumato.training.engine.rehearsal import Rehearsed, rehearse_any, synthetic

X = torch.full((5, 3), 7.0)


def test_synthetic_rows_hold_nothing_of_a_batch_but_its_shape():
    batch = {"x": X, "ids": torch.full((5, 2), 9), "mask": torch.ones(5, 4, dtype=torch.bool), "none": None}
    other = {**batch, "x": X * math.nan, "ids": torch.full((5, 2), -1)}
    empty = {name: part if part is None else part[:0] for name, part in batch.items()}
    for one, two, three in zip(*map(synthetic, (batch, other, empty)), strict=True):
        for name in ("x", "ids", "mask"):
            assert torch.equal(one[name], two[name]) and torch.equal(one[name], three[name])
            assert one[name].dtype == batch[name].dtype and one[name].shape == (3, *batch[name].shape[1:])
        assert bool(((one["ids"] == 0) | (one["ids"] == 1)).all()) and one["none"] is None


def test_the_first_synthetic_rows_differ_from_each_other():
    first = next(synthetic((X, torch.zeros(5, 6, dtype=torch.int64))))
    assert all(len(set(map(tuple, part.tolist()))) == 3 for part in first)


def test_rows_of_other_kinds_are_tried_until_one_works():
    tried = []

    def run(made):
        tried.append(made)
        if made < 2:
            raise ValueError(made)

    rehearse_any(range(5), run, done=lambda: True)
    assert tried == [0, 1, 2]


def test_if_no_kind_of_rows_works_the_first_error_is_raised_and_if_none_is_finite_the_model_is_refused():
    with pytest.raises(ZeroDivisionError):
        rehearse_any([0, 0], lambda made: 1 / made, done=lambda: True)
    with pytest.raises(UnsupportedModelError, match="not finite, whatever the row is"):
        rehearse_any([1, 0], lambda made: 1 / made, done=lambda: False)


def test_each_shape_type_nesting_and_mode_is_rehearsed_on_its_own():
    model = nn.Linear(3, 2)
    done = Rehearsed(model)
    done.add((None, X))
    assert (None, X) in done and (None, X[:0]) in done and (torch.ones(5), X * math.nan) in done
    for other in (X[:, :2], X.double(), {"x": X}, [X]):
        assert (None, other) not in done
    model.eval()
    assert (None, X) not in done


def test_an_example_has_as_many_rows_as_asked_and_weights_of_one():
    done = Rehearsed(nn.Linear(3, 2))
    done.add((None, X[:2]))
    weights, x = done.example((torch.zeros(4), X), 4)
    assert weights.tolist() == [1, 1, 1, 1] and x.shape == (4, 3) and done.example((None, X))[0] is None


# --- no row decides anything ------------------------------------------------------------------------------


class Words(nn.Module):
    """Takes token numbers and numbers; a token beyond the table is an error of torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer, self.last = nn.Embedding(10, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x, words):
        return self.last(torch.tanh(self.layer(x) + self.table(words).mean(1)))


def failing_loss(model, x, words, y):
    return F.cross_entropy(model(x, words), y, reduction="none")  # an error for a label that is no class


def clean(count):
    draws = torch.Generator().manual_seed(count)
    words, labels = (
        torch.randint(0, most, size, generator=draws) for most, size in ((10, (count, 4)), (2, (count,)))
    )
    return torch.randn(count, 3, generator=draws), words, labels


POISON = {
    "clean": lambda x, words, y: None,
    "NaN": lambda x, words, y: x.fill_(math.nan),
    "infinite": lambda x, words, y: x.fill_(math.inf),
    "huge": lambda x, words, y: x.fill_(3e38),
    "label out of range": lambda x, words, y: y.fill_(7),
    "label below zero": lambda x, words, y: y.fill_(-3),
    "token out of range": lambda x, words, y: words.fill_(10_000),
    "token below zero": lambda x, words, y: words.fill_(-2),
}  # fmt: skip


def outcome(poison, *, where, count=4, **passes):
    """What can be seen of a run with poisoned rows: engine, steps, warnings, and whether noise was added."""
    batches = [clean(4), clean(0), clean(4)]
    batches[where] = clean(count)
    hit = slice(0, 1) if poison.startswith("one ") else slice(None)
    POISON[poison.removeprefix("one ")](*(part[hit] for part in batches[where]))
    private = PrivateGradients(
        model := Words(), failing_loss, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4.0,
        passes=PassSettings(**passes), generator=seeded(0),
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for batch in batches:
            private.backward(*batch)
            assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    return private.engine, private.steps, private.microbatch_size, [str(w.message) for w in told]


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_no_row_decides_whether_a_run_fails_or_which_way_it_takes(engine, where):
    wanted = outcome("clean", where=where, engine=engine)
    assert wanted[1] == 3 and outcome("clean", where=where, count=0, engine=engine) == wanted
    for poison in POISON:
        for kind in (poison, f"one {poison}"):
            assert outcome(kind, where=where, engine=engine) == wanted, kind


@pytest.mark.parametrize("poison", ["NaN", "huge", "label out of range", "token out of range"])
def test_no_row_decides_whether_a_pass_is_recorded(poison, monkeypatch):
    seen = []

    class AsItIs:
        def takes(self, batch):
            return True

        def record(self, run, batch):
            seen.append([part.clone() for part in batch[1:]])
            return lambda other: run(other)

    monkeypatch.setattr(FasterPasses, "asked_for", lambda self, settings: AsItIs())
    assert outcome(poison, where=0) == outcome("clean", where=0)
    half = len(seen) // 2
    for one, other in zip(seen[:half], seen[half:], strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38, None])
def test_a_whole_run_over_rows_that_are_no_rows_at_all_finishes(poison):
    x, y = torch.randn(30, 3), torch.randint(0, 2, (30,))
    x, y = (x, torch.full((30,), 99)) if poison is None else (torch.full((30, 3), poison), y)
    options = {"noise_multiplier": 1.0, "clip_norm": 1.0, "delta": 1e-3, "expected_batch_size": 2.0}
    model = train(nn.Linear(3, 2), (x, y), steps=6, public_size=30, generator=seeded(0), **options).model
    assert all(bool(p.isfinite().all()) for p in model.parameters())


class Wrong(nn.Module):
    """Divides by a deviation over the batch: no row has a gradient alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) / x.std(0).sum()


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("value", [1.0, math.nan])
def test_a_model_that_is_refused_is_refused_at_the_first_batch_also_at_an_empty_one(count, value):
    private = PrivateGradients(Wrong(), clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4.0)
    with pytest.raises(UnsupportedModelError, match="deviation over the batch"):
        private.backward(torch.full((count, 3), value), torch.zeros(count, dtype=torch.int64))


class Choosy(nn.Module):
    """Takes rows that begin with 5 only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if not bool((x[:, 0] == 5).all()):
            raise LookupError("not such a row")
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:.*functional engine")
def test_a_model_that_takes_no_synthetic_row_is_rehearsed_with_rows_of_the_callers():
    options = {"clip_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 4.0}
    batch = torch.full((4, 3), 5.0), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(LookupError, match="not such a row"):
        PrivateGradients(Choosy(), **options).backward(*batch)
    private = PrivateGradients(Choosy(), **options)
    assert private.rehearse(torch.full((2, 3), 5.0), torch.ones(2, dtype=torch.int64))
    private.backward(*batch)
    assert private.steps == 1 and private.engine == "Functional"
