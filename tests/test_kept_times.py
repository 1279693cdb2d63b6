# SPDX-License-Identifier: Apache-2.0
"""No folder, page or JSON of a run keeps a time: how long a step takes depends on private rows."""

import itertools
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import cli

LEAP = 3e9  # seconds between two looks at the clock, more than any figure of these runs
NAMES = re.compile(r"second|elapsed|duration|(^|_)time|stamp|_at$", re.IGNORECASE)
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d|\d(\.\d+)? ?(s|seconds)\b")
TEXTS = {".json", ".jsonl", ".html", ".svg", ".csv", ".txt"}
SMALL = "--epsilon 8 --seed 1"
LINES = {
    "train": f"train digits {SMALL} --epochs 1 --model linear --folder made --report page.html --json",
    "labels": f"train digits --private labels --method randomized-response {SMALL} "
    "--folder made --report page.html --json",
    "pate": "pate breast-cancer --teachers 20 --epsilon 8 --folder made --report page.html --json",
    "federate": "federate digits --clients 20 --cohort 10 --rounds 3 --local-epochs 1 --epsilon 8 "
    "--folder made --report page.html --json",
    "synthesize": "synthesize own.npz --method mixtures --epsilon 10 --classes 2 --public-size 200 "
    "--out made --count 40 --json",
}


@pytest.fixture
def leaping(monkeypatch):
    """Let every look at a clock find it far ahead, so that no kept duration can be small."""
    for name in ("monotonic", "perf_counter", "time", "process_time"):
        begin = time.time()
        ticks = itertools.count()
        monkeypatch.setattr(time, name, lambda begin=begin, ticks=ticks: begin + LEAP * next(ticks))


def values(kept, name=""):
    """Yield every name and plain value in nested containers."""
    if isinstance(kept, dict):
        for key, value in kept.items():
            yield str(key), None
            yield from values(value, str(key))
    elif isinstance(kept, list | tuple | set):
        for value in kept:
            yield from values(value, name)
    else:
        yield name, kept


def require_no_time(kept, where):
    for name, value in values(kept):
        assert not NAMES.search(name), f"{name} in {where}"
        if isinstance(value, float):
            assert abs(value) < LEAP / 2, f"{name} in {where}"
        if isinstance(value, str):
            assert not re.search(r"\d\d:\d\d", value), f"{name} in {where}"


def kept_in(path):
    """Return what a file holds, as nested plain values."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=False)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text()) if path.suffix == ".json" else {}


@pytest.mark.parametrize("kind", LINES)
def test_nothing_that_leaves_keeps_a_time(kind, leaping, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    if kind == "synthesize":
        labels = np.arange(200) % 2
        np.savez("own.npz", x=np.tile(255 * labels[:, None, None], (1, 8, 8)).astype(np.uint8), y=labels)
    monkeypatch.setattr("sys.argv", ["sfumato", *LINES[kind].split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert not stop.value.code, err
    require_no_time(json.loads(out), "the output")
    files = [path for path in Path("made").rglob("*") if path.is_file()]
    assert len(files) >= 2
    for path in files:
        require_no_time(kept_in(path), path)
    for path in [*Path().glob("page.html"), *files]:
        if path.suffix in TEXTS:
            assert not MOMENT.search(re.sub(r"<(style|script).*?</\1>", "", path.read_text(), flags=re.S))
