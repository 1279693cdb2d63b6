# SPDX-License-Identifier: Apache-2.0
"""Private logistic regression: output perturbation, objective perturbation and DP-SGD behind one estimator.

The parameters are public: `clip_norm` (rows are scaled down to it), `classes` and all others. A row whose
label is not one of the classes contributes nothing, like a row that is not finite.

Two classes give one model. More classes give one softmax model for "dp-sgd"; for the other methods one model
for each class against the rest, which together cost epsilon.

The regularization of papers that average over n rows is regularization / n; scikit-learn's C is 1 /
regularization. Unless given, it is chosen from epsilon, delta and clip_norm alone.

Guarantee  (epsilon, delta) for one row with its label, as the chosen mechanism proves it
           (`output_perturbation`, `objective_perturbation`, `descent`). The objective is a SUM over rows plus
           regularization * |w|^2 / 2, so nothing is divided by the number of rows, and add-remove neighbors
           are covered as well as replace-one ones, for which the noise is twice as large.
Source     R2, Section IV.A.
"""

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from sfumato import _check
from sfumato._torch import require_torch
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats, PrivateEstimator
from sfumato.estimators.classes import public_labels
from sfumato.estimators.label_codes import codes
from sfumato.estimators.minimum import LEAST_REGULARIZATION
from sfumato.estimators.objective_perturbation import (
    GaussianObjectivePerturbation,
    PureObjectivePerturbation,
    regularization_for,
)
from sfumato.estimators.output_perturbation import OutputPerturbation
from sfumato.estimators.rows import INTERCEPT, augmented, clipped, row_norm
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator

if TYPE_CHECKING:
    from sfumato.training.privacy.dp_sgd import DpSgd

__all__ = ["LogisticRegression"]

_MOST_EPSILON = 500.0  # with delta above 0: for less noise than that there is no price
_MOST_REGULARIZATION = 1e100  # in squared row norms: noise on what is left of the weights stays in float64
METHODS = ("objective", "output", "dp-sgd")
# Regularization in squared row norms, for noise of n row norms a coordinate in a gradient: a n + b n^2. Found
# on Adult and credit default, which are public; it is a choice of accuracy and never one of privacy.
_FOR_NOISE = {"output": (2.0, 0.0), "objective": (0.17, 0.003)}

Minimizer = OutputPerturbation | PureObjectivePerturbation | GaussianObjectivePerturbation


