# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.fast.pass_cache import Recordings, Replay
from sfumato.training.fast.sizes import Sizes, sizes_for
from sfumato.training.privacy.clipping import AdaptiveClip, ClippedSums, Clipper, Clipping, CoordinateClipping

from ..gradients import private_gradients

CLIPPING = Clipping(clip_norm=0.5, adaptive=AdaptiveClip(count_noise_multiplier=1.0))


def squares(model, x):
    return model(x).square().sum(1)


def weighted_squares(model, weights, x):
    return squares(model, x) * (1 if weights is None else weights)


class AsItIs:
    """Records nothing: a replay is the pass itself."""

    def __init__(self, takes=lambda batch: True):
        self.takes, self.shapes = takes, []

    def record(self, run, batch):
        self.shapes.append(batch[1].shape[0])
        return run


def recordings_of(model):
    parameters = dict(model.named_parameters())
    return Recordings(BookKeeping(model, weighted_squares), Clipper(CLIPPING, parameters), model, AsItIs())


X, Y = torch.zeros(4, 3), torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((None, X), 1), ((None, X), 2)),
        (((None, X), 1), ((None, X[:2]), 1)),
        (((None, X), 1), ((None, X.double()), 1)),
        (((None, X), 1), ((X, None), 1)),
        (((None, X), 1), ((X[:, 0], X), 1)),
        # Tensors are copied in order: the same shapes under other names are another batch.
        (((None, {"a": X, "b": X}), 1), ((None, {"b": X, "a": X}), 1)),
        (((None, [X], X), 1), ((None, [X, X]), 1)),
    ],
    ids=["units", "rows", "type", "weights", "no weights", "names", "nesting"],
)
def test_batches_that_need_a_recording_of_their_own_have_a_key_of_their_own(one, other):
    recordings = recordings_of(nn.Linear(3, 2))
    assert recordings._key(*one) == recordings._key(*one)
    assert recordings._key(*one) != recordings._key(*other)


def test_a_key_does_not_depend_on_values():
    recordings = recordings_of(nn.Linear(3, 2))
    assert recordings._key((None, X), 1) == recordings._key((None, X + 1), 1)


def test_autocast_has_a_key_of_its_own():
    recordings = recordings_of(nn.Linear(3, 2))
    plain = recordings._key((None, X), 1)
    with torch.autocast("cpu", torch.bfloat16):
        cast = recordings._key((None, X), 1)
    assert plain != cast


def test_parameters_that_moved_in_memory_are_noticed():
    model = nn.Linear(3, 2)
    recordings = recordings_of(model)
    before = recordings._pointers()
    with torch.no_grad():
        model.weight.add_(1)
    assert recordings._pointers() == before
    model.weight.data = model.weight.data.clone()
    assert recordings._pointers() != before


@pytest.mark.parametrize(("total", "finite"), [(3.0, True), (math.inf, False), (math.nan, False)])
def test_a_replay_tells_whether_all_norms_are_finite(total, finite):
    assert Replay(sums=ClippedSums({}), total=torch.tensor(total)).finite() == finite


class Counting:
    def __init__(self):
        self.generator = seeded(0)
        self.added = 0

    def add_(self, sums, *, stddev, step):
        self.added += 1
        for total in sums:
            total.add_(1000.0)


def private_of(model, *, recorded, **options):
    options = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 1.0,
        "noise": Counting(),
        "check": False,
        **options,
    }
    private = private_gradients(model, squares, clipping=CLIPPING, **options)
    if recorded:
        private._passes.record(AsItIs(), Sizes())
    return private


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.0])])
def test_sums_that_were_not_finite_are_thrown_away_with_their_noise_and_computed_anew(
    bad, microbatch_size, weights
):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(6, 3)
    if bad is not None:
        x[1, 1] = bad
    found = []
    for recorded in (True, False):
        private = private_of(model, recorded=recorded, microbatch_size=microbatch_size)
        private.accumulate(x, row_weights=weights)
        below = []
        adapt = private._clipper.adapt
        private._clipper.adapt = lambda count, below=below, adapt=adapt, **options: (
            below.append(float(count)) or adapt(count, **options)
        )
        private.finish()
        found.append((model.weight.grad.clone(), below, private.bound, private.steps))
        assert len(private._passes._replays) == 0
    assert torch.allclose(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]
    assert 500 < float(found[0][0].mean()) < 1500  # noise was added once to what is released


def test_without_a_gpu_batches_are_run_as_ever_with_a_warning():
    model = nn.Linear(3, 2)
    with pytest.warns(UserWarning, match="cuda_graphs=True has no effect"):
        private = private_gradients(
            model, squares, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4, cuda_graphs=True
        )
    private.backward(torch.randn(4, 3))
    assert model.weight.grad.isfinite().all() and len(private._passes._replays) == 0


def test_a_pass_is_recorded_anew_when_dropout_is_switched():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    made = recordings_of(model)
    batch = (None, torch.zeros(4, 3))
    training = made._key(batch, 1)
    model[1].eval()
    assert made._key(batch, 1) != training


