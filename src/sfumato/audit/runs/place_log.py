# SPDX-License-Identifier: Apache-2.0
"""Is the noise of a step drawn for each coordinate? Exact tests at every distance between two coordinates.

Given      All coordinates of a step without rows, those of canaries and of the model in the order that they
           have in memory: independent signs where the code is right.
Law        Products of the signs of coordinates at a fixed distance are independent fair coins: such pairs
           form a forest. So the law of a sum of these products is known exactly.
Everywhere For each distance, the sum of all products: halves of the noise that are equal or opposite show,
           and noise that comes in tiles.
In places  For each distance, sums of `_BLOCK` neighboring products: a part of the noise that is copied or
           taken back elsewhere shows from about that length on. Only in the first coordinates and steps.
Limits     Of more than `_MOST` coordinates, the first and the last are taken. Noise that is copied in another
           order does not show. A step with noise that is no finite number is left out: `noise_log` tells it.
Guarantee  A p-value is at most p with a chance of at most p, all looks counted (Bonferroni).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.audit.evidence.results import Finding
from sfumato.audit.runs.noise_log import least_p

__all__ = ["PlaceLog"]

Numbers = npt.NDArray[np.float64]
Signs = npt.NDArray[np.int8]

_MOST = 1 << 20  # coordinates that are compared at every distance
_BLOCK, _STRIDE = 64, 8  # products that are added up, and how far their beginnings lie apart
_SCANNED, _SCANS = 8192, 3  # coordinates and steps of which blocks are looked at


class PlaceLog:
    """Signs of noise at every distance, in some steps that hold noise alone.

    >>> log, noise = PlaceLog(), np.random.default_rng(0).normal(size=1000)
    >>> log.add(noise)
    >>> min(found.p_value for found in log.findings()) > 0.001
    True
    >>> log.add(np.concatenate([noise, -noise]))
    >>> min(found.p_value for found in log.findings()) < 1e-9
    True
    """

    def __init__(self) -> None:
        self._steps = self._count = 0  # of steps, and of coordinates in all of them
        self._least = 1.0, 0  # p-value of a step, and the distance it is of
        self._largest = 0, 0  # sum of a block, and the distance it is of
        self._blocks = 0  # how many were looked at

    def add(self, noise: Numbers) -> None:
        """Add all coordinates of a step, in their order."""
        kept = noise if len(noise) <= _MOST else np.concatenate([noise[: _MOST // 2], noise[-_MOST // 2 :]])
        if len(kept) < 2 or not np.isfinite(kept).all():
            return
        signs = np.where(kept < 0, -1, 1).astype(np.int8)
        self._steps += 1
        self._count += len(signs)
        p, at = least_p(_at_every_distance(signs), np.arange(len(signs) - 1, 0, -1))
        self._least = min(self._least, (p, at + 1))
        if self._steps <= _SCANS:
            self._scan(signs[:_SCANNED])

    def _scan(self, signs: Signs) -> None:
        for apart in range(1, len(signs) - _BLOCK + 1):
            products = signs[apart:] * signs[:-apart]
            sums = np.concatenate([[0], np.cumsum(products, dtype=np.int32)])
            blocks = np.abs(sums[_BLOCK::_STRIDE] - sums[:-_BLOCK:_STRIDE])
            self._blocks += len(blocks)
            self._largest = max(self._largest, (int(blocks.max()), apart))

    def findings(self) -> list[Finding]:
        """Return what each test says."""
        if not self._steps:
            return []
        p, apart = self._least
        found = [self._finding(self._steps * p, apart)]
        if self._blocks:
            most, apart = self._largest
            p, _ = least_p([most], [_BLOCK])
            found.append(self._finding(self._blocks * p, apart))
        return found

    def _finding(self, p_value: float, apart: int) -> Finding:
        return Finding(
            p_value=min(1.0, p_value),
            message="the noise of a step is not drawn for each coordinate: of canaries and model together, "
            f"coordinates {apart} apart are related",
            observations=self._count,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen."""
        seen = {"steps": self._steps, "count": self._count, "blocks": self._blocks}
        return {**seen, "least": self._least, "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps, self._count, self._blocks = state["steps"], state["count"], state["blocks"]
        (p, apart), (most, place) = state["least"], state["largest"]
        self._least, self._largest = (float(p), int(apart)), (int(most), int(place))


def _at_every_distance(signs: Signs) -> Numbers:
    """Return the sums of products of signs at each distance from 1 on: whole numbers."""
    length = 1 << (2 * len(signs) - 1).bit_length()
    power = np.abs(np.fft.rfft(signs.astype(np.float64), length)) ** 2
    return np.rint(np.fft.irfft(power, length)[1 : len(signs)])
