# SPDX-License-Identifier: Apache-2.0
"""The benchmark of large networks runs, at a tiny size: `benchmarks/large_models.py --quick`."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_benchmark_of_large_networks_measures_both_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["large_models.py", "--quick", "--json"])
    spec = importlib.util.spec_from_file_location("large_models", BENCHMARKS / "large_models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "large_models", module)  # where its dataclasses look for it
    spec.loader.exec_module(module)
    assert module.main() == 0
    found = {row["what"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    for case in ("LoRA of rank 16", "full fine-tune"):
        assert found[f"{case}: private / plain, time"] > 0
        assert found[f"{case}: parameters, millions"] > 0
