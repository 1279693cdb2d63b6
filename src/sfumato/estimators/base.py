# SPDX-License-Identifier: Apache-2.0
"""The base of all private estimators: a fit is charged before it reads the data.

Parameters are public: the size of the noise, and so `event`, is known before a fit. So are the columns of the
data (`public_facts`): parameters are checked against them before the charge. Otherwise only the shape and the
type of the data are ever checked (`reading`), and no message contains what was found.

`fit` takes no `sample_weight`: a weight multiplies the sensitivity of its row.

`sklearn.base.clone` keeps the account and the generator: a clone spends from the same budget. A pickled
estimator keeps neither, and must be given an account again before it can fit.

Guarantee  `fit` charges the estimator's event before any row is read; what is refused has touched nothing.
           From then on it is spent, whatever fails. `guarantee_` is the price of that event, `event_`.
Unit       One row of X, with its label or target, is one privacy unit.
Edge cases A row with a NaN or an infinity in it, or with an entry that is not a number, contributes nothing.
           The number of such rows is not reported.
Not here   Results of a fitted model on private rows (`score`, `predict`, `transform`) are not private
           releases: they are computed from those rows without noise. Do not publish them; use public rows.
"""

import copy
import warnings
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import get_tags

from sfumato import _check
from sfumato.accounting import composition
from sfumato.accounting.default_delta import delta_note
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError, QueryFailedError, SfumatoError
from sfumato.estimators.public_facts import PublicFacts
from sfumato.estimators.reading import Floats, entries_of, matrix_of, require_features, same_features
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, SeededGenerator, resolve, study_note

__all__ = ["EPSILONS", "Floats", "PrivateEstimator", "guarantee_of"]

EPSILONS = (1e-9, 1e9)  # outside, noise or its price could leave float64, and a fit fail after it has paid
_SHARED = ("account", "random_state")  # what a clone keeps and a pickle leaves behind


def guarantee_of(event: DpEvent, *, delta: float, relation: Relation, privacy_unit: str = "row") -> Guarantee:
    """Return what an event promises at a delta; at 0, what it promises as pure differential privacy."""
    if delta == 0:
        epsilon = composition.basic_epsilon(event, delta=0.0, relation=relation)
    else:
        epsilon = price(event, delta=delta, relation=relation).epsilon
    return Guarantee(epsilon=epsilon, delta=delta, relation=relation, privacy_unit=privacy_unit)


