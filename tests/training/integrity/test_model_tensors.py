# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import NotPrivateError, UnsupportedModelError
from sfumato.training.integrity.release_barrier import Barrier

from ..leaky import Part, X


def test_a_large_tensor_is_compared_by_a_fingerprint_and_cannot_be_put_back():
    model = Part()
    barrier = Barrier(model, keep_bytes=0)
    for _ in range(3):
        with barrier.guarding(thorough=True):
            model(X)
    refused = pytest.raises(NotPrivateError, match=r"changed \['frozen'\].*not be put back in \['frozen'\]")
    with refused, barrier.guarding(thorough=True):
        model.frozen.data[2] = 1 + 2**-23  # the next number


@pytest.mark.parametrize("size", [1, 7, 8, 1000, 5_000_000])
def test_a_fingerprint_shows_a_change_of_any_byte(size):
    model = nn.Module()
    model.register_buffer("bytes", torch.zeros(size, dtype=torch.uint8))
    for place in {0, size // 2, size - 1}:
        with (
            pytest.raises(NotPrivateError, match="bytes"),
            Barrier(model, keep_bytes=0).guarding(thorough=True),
        ):
            model.bytes.data[place] += 1


def test_parameters_that_share_a_storage_are_both_named_and_put_back():
    model = nn.Module()
    whole = torch.zeros(6)
    model.a, model.b = nn.Parameter(whole[:3]), nn.Parameter(whole[3:])
    with pytest.raises(NotPrivateError, match=r"\['a', 'b'\]"), Barrier(model).guarding(thorough=True):
        model.a.data.add_(1)
    assert not whole.any()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_buffers_are_compared_by_their_values(name):
    model = nn.Module()
    model.register_buffer("links", getattr(torch.eye(3), name)())
    with Barrier(model).guarding(thorough=True):
        pass
    values = model.links._values() if name == "to_sparse" else model.links.values()
    with pytest.raises(NotPrivateError, match="links"), Barrier(model).guarding(thorough=True):
        values.data.add_(1)
    assert values.eq(1).all()


def test_a_tensor_that_cannot_be_read_is_refused():
    model = nn.Module()
    model.register_buffer("opaque", torch.ones(4).to_mkldnn())
    with pytest.raises(UnsupportedModelError, match=r"_mkldnn.*to_dense"), Barrier(model).guarding():
        pass
