# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

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


class Convolutions(TorchDispatchMode):
    """Counts the convolutions that torch computes."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("options", "by_torch"),
    [
        ({"kernel_size": 3}, 0),
        ({"kernel_size": (2, 3), "stride": (3, 2), "padding": (1, 2)}, 0),
        ({"kernel_size": 3, "bias": False, "padding": 2}, 0),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, 0),
        ({"kernel_size": 3, "padding": "same"}, 1),
        ({"kernel_size": 3, "dilation": 2}, 1),
        ({"kernel_size": 3, "groups": 2}, 1),
        ({"kernel_size": 5}, 1),  # the columns would be large
        ({"kernel_size": 3, "out_channels": 9}, 1),  # the weights of clients begin anywhere in memory
    ],
)
def test_a_convolution_of_images_has_the_gradients_of_torch_s_kernel(options, by_torch):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(4, **({"out_channels": 16} | options)), torch.randn(2, 16, 4, 7, 8)
    stacked = {name: torch.stack([p.detach(), p.detach() + 0.1]) for name, p in layer.named_parameters()}

    def total(values, x):
        return functional_call(layer, values, (x,)).sin().sum()

    with Convolutions() as seen, ClientLayers():
        found = vmap(grad(total))(stacked, x)
    assert seen.count == by_torch
    for place in range(2):
        wanted = grad(total)({name: value[place] for name, value in stacked.items()}, x[place])
        assert all(torch.allclose(found[name][place], wanted[name], atol=1e-4) for name in wanted)


def test_a_convolution_of_what_a_layer_returned_is_left_to_torch():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 16, 2), nn.Tanh(), nn.Conv2d(16, 4, 2))
    stacked = {name: p.detach().expand(2, *p.shape) for name, p in network.named_parameters()}
    with Convolutions() as seen, ClientLayers():
        vmap(grad(lambda own, x: functional_call(network, own, (x,)).sum()))(
            stacked, torch.randn(2, 3, 1, 5, 5)
        )
    assert seen.count == 1


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
