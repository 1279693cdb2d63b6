# SPDX-License-Identifier: Apache-2.0
"""How many operations a projection takes: on a GPU each is a launch, and reading a value waits for all."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.labels.methods.denoisers import AltConvDenoiser
from sfumato.labels.projection import column_factors, inner_products
from sfumato.testing import seeded

ROWS, CLASSES = 64, 10
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "_unsafe_view", "lift_fresh"}
_READS = {"_local_scalar_dense", "nonzero", "equal", "masked_select"}


class Launches(TorchDispatchMode):
    """Count operations that are no views, and values that the host waits for; not those of small programs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.on_host = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, returns = func._schema.name.split("::")[1], func._schema.returns
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        masks = [i for i in args[1] if i is not None and i.dtype == torch.bool] if name == "index" else []
        if not self.on_host:
            self.found["reads"] += name in _READS or bool(masks)
            self.found["launches"] += not view and name not in _FREE
        return func(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Count copies to the host, which are no operations on a CPU."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self.launches = launches

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not self.launches.on_host and getattr(func, "__name__", "") in ("cpu", "tolist"):
            self.launches.found["reads"] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launches(monkeypatch):
    """Compute as on a GPU, and count."""
    counted, small = Launches(), inner_products.minimize_on_simplex

    def on_host(*args, **more):
        counted.on_host = True
        try:
            return small(*args, **more)
        finally:
            counted.on_host = False

    monkeypatch.setattr(column_factors, "launch_bound", lambda place: True)
    monkeypatch.setattr(inner_products, "minimize_on_simplex", on_host)
    return counted


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(49, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 7, 7)),
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


@pytest.mark.parametrize(
    ("build", "clip_norm", "size"),
    [(dense, None, 1e-5), (dense, None, 0.05), (convolutional, 1.0, 0.05)],
    ids=["small target", "large target", "convolution"],
)
def test_a_projection_takes_few_launches_and_seldom_waits(launches, build, clip_norm, size):
    torch.manual_seed(0)
    model, x = build(), torch.randn(200, 49)
    noisy = {name: torch.randn(p.shape) * size for name, p in model.named_parameters()}
    denoiser = AltConvDenoiser(
        features=x, classes=CLASSES, batch_size=ROWS, averaging=0.5, clip_norm=clip_norm
    )
    denoiser.denoise(model, noisy, rows=None, generator=seeded(0))
    with launches, Copies(launches):
        denoiser.denoise(model, noisy, rows=None, generator=seeded(1))
    assert denoiser.log[-1].reached
    assert 0 < launches.found["launches"] <= 500
    assert 0 < launches.found["reads"] <= 40
