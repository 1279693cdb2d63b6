# SPDX-License-Identifier: Apache-2.0
"""Small fits of every generator, and pairs of neighbors to replay them on.

Neighbors  One image or row more at the end: one that is unlike all others, one whose pixels are no numbers,
           one whose label is no class, the second of all, and the first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attacks.generator_replays import Use, replay_fit
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.generative import (
    DPCGAN,
    DPGAN,
    Category,
    Diffusion,
    KernelMean,
    NoisyMarginals,
    NoisyMixtures,
    Number,
    Pace,
    PateCGAN,
    StepRule,
)
from sfumato.mechanisms.random import Generator

__all__ = ["IMAGES", "NEIGHBORS", "ROWS", "Replayed", "replayed"]

_SIZE = 40  # of the larger neighbor: numbers that are rounded to halves, quarters, fifths or eighths differ
_TERMS: dict[str, Any] = {
    "delta": 1e-3,
    "classes": 2,
    "public_size": _SIZE,
    "progress": False,
    "device": "cpu",
}
_DRAWS = torch.Generator().manual_seed(0)
_ODD = (torch.arange(64) % 2).float().reshape(1, 1, 8, 8)  # stripes: as far from gray as can be

IMAGES = torch.rand(_SIZE - 1, 1, 8, 8, generator=_DRAWS), torch.arange(_SIZE - 1) % 2


def _with(image: torch.Tensor, label: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([IMAGES[0], image]), torch.cat([IMAGES[1], torch.tensor([label])])


NEIGHBORS: dict[str, tuple[Any, Any]] = {
    "an odd image": (IMAGES, _with(_ODD, 1)),
    "no numbers": (IMAGES, _with(torch.full_like(_ODD, torch.nan), 0)),
    "no class": (IMAGES, _with(_ODD, 7)),
    "the second image": (
        (IMAGES[0][:1], IMAGES[1][:1]),
        (torch.cat([IMAGES[0][:1], _ODD]), IMAGES[1][:2]),
    ),
    "the first image": ((_ODD[:0], IMAGES[1][:0]), (_ODD, torch.tensor([1]))),
}

_DOMAIN = {"tea": Category(values=("yes", "no", "never")), "age": Number(lower=0, upper=4, bins=4)}
_TABLE = {"tea": (["yes", "no"] * 20)[1:], "age": [place % 3 + 0.5 for place in range(_SIZE - 1)]}
ROWS: dict[str, tuple[Any, Any]] = {
    "an odd row": (_TABLE, {"tea": [*_TABLE["tea"], "never"], "age": [*_TABLE["age"], 3.5]}),
    "no value": (_TABLE, {"tea": [*_TABLE["tea"], None], "age": [*_TABLE["age"], float("nan")]}),
    "the first row": ({"tea": [], "age": []}, {"tea": ["never"], "age": [3.5]}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """A fit that is replayed.

    Args:
        audits: The public name of what is fitted.
        fit: Called as `fit(data, generator)`.
        event: What its noise is charged with, apart from DP-SGD; made when it is called for.
        pairs: Neighbors, by name.
    """

    audits: str
    fit: Callable[[Any, Generator], Any]
    event: Callable[[], DpEvent] | None
    pairs: dict[str, tuple[Any, Any]]

    def check(self, pair: str, seed: int = 0) -> tuple[Use, ...]:
        """Replay the fit on a pair of neighbors.

        Args:
            pair: The name of the pair.
            seed: The seed of both runs.

        Returns:
            The noises.

        Raises:
            LeakError: If it reveals more than it states.
        """
        first, second = self.pairs[pair]
        event = None if self.event is None else self.event()
        return replay_fit(self.fit, first, second, event=event, seed=seed)


def _images(how: Any, epsilon: float, event: Callable[[], DpEvent] | None) -> Replayed:
    def fit(data: Any, generator: Generator) -> Any:
        return how.fit(data, epsilon=epsilon, generator=generator, **_TERMS)

    return Replayed(audits=type(how).__name__, fit=fit, event=event, pairs=NEIGHBORS)


_DENSE: dict[str, Any] = {"architecture": "dense", "latent": 4}
_MEANS = KernelMean(features=16, steps=2, rows=4, **_DENSE)
_MIXTURES = NoisyMixtures(clusters=2, axes=64, rounds=2)
_VOTES = PateCGAN(
    teachers=8,
    queries=100,
    rounds=4,
    start=_MEANS,
    pace=Pace(teacher=4, student=2, generator=2, batch=4, teacher_rate=0.01),
    **_DENSE,
)
_DIFFUSION = Diffusion(
    width=8,
    steps=3,
    expected_batch_size=8,
    start=_MIXTURES,
    start_steps=2,
    start_batch_size=8,
    levels=2,
)
_MARGINALS = NoisyMarginals(iterations=5, rounds=3)


def replayed() -> tuple[Replayed, ...]:
    """Return every generator with its pairs of neighbors.

    Returns:
        The fits.

    >>> [one.audits for one in replayed()][:2]
    ['KernelMean', 'NoisyMixtures']
    """
    alone = stddev_for(2.0, 1e-3, 1.0)
    size = {"public_size": _SIZE}
    steps: dict[str, Any] = {"steps": 4, "expected_batch_size": 8, "generator_steps": StepRule(least=1)}

    def started() -> DpEvent:
        return _MIXTURES.event(_DIFFUSION.noise(**size, epsilon=2.0, delta=1e-3, mixtures=True)[0])

    return (
        _images(_MEANS, 2.0, lambda: _MEANS.event(alone)),
        _images(_MIXTURES, 2.0, lambda: _MIXTURES.event(alone)),
        _images(_VOTES, 100.0, lambda: _VOTES.event(*_VOTES.plan(epsilon=100.0, delta=1e-3))),
        _images(DPGAN(**_DENSE, **steps), 2.0, None),
        _images(DPCGAN(**_DENSE, **steps), 2.0, None),
        _images(_DIFFUSION, 2.0, started),
        Replayed(
            audits="NoisyMarginals",
            fit=_table,
            event=lambda: _MARGINALS.claim(_DOMAIN, epsilon=2.0, delta=1e-3).event(),
            pairs=ROWS,
        ),
    )


def _table(data: Any, generator: Generator) -> Any:
    return _MARGINALS.fit(data, domain=_DOMAIN, epsilon=2.0, delta=1e-3, generator=generator, progress=False)
