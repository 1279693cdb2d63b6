# SPDX-License-Identifier: Apache-2.0
"""Methods that release labels once, with noise.

The caller is charged for `event()` before it calls `release`. Learning from what `release` returns costs
nothing (`learning`).

Guarantee  `release` reveals each label through noise, once. `event()` is what a unit with up to
           `contribution_bound` labels is charged for all of them. Both are pure: delta is zero.
Neighbors  Replace-label: the labels of one unit are replaced, features are public.
Unit       One label, or a user who owns up to `contribution_bound` labels: then each has an equal share of
           epsilon, and the user is charged for all. Who owns which row is public
           (`input_checks.checked_owners`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from sfumato import _check
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import ArrayLike, check_classes, checked_labels, checked_prior
from sfumato.labels.learning import Released, Teach, soft_cross_entropy
from sfumato.labels.methods import alibi, multistage, randomized_response
from sfumato.labels.methods.prior_response import RRWithPrior
from sfumato.labels.methods.randomized_response import Correction, marginal_loss
from sfumato.labels.methods.releasing_method import ReleasingMethod
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator, resolve
from sfumato.mechanisms.randomized_response import RandomizedResponse

__all__ = ["Alibi", "MultiStage", "PriorLabels", "RandomizedLabels", "ReleasingMethod", "label_share"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _EachLabel(ABC):
    """The base of methods that report each label separately, by the same mechanism."""

    epsilon: float
    classes: int
    contribution_bound: int = 1

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        inputs.settle(self, "epsilon")
        check_classes(self.classes)
        _check.count(contribution_bound=self.contribution_bound)
        self._mechanism()  # refuses an epsilon that it cannot meet

    @property
    def relation(self) -> Relation:
        """Neighbors differ in the labels of one unit; features are public."""
        return Relation.REPLACE_LABEL

    def event(self) -> DpEvent:
        """Describe what a run costs one unit: each of its labels is charged.

        Returns:
            The event, for an accountant.
        """
        return compose(dp.SelfComposedDpEvent(self._mechanism().event(), self.contribution_bound))

    def check_size(self, *, rows: int, units: int) -> None:
        """Accept any number of rows, from one on.

        Args:
            rows: The number of rows.
            units: The number of units.

        Raises:
            InvalidParameterError: If a number is not positive.
        """
        _check.count(rows=rows, units=units)

    def lessons(self, rows: int) -> Sequence[int]:
        """Learn once, from all rows.

        Args:
            rows: The number of rows.

        Returns:
            The number of rows of each training.
        """
        return [rows]

    @abstractmethod
    def _mechanism(self) -> "_OneLabel":
        """Return the mechanism that reports one label, for its share of epsilon."""


class _OneLabel(Protocol):
    def event(self) -> DpEvent: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomizedLabels(_EachLabel):
    """Randomized response of each label.

    Args:
        epsilon: The privacy budget of the run: of all labels of one unit.
        classes: The number of classes, public, 2 or more.
        contribution_bound: The largest number of labels one user may own. Each gets an equal share of
            epsilon.
        correction: How the loss corrects for the noise.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> method = RandomizedLabels(epsilon=1.0, classes=10, correction=Correction.BACKWARD)
    >>> method.name, method.event()
    ('randomized-response', RandomizedResponseDpEvent(noise_parameter=0.85336..., num_buckets=10))
    """

    correction: Correction = Correction.NONE

    def __post_init__(self) -> None:
        _EachLabel.__post_init__(self)
        _check_correction(self.correction, list(Correction))

    @property
    def name(self) -> str:
        """The name of the method."""
        return "randomized-response"

    def release(
        self, labels: ArrayLike, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Report the labels.

        Args:
            labels: The secret labels, one for each row.
            teach: Trains between stages. A method without stages ignores it.
            generator: The source of noise, or None for secure randomness from the operating system.

        Returns:
            The reports, and the loss of the chosen correction.

        Raises:
            InvalidParameterError: If shape or type of the labels are wrong.
        """
        mechanism = self._mechanism()
        true = checked_labels(labels, classes=self.classes, rows=len(labels))
        reports = randomized_response.report(mechanism, true, generator=generator)
        if self.correction is Correction.FORWARD:
            return Released(
                targets=randomized_response.likelihoods(mechanism, reports).float(), loss=marginal_loss
            )
        if self.correction is Correction.BACKWARD:
            return Released(targets=reports, loss=randomized_response.backward_loss(mechanism))
        return Released(targets=reports, loss=soft_cross_entropy)

    def _mechanism(self) -> RandomizedResponse:
        share = label_share(self.epsilon, self.contribution_bound)
        return randomized_response.response(epsilon=share, classes=self.classes)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PriorLabels(_EachLabel):
    """Randomized response among the classes that a public prior makes likely (RRWithPrior).

    Args:
        epsilon: The privacy budget of the run: of all labels of one unit.
        classes: The number of classes, public, 2 or more.
        contribution_bound: The largest number of labels one user may own. Each gets an equal share of
            epsilon.
        prior: Public weights of the classes, [classes] for all rows or [rows, classes].
        correction: How the loss corrects for the noise: NONE or FORWARD.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> import torch
    >>> method = PriorLabels(epsilon=1.0, classes=3, prior=torch.tensor([0.8, 0.1, 0.1]))
    >>> method.event()
    PureDpEvent(epsilon=1.0)
    """

    prior: ArrayLike
    correction: Correction = Correction.NONE

    def __post_init__(self) -> None:
        _EachLabel.__post_init__(self)
        _check_correction(self.correction, [Correction.NONE, Correction.FORWARD])
        self._mechanism().sizes(self.prior)  # refuses what is no prior

    @property
    def name(self) -> str:
        """The name of the method."""
        return "prior-response"

    def check_size(self, *, rows: int, units: int) -> None:
        """Check that there is a prior for each row, or one for all.

        Args:
            rows: The number of rows.
            units: The number of units. It is not used.

        Raises:
            InvalidParameterError: If the prior has another number of rows.
        """
        checked_prior(self.prior, classes=self.classes, rows=rows)

    def release(
        self, labels: ArrayLike, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Report the labels.

        Args:
            labels: The secret labels, one for each row.
            teach: Trains between stages. A method without stages ignores it.
            generator: The source of noise, or None for secure randomness from the operating system.

        Returns:
            The reports, and the loss of the chosen correction.

        Raises:
            InvalidParameterError: If shape or type of the labels are wrong.
        """
        mechanism = self._mechanism()
        reports = mechanism.release(labels, prior=self.prior, generator=generator)
        if self.correction is Correction.FORWARD:
            likelihoods = mechanism.likelihoods(reports, prior=self.prior).float()
            return Released(targets=likelihoods, loss=marginal_loss)
        return Released(targets=reports, loss=soft_cross_entropy)

    def _mechanism(self) -> RRWithPrior:
        return RRWithPrior(epsilon=label_share(self.epsilon, self.contribution_bound), classes=self.classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiStage(_EachLabel):
    """Reports in stages, each with a prior learned from the stages before (LP-MST; with two, LP-2ST).

    Each label is reported in one stage, so all stages together cost as much as one. The labels of a user may
    be in different stages, and each is charged.

    Args:
        epsilon: The privacy budget of the run: of all labels of one unit.
        classes: The number of classes, public, 2 or more.
        contribution_bound: The largest number of labels one user may own. Each gets an equal share of
            epsilon.
        shares: The share of the rows in each stage, two stages or more.
        correction: How the loss corrects for the noise: NONE or FORWARD.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> MultiStage(epsilon=1.0, classes=10, shares=(0.5, 0.25, 0.25)).event()
    PureDpEvent(epsilon=1.0)
    """

    shares: tuple[float, ...] = (0.5, 0.5)
    correction: Correction = Correction.NONE

    def __post_init__(self) -> None:
        _EachLabel.__post_init__(self)
        _check_correction(self.correction, [Correction.NONE, Correction.FORWARD])
        multistage.check_shares(self.shares)

    @property
    def name(self) -> str:
        """The name of the method."""
        return "multi-stage"

    def lessons(self, rows: int) -> Sequence[int]:
        """Learn after each stage, from all rows reported so far.

        Args:
            rows: The number of rows.

        Returns:
            The number of rows of each training.
        """
        return [count for count in multistage.rows_so_far(rows, shares=self.shares) if count]

    def release(
        self, labels: ArrayLike, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Report the labels, stage by stage.

        Args:
            labels: The secret labels, one for each row.
            teach: Trains between stages. It is required; `learning.teacher` makes it.
            generator: The source of noise, or None for secure randomness from the operating system.

        Returns:
            The reports of all stages, and the loss of the chosen correction.

        Raises:
            InvalidParameterError: If `teach` is missing, or shape or type of the labels are wrong.
        """
        if teach is None:
            raise InvalidParameterError(
                "stages learn from one another. Pass teach=..., as `learning.teacher` makes it."
            )
        true = checked_labels(labels, classes=self.classes, rows=len(labels))
        split = resolve(generator).fork("stages", 0)
        return multistage.report_in_stages(
            true,
            mechanism=self._mechanism(),
            stages=multistage.split_rows(len(true), shares=self.shares, generator=split),
            teach=teach,
            correction=self.correction,
            generator=generator,
        )

    def _mechanism(self) -> RRWithPrior:
        return RRWithPrior(epsilon=label_share(self.epsilon, self.contribution_bound), classes=self.classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alibi(_EachLabel):
    """Laplace noise on one-hot labels, and posteriors by Bayes with a prior from the model in training
    (ALIBI).

    Args:
        epsilon: The privacy budget of the run: of all labels of one unit.
        classes: The number of classes, public, 2 or more.
        contribution_bound: The largest number of labels one user may own. Each gets an equal share of
            epsilon.
        prior_decay: The share that the prior of a row keeps each time the model sees that row, in [0, 1).

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Alibi(epsilon=1.0, classes=10).name
    'alibi'
    """

    prior_decay: float = 0.5

    def __post_init__(self) -> None:
        _EachLabel.__post_init__(self)
        alibi.check_decay(self.prior_decay)

    @property
    def name(self) -> str:
        """The name of the method."""
        return "alibi"

    def release(
        self, labels: ArrayLike, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Release noisy one-hot labels.

        Args:
            labels: The secret labels, one for each row.
            teach: Trains between stages. A method without stages ignores it.
            generator: The source of noise, or None for secure randomness from the operating system.

        Returns:
            Posteriors of the noisy labels that follow the model.

        Raises:
            InvalidParameterError: If shape or type of the labels are wrong.
        """
        mechanism = self._mechanism()
        likelihoods = mechanism.likelihoods(mechanism.release(labels, generator=generator))
        targets = alibi.BayesTargets(likelihoods, prior_decay=self.prior_decay)
        return Released(targets=targets, loss=soft_cross_entropy)

    def _mechanism(self) -> alibi.NoisyOneHot:
        share = label_share(self.epsilon, self.contribution_bound)
        return alibi.NoisyOneHot(epsilon=share, classes=self.classes)


def label_share(epsilon: float, contribution_bound: int) -> float:
    """Return the epsilon of each of a unit's labels. Their sum is at most `epsilon`, rounding included.

    >>> label_share(1.0, 4)
    0.25
    """
    share = epsilon / contribution_bound
    fits = Fraction(share) * int(contribution_bound) <= Fraction(epsilon)
    return share if fits else math.nextafter(share, 0.0)


def _check_correction(correction: Correction, allowed: list[Correction]) -> None:
    if correction not in allowed:
        names = ", ".join(f"Correction.{choice.name}" for choice in allowed)
        raise InvalidParameterError(f"correction must be one of {names}, but {correction!r} was given.")
