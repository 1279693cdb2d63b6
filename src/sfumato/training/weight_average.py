# SPDX-License-Identifier: Apache-2.0
"""A moving average of weights. It varies less than the last weights, and is free: it is post-processing.

After each step, average = d * average + (1 - d) * weights, with d = min(decay, (1 + t) / (10 + t)) at the
t-th update: the first averages would otherwise be mostly the random start. De et al. 2022, arXiv:2204.13650,
use it for DP-SGD; the warm-up is that of TensorFlow's ExponentialMovingAverage.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.training.sharding.states import placed

__all__ = ["WeightAverage"]


class WeightAverage:
    """The moving average of some parameters.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> average = WeightAverage({"weight": weight}, decay=0.99)
    >>> with torch.no_grad():
    ...     _ = weight.fill_(1.0)
    >>> average.update()
    >>> with average.applied():
    ...     round(weight.item(), 2)  # 1/10 of the old
    0.9
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, decay: float) -> None:
        if not 0 < decay < 1:
            raise InvalidParameterError(
                f"ema_decay must be a number above 0 and below 1, but {decay!r} was given."
            )
        self._parameters = parameters
        self._decay = decay
        self._updates = 0
        self._averages: dict[str, Tensor] = {name: p.detach().clone() for name, p in parameters.items()}

    @property
    def decay(self) -> float:
        """How much of an average a step leaves, once the average is warm."""
        return self._decay

    @property
    def updates(self) -> int:
        """How many steps were taken in."""
        return self._updates

    def by_parameter(self) -> dict[int, Tensor]:
        """Return the average of each parameter, by the parameter's id."""
        return {id(p): self._averages[name] for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        for name, parameter in self._parameters.items():
            self._averages[name].lerp_(parameter, 1 - decay)
        self._updates += 1

    @contextmanager
    def applied(self) -> Generator[None]:
        """Lend the model its averages."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def keep(self) -> None:
        """Leave the averages in the model, for good."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self._averages[name])

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            now = parameter.detach().clone()
            parameter.copy_(self._averages[name])
            self._averages[name].copy_(now)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"updates": self._updates, "averages": dict(self._averages)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._updates = int(state["updates"])
        for name, average in self._averages.items():
            average.copy_(placed(state["averages"][name], average))
