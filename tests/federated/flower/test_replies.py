# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from sfumato.federated.flower.replies import update_in
from tests.federated.flower.local_grid import array, identify

SENT = ArrayRecord({"weight": array([[1.0, 2.0]]), "count": array([3], np.int64)})
GIVEN = {"weight": torch.tensor([[1.0, 2.0]])}


def asked():
    identify()
    return Message(RecordDict({"arrays": SENT}), 5, "train")


def update_of(content):
    return update_in(Message(content, reply_to=asked()), SENT, GIVEN)


def record(**arrays):
    return RecordDict(
        {"arrays": ArrayRecord({"weight": array([[0.0, 0.0]]), "count": SENT["count"], **arrays})}
    )


def test_an_update_is_what_was_sent_minus_the_reply_without_buffers():
    update = update_of(record(weight=array([[0.5, 5.0]]), count=array([99], np.int64)))
    assert list(update) == ["weight"] and update["weight"].tolist() == [[0.5, -3.0]]


def test_numbers_that_are_not_finite_are_left_to_clipping():
    assert update_of(record(weight=array([[np.nan, np.inf]])))["weight"].isfinite().sum() == 0


def lying(dtype="float32", shape=(1, 2), stype="numpy.ndarray", data=None):
    return Array(dtype, shape, stype, array([[0.0, 0.0]]).data if data is None else data)


def promising(shape):
    """Return bytes whose header has another shape than follows."""
    data = array([[0.0, 0.0]]).data
    return data.replace(b"(1, 2)", shape)


@pytest.mark.parametrize(
    "weight",
    [
        array([[1.0]]),
        array([1.0, 2.0]),
        array([[2**24 + 1, 2]], np.int32),  # which float32 does not hold
        array([[1.0, 2.0]], np.complex64),
        array([[True, False]], np.bool_),
        array([["1", "2"]], np.str_),
        lying(data=b""),
        lying(data=b"\x80\x04N."),  # a pickle
        lying(data=array([[1.0, 2.0, 3.0]]).data),
        lying(data=array([[1.0, 2.0]], np.float64).data),
        lying(data=array([[1.0, 2.0]]).data[:-4]),
        lying(data=promising(b"(10**9,)")),
        lying(data=promising(b"(999999999999, 9)")),
        lying(stype="other"),
        lying(shape=(2, 1)),
    ],
)
def test_an_array_of_another_kind_is_no_update(weight):
    assert update_of(record(weight=weight)) is None


def bfloat16(*numbers):
    """Return numbers as numpy saves them with the type of ml_dtypes: two bytes each, of no type."""
    halves = torch.tensor([numbers], dtype=torch.bfloat16).view(torch.int16).numpy()
    return Array("bfloat16", (1, 2), "numpy.ndarray", array(halves, np.int16).data.replace(b"<i2", b"|V2"))


@pytest.mark.parametrize(
    "weight",
    [
        array([[0.5, 5.0]], np.float16),
        array([[0.5, 5.0]], np.float64),
        array([[0.5, 5.0]], np.longdouble),
        bfloat16(0.5, 5.0),
    ],
)
def test_every_floating_type_counts(weight):
    update = update_of(record(weight=weight))["weight"]
    assert update.dtype == torch.float32 and update.tolist() == [[0.5, -3.0]]


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16])
def test_whole_numbers_count_where_they_are_exact(kind):
    assert update_of(record(weight=array([[3, 5]], kind)))["weight"].tolist() == [[-2.0, -3.0]]


def test_numbers_too_large_for_the_type_of_the_model_are_not_finite():
    update = update_of(record(weight=array([[1e300, 0.0]], np.float64)))["weight"]
    assert update.tolist() == [[-np.inf, 2.0]]


def test_the_type_of_a_buffer_does_not_matter():
    assert update_of(record(count=array([3.0], np.float16))) is not None


def test_other_names_are_no_update():
    assert update_of(record(more=array([1.0]))) is None
    assert update_of(RecordDict({"arrays": ArrayRecord({"weight": array([[0.0, 0.0]])})})) is None
    assert update_of(RecordDict({"arrays": ArrayRecord()})) is None


def test_no_record_or_two_are_no_update():
    fine = record()["arrays"]
    assert update_of(RecordDict()) is None
    assert update_of(RecordDict({"config": ConfigRecord({"arrays": 1})})) is None
    assert update_of(RecordDict({"a": fine, "b": fine})) is None
    assert update_of(RecordDict({"any-name": fine})) is not None


def test_an_error_is_no_update():
    assert update_in(Message(Error(2, "a text of the client"), reply_to=asked()), SENT, GIVEN) is None
