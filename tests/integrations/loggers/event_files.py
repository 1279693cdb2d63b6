# SPDX-License-Identifier: Apache-2.0
"""Read back what Weights & Biases wrote offline."""

import json
import struct
from pathlib import Path
from typing import Any

_HEADER, _BLOCK = 7, 32 * 1024


def records(path: Path) -> list[Any]:
    """Return the records of a `.wandb` file: a log of blocks, as LevelDB writes them."""
    from wandb.proto import wandb_internal_pb2 as proto

    data, place, parts, found = path.read_bytes(), _HEADER, b"", []
    while place + 7 <= len(data):
        if _BLOCK - place % _BLOCK < 7:
            place += _BLOCK - place % _BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = proto.Record()
            record.ParseFromString(parts)
            found.append(record)
            parts = b""
    return found


def history(path: Path) -> list[dict[str, Any]]:
    """Return the figures of each step."""
    rows = [record.history.item for record in records(path) if record.WhichOneof("record_type") == "history"]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row} for row in rows]
