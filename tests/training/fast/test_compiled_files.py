# SPDX-License-Identifier: Apache-2.0
"""The files that the compiler of torch keeps: a second process compiles nothing, and they hold no value."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile needs a C++ compiler",
)

PROCESS = """
import json, sys, warnings
import torch
from torch import nn
from sfumato.training import PassSettings, PrivateGradients

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.scale = nn.Parameter(torch.tensor(1.2345678))  # numbers alone are the likeliest to be copied
        self.register_buffer("shift", torch.tensor(2.7182817))

    def forward(self, x):
        return self.layer(x) * self.scale * 1.7654321 + self.shift  # a constant of the code

torch.manual_seed(0)
model, rows = Scaled(), torch.randn(4, 2)
weights = [float(number) for tensor in model.state_dict().values() for number in tensor.flatten()]
private = PrivateGradients(
    model, clip_norm=0.56789, noise_multiplier=1.0, expected_batch_size=4,
    passes=PassSettings(compile=True, check=False),
)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    private.backward(rows, torch.tensor([0, 1, 2, 0]))
try:
    from torch._dynamo.utils import counters
except OSError:  # it makes a folder for files when it is imported
    counters = {"inductor": {}}
told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
found = {name: counters["inductor"].get(f"fxgraph_cache_{name}", 0) for name in ("hit", "miss", "bypass")}
print(json.dumps(found | {"told": told, "values": weights + rows.flatten().tolist()}))
"""


def process(folder):
    surroundings = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], env=surroundings, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def writings(value):
    """Yield how a number may be written in a file."""
    yield struct.pack("<f", value)
    yield struct.pack("<d", value)
    yield repr(value)[:9].encode()


@needs_compiler
def test_a_second_process_compiles_nothing_and_files_hold_neither_weights_nor_rows(tmp_path):
    first = process(tmp_path / "files")
    assert (first["hit"], first["miss"], first["bypass"], first["told"]) == (0, 1, 0, [])
    second = process(tmp_path / "files")
    assert (second["hit"], second["miss"], second["bypass"], second["told"]) == (1, 0, 0, [])
    files = [path for path in Path(tmp_path / "files").rglob("*") if path.is_file()]
    held = b"".join(path.read_bytes() for path in files)
    assert any(text in held for text in writings(1.7654321))  # what is copied would be seen
    assert not [value for value in first["values"] for text in writings(value) if text in held]


def test_files_that_cannot_be_written_give_the_slower_way_and_one_line(tmp_path):
    (tmp_path / "file").write_text("no folder")
    found = process(tmp_path / "file" / "inside")
    (line,) = found["told"]
    assert "files cannot be written; set TORCHINDUCTOR_CACHE_DIR" in line and str(tmp_path) not in line
