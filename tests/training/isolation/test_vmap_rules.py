# SPDX-License-Identifier: Apache-2.0
"""Whether a row can reach another one by torch's own vmap rules, which `isolated_rows` trusts.

Each operator gets rows one of which is hostile: indices out of range, values that are not finite. No other
row may move, and the hostile one may not depend on the others. An operator that raises is no leak: the rows
are run one by one then.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedUseError
from sfumato.testing import seeded
from sfumato.training import PassSettings, PrivateGradients
from sfumato.training.isolation import isolated_rows
from sfumato.training.isolation.isolated_rows import Isolated

ROWS, SIZE = 4, 4
aten = torch.ops.aten

BY_INDEX = {  # of a table [4, 4] and of indices [4], both of each row's own
    "index": lambda t, i: t[i],
    "index_select": lambda t, i: t.index_select(0, i),
    "index_put": lambda t, i: t.index_put((i,), t),
    "index_put, added": lambda t, i: t.index_put((i,), t, accumulate=True),
    "index_add": lambda t, i: t.index_add(0, i, t),
    "index_copy": lambda t, i: t.index_copy(0, i, t),
    "index_reduce": lambda t, i: t.index_reduce(0, i, t, "prod"),
    "index_fill": lambda t, i: t.index_fill(0, i, 9.0),
    "index_fill, in place": lambda t, i: t.clone().index_fill_(0, i, 9.0),
    "aten.index_fill": lambda t, i: aten.index_fill(t, 0, i, 9.0),
    "aten.index_fill.int_Scalar": lambda t, i: aten.index_fill.int_Scalar(t, 0, i, 9.0),
    "take": lambda t, i: t.take(i),
    "take_along_dim": lambda t, i: t.take_along_dim(i[:, None], 0),
    "put": lambda t, i: t.put(i, t[0]),
    "gather": lambda t, i: t.gather(0, i[:, None]),
    "scatter": lambda t, i: t.scatter(0, i[:, None], t),
    "scatter_add": lambda t, i: t.scatter_add(0, i[:, None], t),
    "scatter_reduce": lambda t, i: t.scatter_reduce(0, i[:, None], t, "amax"),
    "embedding": lambda t, i: F.embedding(i, t),
    "torch.embedding": torch.embedding,
    "aten.embedding": lambda t, i: aten.embedding(t, i),
    "aten.embedding.default": lambda t, i: aten.embedding.default(t, i),
    "embedding of a shared table": lambda t, i: F.embedding(i, torch.arange(16.0).reshape(4, 4)) + t,
    "embedding_bag": lambda t, i: F.embedding_bag(i[None], t, mode="sum"),
    "one_hot": lambda t, i: F.one_hot(i, SIZE) + t,
    "nll_loss": lambda t, i: F.nll_loss(t, i, reduction="none"),
    "cross_entropy": lambda t, i: F.cross_entropy(t, i, reduction="none"),
    "multi_margin_loss": lambda t, i: F.multi_margin_loss(t, i, reduction="none"),
    "searchsorted": lambda t, i: torch.searchsorted(t.sort(1).values, t, sorter=i.expand(4, 4)),
    "lu_unpack": lambda t, i: torch.lu_unpack(t, i.int())[2],
    "lu_solve": lambda t, i: torch.linalg.lu_solve(t, i.int(), t),
    "ldl_solve": lambda t, i: torch.linalg.ldl_solve(t, i.int(), t),
    "ctc_loss": lambda t, i: F.ctc_loss(
        t[:, None].log_softmax(-1), i[None], i[:1].clamp(1, 4), i[1:2], reduction="none"
    ),
    "max_unpool1d": lambda t, i: F.max_unpool1d(t, i.expand(4, 4), 1),
    "as_strided": lambda t, i: t.as_strided((4, 4), (4, 1), 1),
    "as_strided, in place": lambda t, i: t.clone().as_strided_((4,), (1,), 14),
    "aten.as_strided_": lambda t, i: aten.as_strided_(t.clone(), (4,), (1,), 14),
    "resize": lambda t, i: t.clone().resize_(8, 4),
    "roll by a shared number": lambda t, i: t.roll(1, 0),
    "grid_sample": lambda t, i: F.grid_sample(t[None, None], (i.float() * 1e3).expand(1, 2, 2, 4)[..., :2]),
    "cholesky": lambda t, i: torch.linalg.cholesky(t @ t.mT + 5 * torch.eye(4)),
    "solve": lambda t, i: torch.linalg.solve(t + 9 * torch.eye(4), t),
    "sort": lambda t, i: t.sort(0).values,
    "cumsum": lambda t, i: t.cumsum(0),
    "layer_norm": lambda t, i: F.layer_norm(t, (4,)),
    "softmax": lambda t, i: t.softmax(0),
    "conv1d": lambda t, i: F.conv1d(t[None], t[:, :, None]),
    "attention": lambda t, i: F.scaled_dot_product_attention(t[None], t[None], t[None]),
    "bmm": lambda t, i: t[None].bmm(t[None]),
}  # fmt: skip
HOSTILE = [(i, x) for i in (-1, -5, SIZE, 2 * SIZE + 1, 10**6) for x in (1.0, math.nan)] + [(0, 1e30)]


def found(do, table, indices):
    """What an operator gives for each row; None if it raises."""
    try:
        with Isolated(len(table)) as rows:
            return rows.join(do(rows.block(table), rows.block(indices)))
    except Exception:
        return None


def same(one, other):
    return torch.equal(torch.nan_to_num(one.float()), torch.nan_to_num(other.float()))


@pytest.mark.parametrize("name", BY_INDEX)
def test_no_row_reaches_another_by_an_index_or_a_value(name):
    do = BY_INDEX[name]
    table = torch.randn(ROWS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    indices = torch.tensor([1, 2, 1, 2]).expand(ROWS, SIZE)  # not all places, or nothing more could be filled
    clean = found(do, table, indices)
    for place in (0, 1, ROWS - 1):
        others = [row for row in range(ROWS) if row != place]
        moved = table.clone()
        moved[others] = 3 * table[others] + 1
        for index, value in HOSTILE:
            bad, x, y = indices.clone(), table.clone(), moved.clone()
            bad[place], x[place], y[place] = index, table[place] * value, table[place] * value
            one, two = found(do, x, bad), found(do, y, bad)
            assert one is None or clean is None or same(one[others], clean[others])
            assert one is None or two is None or same(one[place], two[place])


@pytest.mark.parametrize("name", ["index_fill", "aten.index_fill", "embedding", "aten.embedding"])
def test_without_its_guard_an_operator_reaches_other_rows(name, monkeypatch):
    for function, guard in list(isolated_rows._GUARDS.items()):
        if guard.__name__ in ("_reaches_rows", "_embedding", "_aten_embedding"):
            monkeypatch.delitem(isolated_rows._GUARDS, function)
    with pytest.raises(AssertionError):
        test_no_row_reaches_another_by_an_index_or_a_value(name)


class OwnTable(nn.Module):
    """Looks up words in a table that is made of the row: torch's rule reads the next row's table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Linear(4, 4)

    def forward(self, x, words):
        table = self.scale(x).transpose(1, 2)[0]  # [4, 4]
        return F.embedding(words, table).sum((1, 2))


