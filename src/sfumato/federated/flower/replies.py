# SPDX-License-Identifier: Apache-2.0
"""From the reply of a client to its update, or to nothing.

A client may send anything: an error, no arrays, two records of arrays, arrays of other names, shapes or
types, bytes that are no array. All of these give None, and the client then contributes zeros. Numbers that
are not finite, zero or huge are returned as they are: clipping bounds what they do.

Guarantee  The result depends on this reply and on the model that was sent, and on nothing else. No reply
           raises. Only trainable parameters are read: buffers of the server stay as they are. Metrics are
           private and are not read.
Failure    Headers of arrays are compared before any of their data is read, so a header that promises
           terabytes allocates nothing.
"""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

__all__ = ["update_in", "values_in"]

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def update_in(reply: Message, sent: ArrayRecord, given: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return what was sent minus what a client replied, by parameter; None where the reply is not usable."""
    try:
        values = values_in(_record_of(reply), sent, given)
        return {name: given[name] - value for name, value in values.items()}
    except Exception:  # whatever a client sent: it must not decide whether the round goes on
        return None


def values_in(record: ArrayRecord, sent: ArrayRecord, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of parameters in a record of the names, shapes and types that were sent.

    >>> sent = ArrayRecord({"weight": Array(np.ones(2, dtype=np.float32))})
    >>> learned = ArrayRecord({"weight": Array(np.array([0.5, 2.0], dtype=np.float32))})
    >>> values_in(learned, sent, {"weight": torch.ones(2)})
    {'weight': tensor([0.5000, 2.0000])}

    Raises:
        ValueError: If the record has others.
    """
    if set(record) != set(sent):
        raise ValueError("other names than those that were sent")
    for name in sent:
        _require_alike(record[name], sent[name])
    return {name: torch.from_numpy(record[name].numpy()).to(value) for name, value in given.items()}


def _record_of(reply: Message) -> ArrayRecord:
    if reply.has_error() or not reply.has_content():
        raise ValueError("no content")
    (record,) = reply.content.array_records.values()
    return record


def _require_alike(array: Array, sent: Array) -> None:
    if array.stype != sent.stype:
        raise ValueError("another serialization")
    if (array.dtype, tuple(array.shape)) != (sent.dtype, tuple(sent.shape)):
        raise ValueError("another type or shape")
    if _header(array) != _header(sent):
        raise ValueError("another type or shape than the array declares")


def _header(array: Array) -> tuple[tuple[int, ...], Any]:
    data = io.BytesIO(array.data)
    read = _HEADERS[np.lib.format.read_magic(data)]
    shape, _, dtype = read(data)
    return shape, dtype
