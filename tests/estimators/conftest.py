# SPDX-License-Identifier: Apache-2.0
"""Settings for all tests of the estimators, and what several of them use."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another


@pytest.fixture(scope="session")
def neighbors():
    """The replay of a question on neighboring data: tests/statistics/neighbors.py."""
    name = "estimators_neighbors"
    path = Path(__file__).parents[1] / "statistics" / "neighbors.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