class Filling(OwnTable):
    def forward(self, x, words):
        return self.scale(x)[0].index_fill(0, words[0], 0.5).sum()[None]


class Parameters(OwnTable):
    """Looks up words in a parameter that is used in another way, too."""

    def forward(self, x, words):
        return (F.embedding(words, self.scale.weight * x[0, 0]) * x[:, :1]).sum((1, 2))


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("kind", [OwnTable, Filling, Parameters])
@pytest.mark.filterwarnings("ignore:.*(functional engine|vmap cannot run)")
def test_a_row_with_an_index_out_of_range_moves_no_other_rows_gradient(kind, engine):
    def gradient(x, words):
        model = kind()
        private = PrivateGradients(
            model, lambda model, x, words: model(x, words), clip_norm=1e6, noise_multiplier=1e-12,
            expected_batch_size=1.0, passes=PassSettings(engine=engine), generator=seeded(0),
        )  # fmt: skip
        private.backward(x, words)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))
    words = torch.tensor([[0, 1], [2, 3], [1, 1]])
    bad = words.clone()
    bad[0] = 5  # in the table of the next row
    assert torch.allclose(gradient(x, bad), gradient(x[1:], words[1:]), atol=1e-4)


def test_what_is_refused_for_rows_runs_on_tensors_that_all_rows_share():
    with Isolated(2) as rows:
        shared = torch.zeros(3).index_fill(0, torch.tensor([1]), 1.0)
        row = rows.block(torch.ones(2, 3)) + shared + F.embedding(torch.tensor(0), torch.ones(1, 3))
        assert rows.join(row).tolist() == [[2, 3, 2], [2, 3, 2]]
    with (
        pytest.raises(UnsupportedUseError, match="'index_fill' lets an index out of range"),
        Isolated(2) as rows,
    ):
        rows.block(torch.ones(2, 3)).index_fill(0, torch.tensor([1]), 1.0)
