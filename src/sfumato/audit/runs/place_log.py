# SPDX-License-Identifier: Apache-2.0
"""Tests whether noise is drawn for each coordinate and each step, by signs of pairs of coordinates.

`PlaceLog` looks at trial steps without rows, which hold noise alone. It takes all coordinates, those of
canaries and of the model, in the order that they have in memory.

- Within a trial, for each distance, the sum of the products of all signs at that distance. Halves of the
  noise that are equal or opposite show, and so does noise that is repeated in tiles.
- Within the first trials and the first coordinates, for each distance, sums of `_BLOCK` neighboring products.
  A part of the noise that is copied elsewhere, with either sign, shows if it has about that length.
- Between a trial and the trial before, for each shift, the sum of the products of all signs at that shift. A
  generator that advances by less than a step needs shows, and so does noise that is rotated at each call.
- Between the first trials and in the first coordinates, for each shift, sums of `_BLOCK` neighboring
  products. Noise of a part of the coordinates that comes back elsewhere in the next trial shows.

`ShiftLog` looks at steps that count, in the coordinates of canaries: for each shift, at the sum over all
steps of the products with the signs of the step before.

Guarantee  A p-value is at most p with probability at most p if noise is independent and symmetric; all looks
           are counted (Bonferroni). Pairs at a fixed distance or shift form a forest, and products of signs
           along its edges are independent fair coins, so the distribution of a sum is known exactly. Which
           coordinates are left out must not depend on the noise.
Failure    A number that is not finite in a trial is a finding: a bounded sum with Gaussian noise is always
           finite. Such a trial is left out of the sums.
Not here   Of more than `MOST` coordinates, those between the first and the last are not compared. Noise that
           is copied in another order does not show. Noise that comes back in later steps without a shift is
           found by `noise_log`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.audit.evidence.results import Finding
from sfumato.audit.runs.noise_log import least_p, packed, products_at_every_shift, unpacked

__all__ = ["MOST", "PlaceLog", "ShiftLog", "ends"]

Numbers = npt.NDArray[Any]
Signs = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

MOST = 1 << 20  # coordinates that are compared at every distance
_BLOCK, _STRIDE = 64, 8  # products that are added up, and how far their beginnings lie apart: a byte of signs
_WIDE = 2048  # coordinates of steps that count, which are compared with the step before
_ALL_STEPS, _EVERY = 64, 4  # of these steps the first are compared, and then every fourth
_SCANNED, _SCANS = 8192, 3  # coordinates and steps of which blocks are looked at


class PlaceLog:
    """Signs of noise at every distance, within trial steps and between them.

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
        self._blocks = _Blocks()  # within trials, by distance
        self._broken = 0  # trials with a number that is not finite
        self._before: Signs | None = None  # of the trial before
        self._crossed = 0  # pairs of trials that were compared
        self._nearest = 1.0, 0  # p-value of such a pair, and the shift it is of
        self._crossed_blocks = _Blocks()  # of such pairs, by shift

    def add(self, noise: Numbers, *, finite: bool = True) -> None:
        """Add the coordinates of a trial, in their order.

        `finite` is False if a coordinate that is not among these is not finite.
        """
        if not (finite and np.isfinite(noise).all()):
            self._broken += 1
            return
        if len(noise) < 2:
            return
        signs = np.where(noise < 0, -1, 1).astype(np.int8)
        self._cross(signs)
        self._steps += 1
        self._count += len(signs)
        p, at = least_p(_at_every_distance(signs), np.arange(len(signs) - 1, 0, -1))
        self._least = min(self._least, (p, at + 1))
        if self._steps <= _SCANS:
            self._blocks.add(signs, signs, first=1)

    def _cross(self, signs: Signs) -> None:
        before, self._before = self._before, signs
        if before is None or len(before) != len(signs):
            return
        reach = len(signs) - 1
        shifts = np.arange(-reach, reach + 1)
        p, at = least_p(products_at_every_shift(signs, before), len(signs) - np.abs(shifts))
        self._crossed += 1
        self._nearest = min(self._nearest, (p, int(shifts[at])))
        if self._crossed <= _SCANS:
            self._crossed_blocks.add(signs, before, first=-reach)

    def findings(self) -> list[Finding]:
        """Return what each test says."""
        found = [self._not_finite()] if self._broken else []
        if not self._steps:
            return found
        p, apart = self._least
        found.append(self._finding(self._steps * p, apart))
        if self._blocks.count:
            found.append(self._finding(*self._blocks.least()))
        if self._crossed:
            p, shift = self._nearest
            found.append(self._repeated(self._crossed * p, shift))
        if self._crossed_blocks.count:
            found.append(self._repeated(*self._crossed_blocks.least()))
        return found

    def _not_finite(self) -> Finding:
        message = f"the noise of {self._broken} trial step(s) is not a finite number in every coordinate"
        return Finding(p_value=0.0, message=message, observations=self._broken)

    def _repeated(self, p_value: float, shift: int) -> Finding:
        return Finding(
            p_value=min(1.0, p_value),
            message="the noise of a trial step comes back in the next one, of canaries and model together, "
            f"{abs(shift)} coordinates {'further' if shift > 0 else 'before'}",
            observations=self._count,
        )

    def _finding(self, p_value: float, apart: int) -> Finding:
        return Finding(
            p_value=min(1.0, p_value),
            message="the noise of a trial step is not drawn for each coordinate: of canaries and model "
            f"together, coordinates {apart} apart are related",
            observations=self._count,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen."""
        return {
            "steps": self._steps,
            "count": self._count,
            "blocks": self._blocks.state,
            "broken": self._broken,
            "crossed": self._crossed,
            "least": self._least,
            "nearest": self._nearest,
            "crossed_blocks": self._crossed_blocks.state,
            "before": packed([] if self._before is None else [self._before]),
            "width": 0 if self._before is None else len(self._before),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps, self._count = state["steps"], state["count"]
        self._broken, self._crossed = state["broken"], state["crossed"]
        (p, apart), (q, shift) = state["least"], state["nearest"]
        self._least, self._nearest = (float(p), int(apart)), (float(q), int(shift))
        self._blocks, self._crossed_blocks = _Blocks(state["blocks"]), _Blocks(state["crossed_blocks"])
        self._before = next(iter(unpacked(state["before"], int(state["width"]))), None)


class _Blocks:
    """Sums of neighboring products of signs of two vectors, at every shift: their number and the largest."""

    def __init__(self, state: Sequence[int] = (0, 0, 0)) -> None:
        self.count, self._largest, self._at = (int(each) for each in state)

    @property
    def state(self) -> tuple[int, int, int]:
        """What a checkpoint keeps."""
        return self.count, self._largest, self._at

    def add(self, signs: Signs, others: Signs, *, first: int) -> None:
        """Compare `signs[i + shift]` with `others[i]` in the first coordinates, from a first shift on."""
        size = len(signs[:_SCANNED])
        shifts = np.arange(max(first, _BLOCK - size), size - _BLOCK + 1)
        if not len(shifts):
            return
        late, early = _at_offsets(signs[:_SCANNED]), _at_offsets(others[:_SCANNED])
        ahead = _largest_by_shift(late, early[0], size)
        behind = _largest_by_shift(early, late[0], size) if first < 0 else np.zeros_like(ahead)
        self.count += int(((size - np.abs(shifts)) // _STRIDE - _BLOCK // _STRIDE + 1).sum())
        largest = np.where(shifts < 0, behind[np.abs(shifts)], ahead[np.abs(shifts)])
        at = int(np.argmax(largest))  # the first of equals
        if largest[at] > self._largest:
            self._largest, self._at = int(largest[at]), int(shifts[at])

    def least(self) -> tuple[float, int]:
        """Return the p-value of the largest sum, times their number, and the shift it is of."""
        p, _ = least_p([self._largest], [_BLOCK])
        return self.count * p, self._at


class ShiftLog:
    """Signs of the noise of neighboring steps, compared at every shift.

    >>> log, noise = ShiftLog("a layer"), np.random.default_rng(0).normal(size=10_000)
    >>> for step in range(5): log.add(np.where(noise[100 * step : 100 * step + 500] < 0, -1, 1))
    >>> [found.p_value < 1e-9 for found in log.findings()]
    [True]
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps = 0
        self._before: Signs | None = None  # of the step before
        self._sums, self._pairs = np.zeros((2, 2 * _WIDE - 1))  # by shift, from the lowest on

    def add(self, signs: Signs) -> None:
        """Add the signs of a step: -1, 1, or 0 for coordinates that do not hold noise alone."""
        signs, before = np.asarray(signs[:_WIDE], dtype=np.int8), self._before
        self._steps, self._before = self._steps + 1, signs
        if before is None or len(before) != len(signs) or not len(signs):
            return
        if self._steps > _ALL_STEPS and self._steps % _EVERY:
            return
        middle, reach = _WIDE - 1, len(signs) - 1
        shifts = slice(middle - reach, middle + reach + 1)
        self._sums[shifts] += products_at_every_shift(signs, before)
        self._pairs[shifts] += products_at_every_shift(signs != 0, before != 0)

    def findings(self) -> list[Finding]:
        """Return whether noise of a step comes back in the next."""
        if not self._pairs.any():
            return []
        p, at = least_p(self._sums, self._pairs)
        shift = at - (_WIDE - 1)
        return [
            Finding(
                p_value=p,
                message=f"the noise in {self.name} comes back in the next step, {abs(shift)} coordinates "
                f"{'further' if shift > 0 else 'before'}",
                observations=int(self._pairs[at]),
            )
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen."""
        seen = np.stack([self._sums, self._pairs]).astype(np.int32)  # whole numbers
        width = 0 if self._before is None else len(self._before)
        unused = max(0, _WIDE - max(1, width))
        return {
            "steps": self._steps,
            "before": packed([] if self._before is None else [self._before]),
            "width": width,
            "seen": torch.from_numpy(seen[:, unused : 2 * _WIDE - 1 - unused]).clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps = int(state["steps"])
        self._before = next(iter(unpacked(state["before"], int(state["width"]))), None)
        self._sums, self._pairs = np.zeros((2, 2 * _WIDE - 1))
        unused = (2 * _WIDE - 1 - state["seen"].shape[1]) // 2
        for total, kept in zip((self._sums, self._pairs), state["seen"].numpy(), strict=True):
            total[unused : unused + len(kept)] = kept


def ends(parts: Iterable[Tensor], most: int = MOST) -> Numbers:
    """Return the numbers of some tensors one after the other; of more than `most`, the first and the last.

    >>> ends([torch.arange(3), torch.arange(3, 10)], most=4)
    array([0., 1., 8., 9.], dtype=float32)
    """
    flat = [part.flatten() for part in parts]
    half, total, begins = most // 2, sum(len(part) for part in flat), 0
    kept: list[Tensor] = []
    for part in flat:
        head = part[: max(0, half - begins)]
        tail = part[max(len(head), total - half - begins) :]
        kept += [each.float().cpu() for each in (head, tail)]
        begins += len(part)
    return torch.cat(kept).numpy() if kept else np.zeros(0, dtype=np.float32)


def _at_offsets(signs: Signs) -> Bytes:
    """Return signs as bits, eight in a byte, with bytes that begin at each of the first eight signs."""
    bits = np.zeros(len(signs) + 2 * _STRIDE, dtype=bool)
    bits[: len(signs)] = signs < 0
    whole = len(signs) // _STRIDE + 1
    return np.stack([np.packbits(bits[offset:])[:whole] for offset in range(_STRIDE)])


def _largest_by_shift(moved: Bytes, fixed: Bytes, size: int) -> npt.NDArray[np.int64]:
    """Return how far from 0 a sum of a block is at most, at each shift from 0 on: of `_at_offsets` of signs.

    The eight shifts that begin at one byte are computed together. All sums of a block fit in a byte.
    """
    rest = size % _STRIDE
    largest = np.zeros((size // _STRIDE, _STRIDE), dtype=np.int64)  # [bytes, offsets]
    for begin in range((size - _BLOCK) // _STRIDE + 1):
        length = size // _STRIDE - begin
        opposite = _ones(moved[:, begin : begin + length] ^ fixed[:length])  # [offsets, bytes]
        for width in (1, 2, 4):  # bytes that are added up already
            opposite = opposite[:, :-width] + opposite[:, width:]
        opposite[rest + 1 :, -1] = _BLOCK // 2  # at these offsets the last block has too few signs
        most, least = opposite.max(axis=1), opposite.min(axis=1)
        largest[begin] = 2 * np.maximum(
            most.astype(np.int64) - _BLOCK // 2, _BLOCK // 2 - least.astype(np.int64)
        )
    return largest.reshape(-1)[: size - _BLOCK + 1]


def _ones(given: Bytes) -> Bytes:
    """Return the number of bits of each byte that are 1."""
    pairs = given - ((given >> np.uint8(1)) & np.uint8(0x55))
    fours = (pairs & np.uint8(0x33)) + ((pairs >> np.uint8(2)) & np.uint8(0x33))
    return (fours + (fours >> np.uint8(4))) & np.uint8(0x0F)


def _at_every_distance(signs: Signs) -> Numbers:
    """Return the sums of products of signs at each distance from 1 on: whole numbers."""
    return products_at_every_shift(signs, signs)[len(signs) :]