class LogisticRegression(ClassifierMixin, PrivateEstimator):
    """Logistic regression with differential privacy.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        clip_norm: Public bound on the L2 norm of a row. Longer rows are scaled down to it.
        classes: The labels, in the order of `classes_`. They are never read from y.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        method: "objective" (usually the most accurate), "output", or "dp-sgd" (needs delta > 0).
        regularization: The weight of |w|^2 / 2 beside the sum over rows, above 0. None chooses it from public
            numbers. Not for "dp-sgd".
        fit_intercept: Whether to fit an intercept.
        relation: Which data sets are neighbors: a `Relation` or its name.
        public_size: The number of rows, if it is public; "dp-sgd" scales its steps by it. Under replace-one
            neighbors the size is public, and this must be it.
        steps: The number of steps of "dp-sgd".
        sampling_rate: The chance that a row is in one batch of "dp-sgd".
        learning_rate: The learning rate of "dp-sgd".
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> X, y = np.array([[1.0, 0.2], [-1.0, 0.1]] * 500), np.array(["up", "down"] * 500)
    >>> model = LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=("down", "up")).fit(X, y)
    >>> model.predict([[1.0, 0.0], [-1.0, 0.0]]).tolist()
    ['up', 'down']
    >>> print(model.guarantee_)
    (1, 0)-differential privacy for one row, add-remove neighbors
    """

    def __init__(
        self,
        *,
        epsilon: float,
        clip_norm: float,
        classes: Any,
        delta: float = 0.0,
        method: str = "objective",
        regularization: float | None = None,
        fit_intercept: bool = True,
        relation: Relation | str = "add-remove",
        public_size: int | None = None,
        steps: int = 200,
        sampling_rate: float = 1.0,
        learning_rate: float = 4.0,
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.clip_norm = clip_norm
        self.classes = classes
        self.method = method
        self.regularization = regularization
        self.fit_intercept = fit_intercept
        self.public_size = public_size
        self.steps = steps
        self.sampling_rate = sampling_rate
        self.learning_rate = learning_rate

    # --- what it costs ------------------------------------------------------------------------------------

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_parameters()
        if self.method == "dp-sgd":
            return self._run().event()
        return compose(*[self._minimizer(dimension=1).event()] * self._models())

    def _check_parameters(self) -> None:
        self._check_common()
        _check.scale(clip_norm=self.clip_norm)
        _check.positive(learning_rate=self.learning_rate)
        if self.method not in METHODS:
            raise InvalidParameterError(
                f"method must be one of {', '.join(METHODS)}, but {self.method!r} was given."
            )
        if self.regularization is not None:
            _check.in_range(
                0, _MOST_REGULARIZATION * self._row_norm() ** 2, regularization=self.regularization
            )
            _check.positive(regularization=self.regularization)
        if self.public_size is not None:
            _check.count(public_size=self.public_size)
        if self.delta > 0:
            _check.in_range(0, _MOST_EPSILON, epsilon=self.epsilon)
        self.public_classes()
        if self.method == "dp-sgd":
            self._check_descent()

    def _check_descent(self) -> None:
        require_torch()
        _check.probability(delta=self.delta)
        if self.regularization is not None:
            raise InvalidParameterError(
                "dp-sgd stops early instead of regularizing: leave regularization out, and choose steps."
            )
        if self.public_size is None and not self._relation().replaces:
            raise InvalidParameterError(
                "dp-sgd scales its steps by the number of rows, which is private under "
                f"{self._relation().value} neighbors: pass public_size, a number that may be known."
            )

    def public_classes(self) -> npt.NDArray[Any]:
        """Return `classes` as an array.

        Returns:
            The labels, in order.

        Raises:
            InvalidParameterError: If there are fewer than two different labels, or they are of mixed types.
        """
        return public_labels(self.classes)

    def _models(self) -> int:
        classes = len(self.public_classes())
        return 1 if classes == 2 else classes

    def _run(self) -> "DpSgd":
        from sfumato.estimators import descent  # brings torch, which the other methods do not need

        return descent.planned(
            epsilon=self.epsilon,
            delta=self.delta,
            steps=self.steps,
            sampling_rate=self.sampling_rate,
            relation=self._relation(),
        )

    def _minimizer(self, *, dimension: int) -> Minimizer:
        """Return the mechanism of one model. Its event does not depend on `dimension`."""
        norm, runs, relation = self._row_norm(), self._models(), self._relation()
        chosen = self.regularization or self._chosen(dimension)
        if self.method == "output":
            return OutputPerturbation(
                epsilon=self.epsilon,
                delta=self.delta,
                runs=runs,
                row_norm=norm,
                regularization=chosen,
                relation=relation,
            )
        if self.delta == 0:
            return PureObjectivePerturbation(
                epsilon=self.epsilon / runs, row_norm=norm, regularization=chosen, relation=relation
            )
        return GaussianObjectivePerturbation.calibrated(
            epsilon=self.epsilon,
            delta=self.delta,
            row_norm=norm,
            regularization=chosen,
            relation=relation,
            runs=runs,
        )

    def _chosen(self, dimension: int) -> float:
        """Return a regularization for the noise there will be; where delta is above 0, for any dimension.

        Objective perturbation also needs enough of it for the Hessian's part of epsilon to be small.
        """
        norm, runs, diameter = self._row_norm(), self._models(), self._relation().diameter
        if self.delta == 0:
            noise = math.sqrt(dimension) * diameter * runs / self.epsilon  # one coordinate of it, over `norm`
        else:
            noise = stddev_for(self.epsilon, self.delta, math.sqrt(runs) * diameter)
        linear, square = _FOR_NOISE[self.method]
        wanted = (linear * noise + square * noise**2) * norm**2
        if self.method == "output":
            return max(wanted, LEAST_REGULARIZATION * norm**2)
        return max(wanted, regularization_for(epsilon=self.epsilon / runs, row_norm=norm))

    def _row_norm(self) -> float:
        return row_norm(self.clip_norm, fit_intercept=self.fit_intercept)

    # --- learning -----------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Charge the fit, then learn from the rows with noise.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.
            y: The targets or labels, one for each row. None if there are none.

        Returns:
            The estimator itself, with its results in attributes that end in an underscore.

        Raises:
            InvalidParameterError: If a parameter is out of range, or X or y has a wrong shape or type.
                Nothing is spent.
            BudgetExceededError: If the account does not cover the fit. Nothing is spent.
            QueryFailedError: If the data could not be read or computed on. The fit stays spent.
        """
        return super().fit(X, y)

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows = self._matrix(X, reset=True)
        labels = self._column(y, rows=len(rows))
        self._require_public_size(len(rows))
        classes = self.public_classes()
        known = codes(labels, classes)
        present = (known >= 0) & np.isfinite(rows).all(axis=1)
        constant = INTERCEPT * self.clip_norm if self.fit_intercept else 0.0
        whole = augmented(clipped(rows, clip_norm=self.clip_norm), present, constant=constant)
        weights = (self._descended if self.method == "dp-sgd" else self._minimized)(whole, known, generator)
        self.classes_ = classes
        self.coef_ = weights[:, : rows.shape[1]]
        self.intercept_ = constant * weights[:, -1] if self.fit_intercept else np.zeros(len(weights))

    def _require_public_size(self, rows: int) -> None:
        if self._relation().replaces and self.public_size not in (None, rows):
            raise InvalidParameterError(
                f"public_size={self.public_size} is not the number of rows, which is public under "
                f"{self._relation().value} neighbors. Pass the right one, or leave it out."
            )

    def _minimized(self, rows: Floats, known: npt.NDArray[np.int64], generator: Generator) -> Floats:
        mechanism = self._minimizer(dimension=rows.shape[1])
        self.regularization_ = mechanism.regularization
        positive = [1] if self._models() == 1 else range(self._models())
        return np.stack(
            [mechanism.release(rows, np.where(known == k, 1.0, -1.0), generator=generator) for k in positive]
        )

    def _descended(self, rows: Floats, known: npt.NDArray[np.int64], generator: Generator) -> Floats:
        from sfumato.estimators import descent

        weights = descent.descend(
            rows / self._row_norm(),
            np.maximum(known, 0),
            run=self._run(),
            num_classes=len(self.public_classes()),
            public_size=self.public_size or max(1, len(rows)),
            delta=self.delta,
            learning_rate=self.learning_rate,
            generator=generator,
        )
        scaled = weights / self._row_norm()
        return scaled[1:] - scaled[:1] if len(scaled) == 2 else scaled

    # --- using it -----------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> Floats:
        """Return the score of each row, clipped as in `fit`.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            One score for each row if there are two classes, else one for each row and class.
        """
        check_is_fitted(self, "coef_")
        with np.errstate(all="ignore"):  # a warning would tell of a row
            scores = clipped(self._matrix(X, reset=False), clip_norm=self.clip_norm) @ self.coef_.T
            scores += self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most likely class of each row.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The classes.
        """
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The probabilities, [rows, classes], in the order of `classes_`.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        if self.method == "dp-sgd":
            return softmax(scores, axis=1)
        return softmax(log_expit(scores), axis=1)  # each model's own chance, over their sum

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of `predict_proba`.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The logarithms, [rows, classes].
        """
        with np.errstate(all="ignore"):
            return np.log(self.predict_proba(X))
