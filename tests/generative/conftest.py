# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato import Budget, Ledger


@pytest.fixture
def stripes():
    """Images of two classes, 8 x 8: horizontal and vertical stripes, with some noise."""
    draws = torch.Generator().manual_seed(0)
    line = (torch.arange(8) % 2).float()
    shapes = torch.stack([line[:, None].expand(8, 8), line[None].expand(8, 8)])
    labels = torch.arange(400) % 2
    noise = 0.05 * torch.randn(400, 1, 8, 8, generator=draws)
    return (shapes[labels][:, None] + noise).clamp(0, 1), labels


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-4)
    )
