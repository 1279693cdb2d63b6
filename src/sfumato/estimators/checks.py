# SPDX-License-Identifier: Apache-2.0
"""The checks of scikit-learn that private estimators fail, each for a reason of privacy.

`sklearn.utils.estimator_checks.check_estimator` passes except for the checks listed here, and each of these
fails. The tests compare with this list, and the page on estimators shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfumato.estimators.base import PrivateEstimator
from sfumato.estimators.classes import PublicClassifier
from sfumato.estimators.k_means import KMeans
from sfumato.estimators.linear import LinearRegressor, OneFeatureRegressor
from sfumato.estimators.logistic import LogisticRegression
from sfumato.estimators.row_steps import RowStep
from sfumato.estimators.search import Search
from sfumato.estimators.trees.boosting import HistGradientBoostingClassifier

__all__ = ["UNMET", "Unmet", "expected_failed_checks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmet:
    """Checks that fail for one reason, and the estimators that they fail of."""

    checks: tuple[str, ...]
    of: str  # in words
    why: str
    concerns: Callable[[Any], bool]


def _of_matrices(estimator: Any) -> bool:
    return not isinstance(estimator, OneFeatureRegressor)  # of which scikit-learn checks little


def _has_target(estimator: Any) -> bool:
    return isinstance(
        estimator, PublicClassifier | LogisticRegression | LinearRegressor | Search
    ) and _of_matrices(estimator)


def _has_classes(estimator: Any) -> bool:
    return isinstance(estimator, PrivateEstimator) and estimator.public_classes() is not None


def _has_many_classes(estimator: Any) -> bool:
    scored = isinstance(estimator, LogisticRegression | HistGradientBoostingClassifier)
    return scored and len(estimator.public_classes()) > 2


UNMET = (
    Unmet(
        checks=("check_dtype_object",),
        of="all but lines",
        why="the row of an entry that is not a number contributes nothing; an error would reveal that there "
        "is one",
        concerns=_of_matrices,
    ),
    Unmet(
        checks=("check_estimators_empty_data_messages",),
        of="all but lines",
        why="zero rows are data like any other: their number is private",
        concerns=_of_matrices,
    ),
    Unmet(
        checks=("check_supervised_y_no_nan",),
        of="classifiers, `AdaSSP`, `TukeyEM`, `Search`",
        why="a row whose label or target is not finite contributes nothing; an error would reveal it",
        concerns=_has_target,
    ),
    Unmet(
        checks=(
            "check_classifiers_classes",
            "check_classifiers_regression_target",
            "check_classifiers_train",
        ),
        of="classifiers, and `Search` over them",
        why="labels that are none of the public `classes` contribute nothing; the checks use others",
        concerns=_has_classes,
    ),
    Unmet(
        checks=("check_decision_proba_consistency",),
        of="`LogisticRegression` and boosting, of three classes and more",
        why="a probability depends on the scores of all classes, not on one",
        concerns=_has_many_classes,
    ),
    Unmet(
        checks=("check_clustering",),
        of="`KMeans`",
        why="the labels of the fitted rows are private, so there is no `labels_`",
        concerns=lambda estimator: isinstance(estimator, KMeans),
    ),
    Unmet(
        checks=(
            "check_transformer_data_not_an_array",
            "check_transformer_general",
            "check_transformer_preserve_dtypes",
        ),
        of="`Normalizer`, `Binarizer`",
        why="`fit_transform` returns rows before they are read, because a private step after it is not "
        "charged yet",
        concerns=lambda estimator: isinstance(estimator, RowStep),
    ),
)


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    """Return the checks of scikit-learn that fail by design, and why.

    Pass the result to `check_estimator(model, expected_failed_checks=...)` or to `parametrize_with_checks`.

    Args:
        estimator: A private estimator.

    Returns:
        The reason for each check, by its name.

    >>> from sfumato.estimators import AdaSSP
    >>> model = AdaSSP(epsilon=1.0, delta=1e-6, clip_norm=1.0, target_bounds=(0, 1))
    >>> sorted(expected_failed_checks(model))
    ['check_dtype_object', 'check_estimators_empty_data_messages', 'check_supervised_y_no_nan']
    """
    return {check: unmet.why for unmet in UNMET if unmet.concerns(estimator) for check in unmet.checks}
