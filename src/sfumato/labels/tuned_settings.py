# SPDX-License-Identifier: Apache-2.0
"""Settings of methods with noisy gradients, tuned on public data.

Settings were chosen by accuracy on rows held out of the training rows of MNIST and Fashion-MNIST, at epsilon
0.1 from public features and at 0.1 and 0.2 from random weights (benchmarks/label_settings.py), before any
test row was used. They are the same for all data. `tuned_method` scales the number of steps and the learning
rate with epsilon and the number of rows, which was tried on a few values only. SelfConv and SelfSpan from
random weights were not searched.

Guarantee  Settings do not depend on the data to be protected, so they cost nothing. A search on labels that
           must be protected costs budget.
"""

import enum
from dataclasses import dataclass, replace
from typing import Any

from sfumato.labels.methods.label_dp_pro import AltConv, SelfConv, SelfSpan
from sfumato.labels.methods.noisy_gradients import LabelDpSgd, NoisyGradients

__all__ = ["Start", "tuned_method"]

_ROWS, _EPSILON, _CLASSES, _DELTA = 60_000, 0.1, 10, 1e-6  # of the search


class Start(enum.Enum):
    """The weights that methods with noisy gradients start from."""

    PUBLIC_FEATURES = "public-features"  # weights that separate clusters of public features
    RANDOM = "random"  # random weights, as in the paper


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tuned:
    """A method for 60,000 rows at epsilon 0.1, and how it changes with what can be afforded."""

    method: NoisyGradients
    steps_power: float = 0.7
    rate_power: float = 0.6


_TERMS: dict[str, Any] = {"epsilon": _EPSILON, "delta": _DELTA, "classes": _CLASSES, "public_size": _ROWS}
# SelfConv and SelfSpan charge each use of a label, so they take few steps with large batches.
_FROM_PUBLIC_FEATURES = (
    _Tuned(
        method=AltConv(
            **_TERMS,
            learning_rate=1.0,
            steps=140,
            averaging=0.8,
            smoothing=1.0,
            clip_columns=True,
            clip_norm=4.0,
            alternative_batch_size=256,
            ema_decay=0.95,
            falling_rate=True,
        ),
        steps_power=0.3,
        rate_power=0.0,
    ),
    _Tuned(method=LabelDpSgd(**_TERMS, learning_rate=0.2, steps=60, clip_norm=6.0), rate_power=0.0),
    _Tuned(
        method=SelfConv(
            **_TERMS,
            learning_rate=1.0,
            expected_batch_size=8192,
            steps=7,
            smoothing=1.0,
            clip_columns=True,
            clip_norm=4.0,
        )
    ),
    _Tuned(
        method=SelfSpan(
            **_TERMS, learning_rate=1.0, expected_batch_size=8192, steps=7, clip_norm=4.0, ema_decay=0.95
        )
    ),
)
_FROM_RANDOM_WEIGHTS = (
    _Tuned(
        method=AltConv(
            **_TERMS,
            learning_rate=1.5,
            steps=220,
            averaging=0.6,
            smoothing=0.85,
            clip_columns=True,
            clip_norm=4.0,
            alternative_batch_size=256,
            falling_rate=True,
        ),
        steps_power=0.0,
        rate_power=0.0,
    ),
    _Tuned(
        method=LabelDpSgd(**_TERMS, learning_rate=0.4, steps=140, clip_norm=2.0),
        steps_power=0.0,
        rate_power=0.0,
    ),
    _Tuned(
        method=SelfConv(
            **_TERMS,
            learning_rate=1.0,
            expected_batch_size=4096,
            steps=14,
            smoothing=0.75,
            clip_columns=True,
            clip_norm=5.0,
        )
    ),
    _Tuned(method=SelfSpan(**_TERMS, learning_rate=0.5, expected_batch_size=4096, steps=14, clip_norm=5.0)),
)
_TUNED = {
    start: {tuned.method.name: tuned for tuned in settings}
    for start, settings in (
        (Start.PUBLIC_FEATURES, _FROM_PUBLIC_FEATURES),
        (Start.RANDOM, _FROM_RANDOM_WEIGHTS),
    )
}


def tuned_method(
    name: str, start: Start, *, epsilon: float, delta: float, classes: int, public_size: int
) -> NoisyGradients:
    """Return a method with tuned settings, for this budget and this many rows.

    Args:
        name: The name of the method: altconv, selfconv, selfspan or dp-sgd.
        start: The weights that the run starts from.
        epsilon: The privacy budget of the run.
        delta: The delta of the guarantee.
        classes: The number of classes.
        public_size: The number of rows, public.

    Returns:
        The method, to pass to `labels.train`.

    >>> tuned_method("dp-sgd", Start.RANDOM, epsilon=1.0, delta=1e-4, classes=3, public_size=1000).steps
    140
    """
    tuned = _TUNED[start][name]
    method, affordable = tuned.method, epsilon * public_size / (_EPSILON * _ROWS)
    method = replace(
        method,
        epsilon=epsilon,
        delta=delta,
        classes=classes,
        public_size=public_size,
        steps=round(method.steps * min(max(affordable**tuned.steps_power, 0.4), 8.0)),
        learning_rate=method.learning_rate * min(max(affordable, 0.1), 10.0) ** tuned.rate_power,
        expected_batch_size=min(method.expected_batch_size, max(1, public_size // 4)),
    )
    if isinstance(method, AltConv):
        return replace(method, alternative_batch_size=min(method.alternative_batch_size, public_size))
    return method