class PrivateEstimator(BaseEstimator):
    """The base class of private estimators: scikit-learn's API, with a charge before the data is read.

    A subclass lists all parameters in its own `__init__` (scikit-learn reads their names there) and passes
    the common ones on, unchanged. It returns the cost of a fit in `event`, and computes in `_learn`.

    Only `fit` is private: `score` and `predict` of private rows, including those it was fitted on, are not
    private releases.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.
    """

    _FLAT: ClassVar[bool] = False  # whether X may be one feature without an axis of its own

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float = 0.0,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.privacy_unit = privacy_unit
        self.account = account
        self.purpose = purpose
        self.random_state = random_state

    # --- what a subclass says of itself -------------------------------------------------------------------

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        raise NotImplementedError

    def public_classes(self) -> npt.NDArray[Any] | None:
        """Return the labels that y may have, in order.

        Returns:
            The labels, or None if y is a number or there is none.
        """
        return None

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        """Refuse parameters that do not fit so many features, of these names. Nothing was charged yet."""

    def _width_after(self, features: int) -> int:
        """Return how many features `transform` returns."""
        return features

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        """Compute from data that was paid for, and store the results: names that end in "_"."""
        raise NotImplementedError

    def _name(self) -> str:
        """Return the purpose for the ledger if none is given."""
        return f"fit of {type(self).__name__}"

    # --- fitting ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Charge the fit, then learn from the rows with noise.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.
            y: The targets or labels, one for each row. None if there are none.

        Returns:
            The estimator itself, with its results in attributes that end in an underscore.

        Raises:
            InvalidParameterError: If a parameter is out of range, or does not fit the columns of an array or
                a frame: nothing is spent. If X or y otherwise has a wrong shape or type: the fit stays spent,
                as the data was looked at.
            BudgetExceededError: If the account does not cover the fit. Nothing is spent.
            QueryFailedError: If the data could not be read or computed on. The fit stays spent.
        """
        self._check_common()
        event, generator = self.event(), self._generator()
        self._check_facts(PublicFacts.of(X, y))
        promised = guarantee_of(
            event, delta=self.delta, relation=self._relation(), privacy_unit=self.privacy_unit
        )
        if self.account is None:
            self._learn_quietly(X, y, generator)
        else:
            self._require_unit(self.account)
            purpose, relation = self.purpose or self._name(), promised.relation
            with self.account.spend(event, purpose=purpose, relation=relation, generator=generator):
                self._learn_quietly(X, y, generator)
        notes = (study_note(generator), record_note(self.account), delta_note(self.delta))
        self.event_, self.guarantee_ = event, promised
        self.notes_ = tuple(note for note in notes if note is not None)
        return self

    def _check_common(self) -> None:
        _check.in_range(*EPSILONS, epsilon=self.epsilon)
        _check.in_range(0, 1, delta=self.delta)
        if self.delta != 0:
            _check.delta(delta=self.delta)
        _check.text(privacy_unit=self.privacy_unit)
        self._relation()
        if isinstance(self.account, _LostAccount):
            self.account.refuse()
        if self.account is None and self.purpose is not None:
            raise InvalidParameterError(
                "a purpose is written into an account, but none was given: pass account=..."
            )

    def require_fitting(self, facts: PublicFacts) -> PublicFacts:
        """Refuse what `fit` would refuse before it charges, from what is public. Nothing is read or charged.

        Args:
            facts: What is known of the data before it is read.

        Returns:
            What is known of the rows that `transform` returns.

        Raises:
            InvalidParameterError: If a parameter is out of range or does not fit the columns, or there is no
                target where one is needed.

        >>> from sfumato.estimators import PCA
        >>> from sfumato.estimators.public_facts import PublicFacts
        >>> facts = PublicFacts(features=3, names=None, has_target=False)
        >>> PCA(n_components=2, epsilon=1.0, clip_norm=1.0).require_fitting(facts).features
        2
        """
        self._check_common()
        self.event()
        self._generator()
        self._check_facts(facts)
        width = None if facts.features is None else self._width_after(facts.features)
        return PublicFacts(features=width, names=None, has_target=facts.has_target)

    def _check_facts(self, facts: PublicFacts) -> None:
        if get_tags(self).target_tags.required and not facts.has_target:
            raise self._no_target()
        if facts.features is not None:
            require_features(facts.features)
            self._check_features(facts.features, facts.names)

    def _no_target(self) -> InvalidParameterError:
        return InvalidParameterError(
            f"{type(self).__name__} requires y to be passed, but the target y is None."
        )

    def _relation(self) -> Relation:
        return Relation.parse(self.relation)

    def _generator(self) -> Generator:
        """Return the source of randomness of one fit: a seed starts anew each time."""
        state = self.random_state
        return SeededGenerator(int(state)) if isinstance(state, int | np.integer) else resolve(state)

    def _require_unit(self, account: Account) -> None:
        if account.privacy_unit != self.privacy_unit:
            raise InvalidParameterError(
                f"account {account.name!r} protects one {account.privacy_unit!r}, but privacy_unit="
                f"{self.privacy_unit!r} was given. Pass the account's unit, if each row is one."
            )

    def _learn_quietly(self, X: Any, y: Any, generator: Generator) -> None:
        try:
            with np.errstate(all="ignore"):  # a warning, too, may depend on one row
                return self._learn(X, y, generator=generator)
        except SfumatoError:
            raise
        except Exception:  # its message and its class may tell what it read
            pass  # and is raised below, so that our error does not carry theirs along
        raise QueryFailedError(
            f"{self._name()}: the data could not be read or computed. What was charged for it stays spent, "
            "as part of it may have been seen. Check that X has numbers in it, one row a unit."
        )

    # --- reading ------------------------------------------------------------------------------------------

    def _matrix(self, X: Any, *, reset: bool) -> Floats:
        """Return X as float64 [rows, features]; `reset` in `fit`, else it must look as it did in `fit`.

        Values are not looked at: NaN and infinities are still in it, and NaN for what is no number.
        """
        rows = matrix_of(X, flat=self._FLAT)
        same_features(self, X, rows, reset=reset)
        return rows

    def _column(self, y: Any, *, rows: int) -> npt.NDArray[Any]:
        """Return y as one column of as many entries as there are rows, of whatever type."""
        if y is None:
            raise self._no_target()
        column = entries_of(y)
        if column.ndim == 2 and column.shape[1] == 1:
            message = "A column-vector y was passed when a 1d array was expected: give it one axis."
            warnings.warn(message, DataConversionWarning, stacklevel=2)
            column = column[:, 0]
        if column.ndim != 1:
            raise InvalidParameterError("y should be a 1d array: one entry for each row of X.")
        if len(column) != rows:
            raise InvalidParameterError("y must have one entry for each row of X.")
        return column

    def __sklearn_tags__(self) -> Any:
        """Return the tags for scikit-learn: rows need not be finite, and secure noise is not repeatable."""
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.random_state is None
        return tags

    # --- copying ------------------------------------------------------------------------------------------

    def __sklearn_clone__(self) -> Self:
        kept = {name: value for name, value in self.get_params(deep=False).items() if name in _SHARED}
        copied = {n: v for n, v in self.get_params(deep=False).items() if n not in _SHARED}
        cloned: dict[str, Any] = {name: clone(value, safe=False) for name, value in copied.items()}
        return type(self)(**kept, **cloned)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            setattr(twin, name, value if name in _SHARED else copy.deepcopy(value, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        state = dict(state)
        if state.get("account") is not None:
            state["account"] = _LostAccount()
        if not isinstance(state.get("random_state"), int | np.integer):
            state["random_state"] = None
        return state


class _LostAccount:
    """Takes the place of the account of an estimator that was pickled."""

    def refuse(self) -> NoReturn:
        raise InvalidParameterError(
            "this estimator was charged to an account before it was pickled, and an account cannot be. Give "
            "it one with set_params(account=...), or call set_params(account=None) to record nothing."
        )
