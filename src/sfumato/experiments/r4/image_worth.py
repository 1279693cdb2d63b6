# SPDX-License-Identifier: Apache-2.0
"""What the images of a generator are worth: figures for a table, and a grid of some of them."""

from typing import Any, Final

import numpy as np

from sfumato.experiments.experiment import Case, Scale
from sfumato.experiments.r4 import generators
from sfumato.experiments.r4.pictures import as_text
from sfumato.generative.evaluation import find_collapse, frechet_distance

__all__ = ["measured_images"]

_JUDGED: Final = 5000  # images of which the distance is measured


def measured_images(case: Case, scale: Scale) -> dict[str, Any]:
    """Fit a generator, and measure its images; the first seed also keeps a grid of them.

    Args:
        case: `generator`, one of the settings, and `seed`.
        scale: How much is run, and where.

    Returns:
        The guarantee and the figures. Images without classes have no accuracy.
    """
    seed = case["seed"]
    made = generators.drawn_images(case["generator"], scale, seed=seed)
    some = made.synthetic.take(np.arange(min(_JUDGED, len(made.synthetic))))
    distance = frechet_distance(some, made.holdout, seed=seed)
    return {
        **generators.guarantee_of(made.generator),
        "accuracy": _accuracy(made, scale, seed),
        "distance": distance.distance,
        "floor": distance.floor,
        "collapsed": _collapsed(made, some, seed),
        "pictures": as_text(made.synthetic.features) if seed == generators.seeds(scale)[0] else None,
    }


def _accuracy(made: generators.Images, scale: Scale, seed: int) -> float | None:
    """Return the accuracy on test images of a network that learned from the generated ones."""
    if made.generator.classes == 1:
        return None
    return generators.scored(made.synthetic, made.holdout, scale, seed=seed, names=["CNN"])["CNN"].accuracy


def _collapsed(made: generators.Images, some: Any, seed: int) -> bool:
    """Whether there is a sign of collapse; without classes, the generator's own findings decide."""
    if made.generator.classes == 1:
        return bool(made.generator.findings)
    return find_collapse(some, holdout=made.holdout, seed=seed).collapsed
