# SPDX-License-Identifier: Apache-2.0
"""Modules of `benchmarks`, which is no package: they are loaded from their files."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_results", BENCHMARKS / "models" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
