# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from sfumato.errors import UnsupportedUseError
from sfumato.federated.clients.vmap_layers import ClientLayers


def gradients(layer, x, *, at_once):
    """Return the gradients of two clients with weights of their own."""
    stacked = {name: torch.stack([p.detach(), p.detach() + 0.01]) for name, p in layer.named_parameters()}

    def total(values, x):
        outputs, last = functional_call(layer, values, (x,))
        parts = last if isinstance(last, tuple) else (last,)
        return outputs.square().sum() + sum(part.sin().sum() for part in parts)

    if at_once:
        with warnings.catch_warnings(), ClientLayers():
            warnings.simplefilter("error")  # vmap warns where it has no rule
            return vmap(grad(total))(stacked, x)
    each = [grad(total)({name: v[i] for name, v in stacked.items()}, x[i]) for i in range(2)]
    return {name: torch.stack([found[name] for found in each]) for name in stacked}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # the reference
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"batch_first": True}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "bias": False}),
        (nn.LSTM, {"proj_size": 2, "bidirectional": True}),
        (nn.GRU, {"num_layers": 2, "batch_first": True}),
        (nn.GRU, {"bidirectional": True}),
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
    ],
)
def test_a_recurrent_layer_has_the_gradients_of_torch_s_kernel(kind, options):
    torch.manual_seed(0)
    layer = kind(3, 4, **options)
    x = torch.randn(2, 5, 6, 3)
    found, wanted = (gradients(layer, x, at_once=at_once) for at_once in (True, False))
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


def test_dropout_between_layers_is_left_to_torch():
    layer = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    with pytest.raises(RuntimeError), warnings.catch_warnings(), ClientLayers():
        warnings.simplefilter("ignore")
        vmap(lambda x: layer(x)[0].sum())(torch.randn(2, 5, 6, 3))


def test_values_cannot_be_looked_at():
    with pytest.raises(RuntimeError), ClientLayers():
        vmap(lambda x: x if x.sum() > 0 else -x)(torch.ones(2, 3))


LOOKUPS = [
    lambda table, i: F.embedding(i, table),
    lambda table, i: F.embedding(i, table, padding_idx=-1),
    lambda table, i: torch.embedding(table, i),
    lambda table, i: torch.embedding(table, i, 2, False, False),
    lambda table, i: torch.ops.aten.embedding(table, i),
    lambda table, i: torch.ops.aten.embedding.default(table, i),
    lambda table, i: table.index_fill(0, i, 7.0),
    lambda table, i: torch.index_fill(table, 0, i, 7.0),
    lambda table, i: table.clone().index_fill_(0, i, 7.0),
    lambda table, i: torch.ops.aten.index_fill(table, 0, i, 7.0),
]


@pytest.mark.parametrize("look_up", LOOKUPS)
@pytest.mark.parametrize("index", [4, 5, -1, -5])
def test_an_index_out_of_range_reads_and_moves_no_other_client(look_up, index):
    tables = torch.randn(3, 4, 2)

    def gradients(tables, index):
        indices = torch.tensor([[1, 2], [index, 0], [3, 3]])
        with ClientLayers() as mode:
            found = vmap(grad(lambda t, i: look_up(t, i).square().sum()))(tables, indices)
        mode.refuse_routes()
        return found

    try:
        found = gradients(tables, index)
    except (RuntimeError, UnsupportedUseError, IndexError):
        return  # all clients are then trained one after another
    assert torch.equal(found[[0, 2]], gradients(tables, 0)[[0, 2]])
    changed = torch.cat([tables[:1] + 1, tables[1:2], tables[2:] + 1])
    assert torch.equal(found[1].nan_to_num(), gradients(changed, index)[1].nan_to_num())


def test_a_lookup_in_range_has_the_gradients_of_torch():
    tables, indices = torch.randn(3, 4, 2), torch.randint(0, 4, (3, 6))

    def total(table, i):
        return F.embedding(i, table, padding_idx=1).square().sum()

    with ClientLayers():
        found = vmap(grad(total))(tables, indices)
    assert torch.allclose(
        found, torch.stack([grad(total)(*each) for each in zip(tables, indices, strict=True)])
    )


@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"padding": 1}, {"return_indices": True}])
@pytest.mark.parametrize("channels", [3, 8])
def test_pooling_takes_the_maxima_of_torch(channels, options):
    x = torch.randint(0, 3, (2, 4, channels, 6, 5)).float()  # many are equal: the first one has the gradient

    def pooled(x):
        found = F.max_pool2d(x, 2, **options)
        return found[0] if options.get("return_indices") else found

    def total(x):
        return pooled(x).sin().sum()

    with ClientLayers():
        found, gradients = vmap(pooled)(x), vmap(grad(total))(x)
    assert torch.equal(found, pooled(x.flatten(0, 1)).unflatten(0, (2, 4)))
    assert torch.equal(gradients, torch.stack([grad(total)(each) for each in x]))
