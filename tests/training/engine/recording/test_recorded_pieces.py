# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from sfumato.training import Clipping
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.losses import weighted
from sfumato.training.engine.recording import recorded_pieces
from sfumato.training.engine.recording.recorded_pieces import RecordedPieces, real_units, recorder
from sfumato.training.fast.compilation import Compiling
from sfumato.training.fast.cuda_graphs import CudaGraphs
from sfumato.training.fast.sizes import Sizes
from sfumato.training.privacy.clipping import Clipper


class AsItIs:
    """A recorder that keeps a pass as it is, in a form that is not the model's own code."""

    def takes(self, batch):
        return len(batch[1]) > 1

    def record(self, run, batch):
        return lambda other: run(other)


def zeros(count):
    return (None, torch.zeros(count, 2))


def pieces_of(clipping):
    model = nn.Linear(2, 1, bias=False)
    clipper = Clipper(clipping, dict(model.named_parameters()))
    pieces = RecordedPieces(clipper)
    engine = BookKeeping(model, weighted(lambda model, x: model(x).sum(1)))
    pieces.record(AsItIs(), engine, model, sizes=Sizes())
    return pieces


def test_a_replay_gives_the_clipped_sums_and_is_kept_until_the_step_ends():
    pieces = pieces_of(Clipping(clip_norm=1.0))
    x = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    assert pieces.replay((None, x), 1) is None
    sums = pieces.replay((None, x), 1, record=zeros)
    assert torch.allclose(sums.sums["weight"], torch.tensor([[0.6, 1.3]]))
    pieces.keep((None, x), 1)
    assert pieces.finite and pieces.first[1] is x
    assert pieces.replay((None, x), 1) is not None  # it is recorded now
    assert len(pieces.take_all()) == 1 and pieces.take_all() == []


def test_rows_that_were_tried_twice_are_one_piece():
    """A pass is repeated where recording it changed the model: run again, its rows must count once."""
    pieces = pieces_of(Clipping(clip_norm=1.0))
    x = torch.tensor([[1.0, 1.0], [torch.inf, 0.0]])
    for _ in range(2):
        pieces.replay((None, x), 1, record=zeros)
    pieces.keep((None, x), 1)
    assert not pieces.finite and len(pieces.take_all()) == 1


def test_rows_after_the_engine_changed_are_pieces_too():
    pieces = pieces_of(Clipping(clip_norm=1.0))
    pieces.keep((None, torch.ones(2, 2)), 1)
    pieces.stop()
    pieces.keep((None, torch.ones(3, 2)), 1)
    assert [len(piece.batch[1]) for piece in pieces.take_all()] == [2, 3]


def test_sums_that_are_not_finite_are_found_when_the_step_ends():
    pieces = pieces_of(Clipping(clip_norm=1.0))
    for x in (torch.ones(2, 2), torch.tensor([[1.0, 1.0], [torch.inf, 0.0]])):
        pieces.replay((None, x), 1, record=zeros)
        pieces.keep((None, x), 1)
    assert not pieces.finite


def test_rows_that_cannot_be_recorded_are_kept_to_be_run_again():
    pieces = pieces_of(Clipping(clip_norm=1.0))
    assert pieces.replay((None, torch.ones(1, 2)), 1, record=zeros) is None
    pieces.keep((None, torch.ones(1, 2)), 1)
    assert pieces.finite and len(pieces.take_all()) == 1


def test_several_ranks_look_at_each_replay_at_once(monkeypatch):
    pieces = pieces_of(Clipping(clip_norm=1.0))
    monkeypatch.setattr(recorded_pieces.distributed, "size", lambda: 2)
    assert pieces.replay((None, torch.ones(2, 2)), 1, record=zeros) is not None
    assert pieces.replay((None, torch.full((2, 2), torch.inf)), 1, record=zeros) is None


def test_nothing_is_replayed_after_the_engine_changed():
    pieces = pieces_of(Clipping(clip_norm=1.0))
    pieces.stop()
    assert pieces.replay((None, torch.ones(2, 2)), 1, record=zeros) is None


def test_the_settings_decide_what_records():
    assert isinstance(recorder(cuda_graphs=False, compile=True), Compiling)
    assert isinstance(recorder(cuda_graphs=True, compile=False), CudaGraphs)


def test_a_unit_is_padding_if_all_its_rows_weigh_nothing():
    x = torch.zeros(4, 2)
    assert real_units((None, x), 2).tolist() == [True, True]
    assert real_units((torch.tensor([0.0, 1.0, 0.0, 0.0]), x), 2).tolist() == [True, False]
