# SPDX-License-Identifier: Apache-2.0
"""From the reply of a client to its update, or to nothing.

A client may send anything: an error, no arrays, two records of arrays, arrays of other names or shapes, bytes
that are no array. All of these give None, and the client then contributes zeros. Numbers may be of any
floating-point type (float16, bfloat16, float32, float64), or whole if the type of the parameter holds them
exactly: they are converted to that type. Numbers that are then not finite, zero or huge are returned as they
are: clipping bounds what they do.

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

_BFLOAT16, _OPAQUE = "bfloat16", "|V2"
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
    """Return the values of parameters in a record of the names and shapes that were sent.

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
    return {name: _converted(record[name], value) for name, value in given.items()}


def _record_of(reply: Message) -> ArrayRecord:
    if reply.has_error() or not reply.has_content():
        raise ValueError("no content")
    (record,) = reply.content.array_records.values()
    return record


def _require_alike(array: Array, sent: Array) -> None:
    if array.stype != sent.stype:
        raise ValueError("another serialization")
    (shape, dtype), wanted = _header(array), tuple(sent.shape)
    if shape != wanted or tuple(array.shape) != wanted:
        raise ValueError("another shape")
    if str(dtype) != (_OPAQUE if array.dtype == _BFLOAT16 else array.dtype):
        raise ValueError("another type than the array declares")


def _converted(array: Array, like: Tensor) -> Tensor:
    """Return the numbers of an array in the type of a parameter."""
    held = array.numpy()
    if array.dtype == _BFLOAT16:  # numpy has no such type, and saves two bytes of each number
        return torch.from_numpy(held.view(np.int16).copy()).view(torch.bfloat16).to(like)
    if held.dtype.kind not in "fiu":
        raise ValueError("no real numbers")
    wanted = np.float64 if like.dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and counts as nothing
        found = held.astype(wanted)
    if held.dtype.kind in "iu" and not (found.astype(np.longdouble) == held.astype(np.longdouble)).all():
        raise ValueError("whole numbers that the type does not hold")
    return torch.from_numpy(found).to(like)


def _header(array: Array) -> tuple[tuple[int, ...], Any]:
    data = io.BytesIO(array.data)
    read = _HEADERS[np.lib.format.read_magic(data)]
    shape, _, dtype = read(data)
    return shape, dtype