def test_a_piece_that_was_not_recorded_is_not_lost_when_another_is_computed_anew():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(6, 3)
    x[5, 0] = math.nan
    found = []
    for recorded in (True, False):
        private = private_of(model, recorded=recorded, microbatch_size=2)
        if recorded:
            taken = iter([False, True, True])
            taking = AsItIs(lambda batch, taken=taken: next(taken))
            private._passes.record(taking, Sizes())
        private.backward(x)
        found.append(model.weight.grad.clone())
    assert torch.allclose(*found)


@pytest.mark.parametrize("adaptive", [True, False])
def test_batches_are_padded_to_a_few_sizes_and_padding_adds_nothing(adaptive):
    torch.manual_seed(0)
    model, recorder = nn.Linear(3, 2), AsItIs()
    clipping = CLIPPING if adaptive else Clipping(clip_norm=0.5)
    private = PrivateGradients(
        model, squares, clipping=clipping, noise_multiplier=1.0, expected_batch_size=24, noise=Counting()
    )
    again = PrivateGradients(
        model, squares, clipping=clipping, noise_multiplier=1.0, expected_batch_size=24, noise=Counting()
    )
    private._passes.record(recorder, sizes_for(24, microbatch_size=None))
    for rows in (24, 22, 23, 25, 24, 21):
        x = torch.randn(rows, 3)
        found = []
        for each in (private, again):
            each.backward(x)
            found.append((model.weight.grad.clone(), each.bound))
        torch.testing.assert_close(found[0][0], found[1][0])
        assert found[0][1] == pytest.approx(found[1][1])
    assert recorder.shapes == [24, 24, 29]  # the first without weights, which padding needs


def zeros(count):
    return (None, torch.zeros(count, 3))


def test_recordings_used_longest_ago_are_dropped_first():
    model, recorder = nn.Linear(3, 2), AsItIs()
    recordings = Recordings(
        BookKeeping(model, weighted_squares),
        Clipper(CLIPPING, dict(model.named_parameters())),
        model,
        recorder,
    )
    for rows in (1, 2, 3, 4, 5, 6, 1, 7, 1, 2):
        recordings.replay((None, torch.randn(rows, 3)), 1, record=zeros)
    assert recorder.shapes == [1, 2, 3, 4, 5, 6, 7, 2]


@pytest.mark.parametrize("option", ["compile", "cuda_graphs"])
def test_clipping_by_coordinate_is_not_recorded(option):
    with pytest.raises(ValueError, match="Leave cuda_graphs and compile out"):
        private_gradients(
            nn.Linear(3, 2),
            clipping=CoordinateClipping(coordinate_bound=1.0),
            noise_multiplier=1.0,
            expected_batch_size=4,
            **{option: True},
        )


class Failing:
    def __init__(self, error):
        self.error, self.asked = error, 0

    def takes(self, batch):
        return True

    def record(self, run, batch):
        self.asked += 1
        raise self.error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MemoryError(), RuntimeError("secret")])
def test_a_recording_that_nobody_asked_for_and_that_fails_is_left_out_without_a_word(error):
    model, recorder = nn.Linear(3, 2), Failing(error)
    engine, clipper = BookKeeping(model, weighted_squares), Clipper(CLIPPING, dict(model.named_parameters()))
    recordings = Recordings(engine, clipper, model, recorder, if_possible=True)
    for _ in range(3):
        assert recordings.replay((None, torch.randn(4, 3)), 1, record=zeros) is None
    assert recorder.asked == 1
    with pytest.raises(type(error)):
        Recordings(engine, clipper, model, recorder).replay((None, torch.randn(4, 3)), 1, record=zeros)


def test_shapes_that_go_on_changing_are_recorded_a_bounded_number_of_times():
    model, recorder = nn.Linear(3, 2), AsItIs()
    engine, clipper = BookKeeping(model, weighted_squares), Clipper(CLIPPING, dict(model.named_parameters()))
    recordings = Recordings(engine, clipper, model, recorder)
    found = [recordings.replay((None, torch.randn(n, 3)), 1, record=zeros) for n in range(1, 100)]
    assert len(recorder.shapes) == 64 and found[63] is not None and found[64:] == [None] * 35


def test_a_pass_that_could_not_be_recorded_is_never_replayed_unwatched():
    class Nothing:
        def takes(self, batch):
            return True

        def record(self, run, batch):
            return run

    model = nn.Linear(3, 2)
    clipper = Clipper(CLIPPING, dict(model.named_parameters()))
    recordings = Recordings(BookKeeping(model, weighted_squares), clipper, model, Nothing())
    batch = (None, torch.randn(4, 3))
    assert recordings.replay(batch, 1) is None
    assert recordings.replay(batch, 1, record=zeros) is not None
    assert recordings.replay(batch, 1) is None  # it is the model's own code
