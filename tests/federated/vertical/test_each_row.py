# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from sfumato.federated.vertical import each_row as module
from sfumato.federated.vertical.each_row import each_row


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


class Strict(nn.Module):
    """A network that fails on a row whose first number is no index, and rounds elsewhere."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, 33)
        self.layers = nn.Sequential(nn.Linear(36, 65), nn.Tanh(), nn.Linear(65, 7), nn.GELU())

    def forward(self, row):
        return self.layers(torch.cat([self.table(row[0].long()), row[1:]]))


def rows(count=300):
    found = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    found[:, 0] = torch.arange(count) % 10
    return found


@pytest.mark.parametrize("place", [0, 5, 127, 128, 299])
@pytest.mark.parametrize(
    "bad", [[99.0, 0.0, 0.0, 0.0], [3.0, math.nan, math.inf, 1e38], [-5.0, 1.0, 1.0, 1.0]]
)
def test_no_row_changes_a_bit_of_another(place, bad):
    network, held = Strict(), rows()
    changed = held.clone()
    changed[place] = torch.tensor(bad)
    others = torch.arange(len(held)) != place
    with torch.no_grad():
        before, _ = each_row(network, held, blank=torch.zeros(7))
        after, usable = each_row(network, changed, blank=torch.zeros(7))
    assert torch.equal(before[others], after[others]) and usable[others].all()
    assert bool(usable[place]) == (0 <= bad[0] < 10)


def test_a_row_alone_in_another_shape_would_have_other_bits():
    """The control: what a loop over rows computes differs in last bits."""
    network, held = Strict(), rows()
    with torch.no_grad():
        together, _ = each_row(network, held, blank=torch.zeros(7))
        loop = torch.stack([network(row) for row in held])
    assert torch.allclose(together, loop, atol=1e-5) and not torch.equal(together, loop)


@pytest.mark.parametrize("ends", [SystemExit, Panic])
def test_a_row_that_ends_the_program_stops_no_other(ends):
    def network(row):
        if float(row[0]) == 7:
            raise ends
        return row

    held = rows(12)
    _, usable = each_row(network, held, blank=torch.zeros(4))
    assert usable.tolist() == [number % 10 != 7 for number in range(12)]


def test_many_rows_that_fail_stop_no_other():
    network, held = Strict(), rows(200)
    wanted, _ = each_row(network, held, blank=torch.zeros(7))
    held[::3, 0] = 50.0
    found, usable = each_row(network, held, blank=torch.zeros(7))
    kept = torch.arange(200) % 3 != 0
    assert torch.equal(usable, kept)
    assert torch.equal(found[kept], wanted[kept]) and not found[~kept].any()


def test_what_vmap_cannot_run_is_computed_one_row_after_another(monkeypatch):
    def by_value(row):
        return row.abs() if row.sum().item() > 0 else row

    found, usable = each_row(by_value, torch.tensor([[-3.0, 5.0], [-3.0, 1.0]]), blank=torch.zeros(2))
    assert found.tolist() == [[3.0, 5.0], [-3.0, 1.0]] and usable.all()


def test_a_row_that_fails_costs_a_few_computations(monkeypatch):
    calls = []
    tried = module._tried
    monkeypatch.setattr(module, "_tried", lambda *given: calls.append(1) or tried(*given))
    held = rows(256)
    held[17, 0] = 99.0
    each_row(Strict(), held, blank=torch.zeros(7))
    assert len(calls) == 1 + 15 + 1  # zeros, the piece of the row, the other piece


def test_no_rows_have_no_results():
    found, usable = each_row(lambda row: row, torch.zeros(0, 3), blank=torch.zeros(2))
    assert found.shape == (0, 2) and usable.shape == (0,)
