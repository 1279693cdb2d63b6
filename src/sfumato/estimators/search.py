# SPDX-License-Identifier: Apache-2.0
"""Private hyperparameter search: the best of a random number of private trials, charged as one selection.

`epsilon` and `delta` are those of the whole search. The budgets of the trials are scaled to fit: each private
step of the estimator keeps its share.

Each row goes to the validation part by a coin of its own, drawn before anything is fitted. Coins do not
depend on the data, so a row is in one part: under add-remove neighbors a trial costs the larger of fit and
score; under replace-one their composition is charged.

A score is a number in [0, 1] for each row, clipped. The score of a model is the sum, so one row moves it by 1
at most. The default is whether the prediction is right.

Guarantee  One trial draws a candidate uniformly, fits it privately on some rows, and scores it on the others
           with Laplace noise. Only the model of the best trial and its noisy score are kept. The number of
           trials is not released; it has the truncated negative binomial distribution. The cost is a
           `SelectionDpEvent` (Papernot and Steinke 2022, Theorem 2; with delta 0 it is (2 + shape) times a
           trial, 3 for the geometric law of Liu and Talwar 2019).
Not here   Grids: every candidate is listed, and a trial may draw any of them, some more than once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from sfumato import _check
from sfumato.accounting import composition
from sfumato.accounting.calibrate import search as smallest_affordable
from sfumato.accounting.events import DpEvent, ParallelDpEvent, SelectionDpEvent, compose, to_json
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import quick_epsilon
from sfumato.accounting.selection import stop_for
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats, PrivateEstimator
from sfumato.estimators.label_codes import same
from sfumato.estimators.pricing import event_of, private_steps, require_fitting
from sfumato.estimators.public_facts import PublicFacts
from sfumato.ledger.account import Account
from sfumato.mechanisms.additive import Laplace
from sfumato.mechanisms.random import Generator, uniform_below, words

__all__ = ["Search", "draw_trials", "is_right"]

RowScore = Callable[[Any, Any, Any], Floats]

_SCORE_SHARE = 0.2  # of a trial's epsilon, for its score, where fit and score are both charged
_DELTA_SHARE = 0.5  # of delta, for the deltas that the trials' own budgets are stated at


def is_right(model: Any, X: Any, y: Any) -> Floats:
    """Return 1.0 for each row that the model predicts right, else 0.0."""
    return same(np.asarray(y), np.asarray(model.predict(X))).astype(np.float64)


def draw_trials(shape: float, stop: float, *, generator: Generator | None = None) -> int:
    """Return a number of trials with the truncated negative binomial law; at shape 1 the geometric one.

    >>> draw_trials(1.0, 1 - 1e-12)
    1
    """
    uniform = int(words(1, generator)[0]) / 2.0**64
    # P[K = 1] = (1 - stop) shape / (stop^-shape - 1), in the limit of shape 0 (1 - stop) / log(1 / stop);
    # then P[K = k + 1] = P[K = k] (1 - stop) (k + shape) / (k + 1).
    log_stop = math.log(stop)
    odds = -log_stop if shape == 0 else math.expm1(-shape * log_stop) / shape
    chance = (1 - stop) / odds
    trials, below = 1, chance
    while uniform >= below and chance > 2.0**-70:
        chance *= (1 - stop) * (trials + shape) / (trials + 1)
        trials, below = trials + 1, below + chance
    return trials


def _has_probabilities(search: Any) -> bool:
    return hasattr(search.estimator, "predict_proba")


class Search(MetaEstimatorMixin, PrivateEstimator):
    """Fit the best of several candidates, in place of `GridSearchCV`.

    Args:
        estimator: A private estimator or a pipeline of such. Budgets in it are taken as shares of that of the
            search.
        candidates: The settings to choose from: dictionaries as `set_params` takes them. A candidate must not
            change an epsilon or a delta.
        epsilon: The privacy budget of the whole search, from 1e-9 to 1e9.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        mean_trials: How many trials there are on average.
        shape: The shape of the law of their number: 1 geometric, 0 logarithmic (cheaper, more often one
            trial).
        validation: The share of rows that scores are computed on.
        row_score: Maps (model, X, y) to one number in [0, 1] for each row. None scores whether the prediction
            is right.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> from sfumato.estimators import LogisticRegression
    >>> search = Search(
    ...     LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=(0, 1)),
    ...     candidates=[{"regularization": 1.0}, {"regularization": 100.0}],
    ...     epsilon=3.0,
    ... )
    >>> X = np.linspace(-1, 1, 2000)[:, None]
    >>> fitted = search.fit(X, (X[:, 0] > 0).astype(int))
    >>> sorted(fitted.best_params_), print(fitted.guarantee_)
    (3, 0)-differential privacy for one row, add-remove neighbors
    (['regularization'], None)
    """

    def __init__(
        self,
        estimator: Any,
        *,
        candidates: Sequence[Mapping[str, Any]],
        epsilon: float,
        delta: float = 0.0,
        mean_trials: float = 10.0,
        shape: float = 1.0,
        validation: float = 0.2,
        row_score: RowScore | None = None,
        relation: Relation | str = "add-remove",
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
        self.estimator = estimator
        self.candidates = candidates
        self.mean_trials = mean_trials
        self.shape = shape
        self.validation = validation
        self.row_score = row_score

    def public_classes(self) -> npt.NDArray[Any] | None:
        """Return the labels that y may have: those of the estimator.

        Returns:
            The labels, or None if y is a number.
        """
        found = [step.public_classes() for step in private_steps(self.estimator)]
        return next((classes for classes in found if classes is not None), None)

    # --- what it costs ------------------------------------------------------------------------------------

    def event(self) -> DpEvent:
        """Return the event of the whole search, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._found = self._factor()
        for candidate in self.candidates:
            self._check_steps(candidate, self._found)
        return self._selection(self._found)

    def _selection(self, factor: float) -> DpEvent:
        trials = [self._trial(candidate, factor) for candidate in self.candidates]
        different = {to_json(trial): trial for trial in trials}
        return SelectionDpEvent(
            tuple(different.values()), float(self.shape), stop_for(self.shape, self.mean_trials)
        )

    def _trial(self, candidate: Mapping[str, Any], factor: float) -> DpEvent:
        fit = event_of(self._model(candidate, factor))
        score = self._scorer(factor).event()
        return compose(fit, score) if self._relation().replaces else ParallelDpEvent((fit, score))

    def _factor(self) -> float:
        """Return what the estimator's own budgets are multiplied by to fit into the search's."""
        self._check_search()

        def cost_of(factor: float) -> float:
            event = self._selection(factor)
            if self.delta == 0:
                return composition.basic_epsilon(event, delta=0.0, relation=self._relation())
            return quick_epsilon(event, delta=self.delta, relation=self._relation())

        if self.delta == 0:  # the price is in proportion to the factor
            return self.epsilon / cost_of(1.0) * (1 - 1e-12)
        return smallest_affordable(cost_of, epsilon=self.epsilon, bracket=(1e-3, 1e3), cost_rises=True)

    def _check_search(self) -> None:
        self._check_common()
        _check.non_negative(shape=self.shape)
        _check.probability(validation=self.validation)
        if not (_is_number(self.mean_trials) and 1 < self.mean_trials < math.inf):
            raise InvalidParameterError(f"mean_trials must be above 1, but {self.mean_trials!r} was given.")
        if not self.candidates:
            raise InvalidParameterError("candidates must list at least one dictionary of settings.")
        for name in (name for candidate in self.candidates for name in candidate):
            if name.split("__")[-1] in ("epsilon", "delta", "relation", "privacy_unit", "account"):
                raise InvalidParameterError(
                    f"a candidate must not set {name!r}: what a trial costs is fixed before the search."
                )
        for candidate in ({}, *self.candidates):
            self._check_steps(candidate, 1.0)

    def _check_steps(self, candidate: Mapping[str, Any], factor: float) -> None:
        """Refuse now what a trial's own fit would refuse, or charge, after the search has paid."""
        steps = private_steps(self._model(candidate, factor))
        if any(step.account is not None for step in steps):
            raise InvalidParameterError(
                "the search is charged as a whole: give account=... to it, and not to its estimator or a "
                "step of a candidate."
            )
        for step in steps:
            step._check_common()

    def _check_facts(self, facts: PublicFacts) -> None:
        super()._check_facts(facts)
        unnamed = PublicFacts(features=facts.features, names=None, has_target=facts.has_target)
        for candidate in self.candidates:
            require_fitting(self._model(candidate, self._found), unnamed)  # `event` has computed the factor

    def _own_epsilon(self) -> float:
        return sum(step.epsilon for step in private_steps(self.estimator))

    def _scorer(self, factor: float) -> Laplace:
        """Return the noise on a sum of row scores in [0, 1]."""
        share = _SCORE_SHARE if self._relation().replaces else 1.0
        return Laplace.calibrated(
            epsilon=share * factor * self._own_epsilon(), sensitivity=1.0, relation=self._relation()
        )

    def _model(self, candidate: Mapping[str, Any], factor: float, noise: Generator | None = None) -> Any:
        """Return a fresh estimator with the candidate's settings and its part of the budget."""
        model: Any = clone(self.estimator)
        # A candidate may replace a step: each trial has one of its own, or trials would share what they fit.
        model.set_params(**{name: clone(value, safe=False) for name, value in candidate.items()})
        steps = private_steps(model)
        whole = sum(step.delta for step in steps)
        for step in steps:
            delta = step.delta * _DELTA_SHARE * self.delta / whole if whole > 0 else 0.0
            pure = "delta" not in step.get_params(deep=False)
            step.set_params(
                epsilon=step.epsilon * factor,
                relation=self._relation(),
                privacy_unit=self.privacy_unit,
                random_state=noise,
                **({} if pure else {"delta": delta}),
            )
        return model

    # --- searching ----------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Charge the whole search, run it, and keep the model of the best trial.

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
        for name in ("best_params_", "best_estimator_", "best_score_", "classes_"):
            vars(self).pop(name, None)  # of an earlier fit: one that fails leaves nothing
        return super().fit(X, y)

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows = self._matrix(X, reset=True)
        labels = self._column(y, rows=len(rows))
        held = words(len(rows), generator) < np.uint64(int(self.validation * 2.0**64))
        factor, best, found = self._found, -math.inf, None  # `fit` has computed the event
        stop = stop_for(self.shape, self.mean_trials)
        for trial in range(draw_trials(self.shape, stop, generator=generator)):
            candidate = self.candidates[int(uniform_below(len(self.candidates), 1, generator)[0])]
            noise = generator.fork("trial", trial)
            model = self._model(candidate, factor, noise).fit(rows[~held], labels[~held])
            score = self._noisy_score(model, rows[held], labels[held], factor, noise)
            if found is None or score > best:
                best, found = score, (dict(candidate), model)
        if found is None:  # there is at least one trial
            raise InvalidParameterError("a search needs at least one trial.")
        # Only now: after a trial that fails, nothing of the trials before it may be seen.
        self.best_params_, self.best_estimator_ = found
        self.best_score_ = best  # a sum over validation rows, with noise
        for step in private_steps(self.best_estimator_):
            del step.guarantee_, step.event_, step.notes_  # one trial's: what holds is the search's
        if hasattr(self.best_estimator_, "classes_"):
            self.classes_ = self.best_estimator_.classes_

    def _noisy_score(
        self, model: Any, X: Floats, y: npt.NDArray[Any], factor: float, generator: Generator
    ) -> float:
        scored = (self.row_score or is_right)(model, X, y) if len(X) else np.zeros(0)
        each = np.clip(np.nan_to_num(np.asarray(scored, dtype=np.float64)), 0.0, 1.0)
        if each.shape != (len(X),):
            raise InvalidParameterError("row_score must return one number for each row.")
        total = float(np.rint(each * 2.0**20).sum()) / 2.0**20  # exact, in whatever order it is added up
        return self._scorer(factor).release(total, generator=generator)

    # --- using what was found -----------------------------------------------------------------------------

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the predictions of the best model.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The predictions, one for each row.
        """
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """Return the probabilities of the best model.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The probabilities, [rows, classes].
        """
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def __sklearn_tags__(self) -> Any:
        """Return the tags for scikit-learn: those of the estimator."""
        tags: Any = super().__sklearn_tags__()
        own: Any = get_tags(self.estimator)
        tags.estimator_type, tags.classifier_tags = own.estimator_type, own.classifier_tags
        tags.regressor_tags, tags.input_tags = own.regressor_tags, own.input_tags
        tags.target_tags.required = True  # a trial is scored by it
        return tags

    def score(self, X: Any, y: Any) -> float:
        """Return the best model's own score. On private rows it is not a private release.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.
            y: The targets or labels, one for each row.

        Returns:
            The score.
        """
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
