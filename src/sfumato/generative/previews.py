# SPDX-License-Identifier: Apache-2.0
"""Grids of samples that are written while a generator learns.

Guarantee  A grid shows what a generator draws that was made from noisy steps so far. The charge of the fit
           covers all of these steps, so a grid costs nothing. Drawing changes nothing: numbers come from a
           source of their own with a fixed seed, and every part goes back into the mode it was in. When
           grids are drawn depends on the number of steps alone.
           A run of DP-SGD that may be resumed draws a step after its checkpoint is written, so that no step
           is shown that is taken again with other noise (`Evaluation.on_evaluation`).
Edge cases The grid has ten images of each of the first ten classes, a row each; without classes it has ten
           rows. Images with neither 1 nor 3 channels have no grid.
Failure    A grid that cannot be written is a warning: a run that was paid for goes on.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import torch

from sfumato import _files
from sfumato.report.pictures import picture_file
from sfumato.training.engine.evaluation_mode import evaluating

__all__ = ["NO_PREVIEWS", "Previews"]

_TIMES = 10  # grids of a phase
_ROWS, _COLUMNS = 10, 10
_SEED = 0  # public: all grids are drawn from the same random numbers, so that they can be compared


class Previews:
    """Writes grids of samples into a folder; without a folder it does nothing.

    Args:
        folder: Where grids are written. It is made with the first one.
        phase: What file names begin with.

    >>> Previews(None).due(100, steps=1000)
    False
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, phase: str = "step") -> None:
        self._folder, self._phase = None if folder is None else Path(folder), phase

    def during(self, phase: str) -> "Previews":
        """Return the same for another phase of a fit.

        Args:
            phase: What file names begin with.

        Returns:
            What writes into the same folder.
        """
        return Previews(self._folder, phase=phase)

    def due(self, step: int, *, steps: int) -> bool:
        """Return whether a grid is drawn after a step: ten times, and after the last one.

        Args:
            step: How many steps were taken.
            steps: How many are taken in all.

        Returns:
            Whether it is.
        """
        return self._folder is not None and (step == steps or step % max(1, steps // _TIMES) == 0)

    def draw(self, sampler: Any, step: int) -> None:
        """Write a grid of what a sampler draws now.

        Args:
            sampler: The sampler, a torch module. It is not changed.
            step: How many steps were taken.
        """
        if self._folder is None or sampler.settings["shape"][0] not in (1, 3):
            return
        place = self._folder / f"{self._phase}-{step:05d}.png"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _files.write_whole(place, picture_file(_rows(sampler)))
        except OSError as error:
            warnings.warn(f"the grid {os.fspath(place)!r} cannot be written: {error.strerror}.", stacklevel=2)


NO_PREVIEWS = Previews(None)


@torch.no_grad()
def _rows(sampler: Any) -> dict[str, Any]:
    classes = sampler.settings["classes"]
    labels = torch.arange(_ROWS if classes == 1 else min(classes, _ROWS)).repeat_interleave(_COLUMNS)
    device = next(sampler.parameters()).device
    draws = torch.Generator(device).manual_seed(_SEED)
    with evaluating(sampler):
        images = sampler.sample((labels % classes).to(device), draws).float().cpu()
    return {str(row): part.numpy() for row, part in enumerate(images.split(_COLUMNS))}
