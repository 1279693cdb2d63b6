# SPDX-License-Identifier: Apache-2.0
import gc
import weakref

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training import PrivateGradients, cross_entropy
from sfumato.training.data import rows
from sfumato.training.engine import microbatches
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.microbatches import halved, rows_that_fit

DATA = torch.randn(30, 4), torch.randint(0, 3, (30,))


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


def test_a_wider_network_fits_fewer_rows(monkeypatch):
    monkeypatch.setattr(microbatches, "_free_bytes", lambda device: 1 << 20)
    narrow, wide = (rows_that_fit(network(width), cross_entropy, DATA) for width in (16, 1024))
    assert 1 <= wide < narrow
    # One row keeps its hidden layer (4 bytes a number) at least, and no more than a few copies of it.
    assert (1 << 20) / (4 * 1024 * 16) <= wide <= (1 << 20) / (4 * 1024)


def test_one_row_always_fits(monkeypatch):
    monkeypatch.setattr(microbatches, "_free_bytes", lambda device: 0)
    assert rows_that_fit(network(8), cross_entropy, DATA) == 1


def test_what_an_engine_keeps_besides_counts(monkeypatch):
    monkeypatch.setattr(microbatches, "_free_bytes", lambda device: 1 << 20)
    assert rows_that_fit(network(8), cross_entropy, DATA, more=1 << 18) == 1


def test_free_memory_is_known_here():
    assert microbatches._free_bytes(torch.device("cpu")) > 1 << 20


def test_a_batch_that_does_not_fit_runs_in_pieces_and_gives_the_same_sum(monkeypatch):
    model, seen = network(8).double(), []
    batch = DATA[0].double(), DATA[1]

    run = BookKeeping.run

    def watched(self, batch, **options):
        seen.append(rows.count(batch))
        return run(self, batch, **options)

    monkeypatch.setattr(BookKeeping, "run", watched)
    settings = {"clip_norm": 1.0, "noise_multiplier": 1e-9, "expected_batch_size": 30}
    PrivateGradients(model, cross_entropy, **settings).backward(*batch)
    assert max(seen) == 30
    whole = [p.grad.clone() for p in model.parameters()]
    monkeypatch.setattr(microbatches, "_free_bytes", lambda device: 12 << 10)
    seen.clear()
    private = PrivateGradients(model, cross_entropy, **settings)
    private.backward(*batch)
    assert max(seen) < 30 and private.microbatch_size is None
    for got, wanted in zip((p.grad for p in model.parameters()), whole, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-7)


def test_what_was_measured_is_freed():
    outputs = []
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2))  # a sigmoid keeps its own output
    model[1].register_forward_hook(lambda module, args, output: outputs.append(weakref.ref(output)))
    rows_that_fit(model, lambda model, x: model(x).sum(1), (torch.randn(4, 3),))
    gc.collect()
    assert len(outputs) == 2 and all(output() is None for output in outputs)


@pytest.mark.parametrize(("size", "fewer"), [(2, 1), (3, 2), (64, 32), (65, 64), (100, 64)])
def test_the_size_after_a_failure_is_a_power_of_two(size, fewer):
    with pytest.warns(UserWarning, match=f"microbatch_size={fewer}"):
        assert halved(size, MemoryError()) == fewer


def test_one_unit_that_does_not_fit_is_an_error():
    with pytest.raises(InvalidParameterError, match="alone do not fit"):
        halved(1, MemoryError())
