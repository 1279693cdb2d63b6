# SPDX-License-Identifier: Apache-2.0
"""Which classifier at this epsilon and size? A ranked table from public numbers.

Noise is compared with the number of rows. Each classifier has a curve: the share of what can be learned that
it learned, by the number of rows for each standard deviation of noise. The curves were measured on Adult and
credit default (`benchmarks/models/advice.py`), whose rows are public. 0 is the accuracy of always answering
the most frequent class, and 1 that of boosting without privacy.

Guarantee  None is needed: no data is read. Pass a declared or a noisy number of rows, not a private one.
Not here   What suits the data: a linear model may be all wrong for it, or all that it needs. Where several
           are close, `Search` finds the best one privately.
"""

import math
from dataclasses import dataclass

import numpy as np

from sfumato import _check
from sfumato.accounting.gaussian import stddev_for
from sfumato.estimators.base import EPSILONS, PrivateEstimator
from sfumato.estimators.logistic import LogisticRegression
from sfumato.estimators.naive_bayes import GaussianNB
from sfumato.estimators.trees.boosting import HistGradientBoostingClassifier
from sfumato.estimators.trees.forest import DecisionTreeClassifier, RandomForestClassifier

__all__ = ["CLASSIFIERS", "GRID", "Advice", "advise", "rows_per_noise"]

CLASSIFIERS: dict[str, type[PrivateEstimator]] = {
    "HistGradientBoostingClassifier": HistGradientBoostingClassifier,
    "LogisticRegression": LogisticRegression,
    "RandomForestClassifier": RandomForestClassifier,
    "DecisionTreeClassifier": DecisionTreeClassifier,
    "GaussianNB": GaussianNB,
}
GRID = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)  # rows per standard deviation of noise
_USELESS = 0.1  # a share below this is hardly better than the most frequent class
# Shares at each of `GRID`, of public data sets: delta 0, and delta 1e-5.
_PURE: dict[str, tuple[float, ...]] = {
    "HistGradientBoostingClassifier": (0.0, 0.0, 0.27, 0.49, 0.71, 0.77, 0.83),
    "LogisticRegression": (0.02, 0.02, 0.05, 0.23, 0.43, 0.56, 0.69),
    "RandomForestClassifier": (0.0, 0.0, 0.07, 0.49, 0.53, 0.66, 0.72),
    "DecisionTreeClassifier": (0.0, 0.0, 0.13, 0.27, 0.53, 0.81, 0.81),
    "GaussianNB": (0.0, 0.0, 0.05, 0.35, 0.37, 0.38, 0.48),
}
_GAUSSIAN: dict[str, tuple[float, ...]] = {
    "HistGradientBoostingClassifier": (0.0, 0.0, 0.21, 0.56, 0.8, 0.87, 0.91),
    "LogisticRegression": (0.0, 0.0, 0.0, 0.13, 0.53, 0.69, 0.73),
    "RandomForestClassifier": (0.0, 0.0, 0.0, 0.25, 0.58, 0.69, 0.74),
    "DecisionTreeClassifier": (0.0, 0.0, 0.0, 0.34, 0.68, 0.8, 0.84),
    "GaussianNB": (0.0, 0.0, 0.16, 0.3, 0.3, 0.3, 0.47),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What to expect of one classifier.

    Attributes:
        estimator: Its name in `sfumato.estimators`.
        share: The share of what can be learned that it is expected to learn, from 0 to 1.
        rows_per_noise: The number of rows for each standard deviation of noise.
        useful: Whether it is expected to be better than always answering the most frequent class.
    """

    estimator: str
    share: float
    rows_per_noise: float
    useful: bool

    def __str__(self) -> str:
        verdict = f"{self.share:.0%} of what can be learned" if self.useful else "hardly anything"
        return f"{self.estimator}: {verdict}"


def advise(
    *, epsilon: float, public_size: int, features: int, classes: int = 2, delta: float = 0.0
) -> tuple[Advice, ...]:
    """Rank the classifiers by what they are expected to learn. No data is read, and nothing is charged.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9; at most 500 with a delta.
        public_size: The number of rows, declared or released.
        features: The number of columns, before categories are encoded.
        classes: The number of classes. Rows are divided among more than two.
        delta: The delta of the guarantee; 0 for pure differential privacy.

    Returns:
        What to expect of each classifier, the best first.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> best, *_ = advise(epsilon=1.0, delta=1e-5, public_size=32_561, features=13)
    >>> best.estimator, best.useful
    ('HistGradientBoostingClassifier', True)
    """
    _check.in_range(*EPSILONS, epsilon=epsilon)
    if delta != 0:
        _check.delta(delta=delta)
        _check.in_range(0, 500, epsilon=epsilon)
    _check.count(public_size=public_size, features=features, classes=classes)
    _check.in_range(2, 2**31, classes=classes)
    found = [_expected(name, epsilon, delta, public_size * 2 / classes, features) for name in CLASSIFIERS]
    return tuple(sorted(found, key=lambda one: -one.share))


def rows_per_noise(
    estimator: str, *, public_size: float, features: int, epsilon: float, delta: float = 0.0
) -> float:
    """Return the number of rows over the noise of one release of all features.

    A linear model's rows are clipped to one norm, so their number of features counts less.

    Args:
        estimator: The name of a classifier.
        public_size: The number of rows.
        features: The number of columns.
        epsilon: The privacy budget of a fit.
        delta: The delta of the guarantee; 0 for pure differential privacy.

    Returns:
        The number of rows for each standard deviation of noise.
    """
    linear = estimator == "LogisticRegression"
    if delta == 0:
        return public_size * epsilon / math.sqrt(2) / (math.sqrt(features) if linear else features)
    return public_size / stddev_for(epsilon, delta, 1.0) / (1 if linear else math.sqrt(features))


def _expected(name: str, epsilon: float, delta: float, rows: float, features: int) -> Advice:
    ratio = rows_per_noise(name, public_size=rows, features=features, epsilon=epsilon, delta=delta)
    curve = (_PURE if delta == 0 else _GAUSSIAN)[name]
    share = float(np.interp(math.log(ratio), np.log(GRID), curve))
    return Advice(estimator=name, share=share, rows_per_noise=ratio, useful=share >= _USELESS)
