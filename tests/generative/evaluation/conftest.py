# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.generative.evaluation.rows import labeled_rows


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digits():
    """All digits in a fixed random order: 1797 images [1, 8, 8] from 0 to 1, and their classes."""
    found = load_digits()
    order = np.random.default_rng(7).permutation(len(found.target))
    return (found.images[order, None] / 16).astype(np.float32), found.target[order]


@pytest.fixture(scope="session")
def thirds(digits):
    """Three disjoint thirds of the digits: synthetic (real rows stand in), holdout, training."""
    images, labels = digits
    return [labeled_rows(images[k::3], labels[k::3], classes=10) for k in range(3)]
