# SPDX-License-Identifier: Apache-2.0
"""DP-SGD as one mechanism: sampler, clipping, noise and length, with the event they make together.

Guarantee  A run that takes its batches from `sampling`, clips as `clipping`, `group_size` and `projections`
           state, and adds noise of `noise_multiplier` times the clip norm for as many steps as `noise` lists,
           is described by `event()` under `relation`. The trainer is built from this object and from nothing
           else that touches the claim, so the two cannot disagree. With `group_size` above 1 the average of a
           group of examples is clipped. Adding or removing an example moves its group from one clipped vector
           to another: by twice the clip norm, so the noise counts half. Each example's group is drawn for it
           alone, so no other group moves. With `projections`, norms are estimated, and a contribution exceeds
           the clip norm by a random factor. The event takes this into account; it knows one factor for each
           unit.
Failure    Projections are refused with layers that are clipped on their own, which have one factor each, and
           with groups, which have one factor before and another after a unit joins. No event prices these.
           A run cannot be changed: `noise` is copied into a tuple, and no field can be set.
Source     Projections: Bu et al. 2021, arXiv:2102.03013.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sfumato import _check
from sfumato.accounting.calibrate import calibrate, calibrate_count
from sfumato.accounting.events import DpEvent, JohnsonLindenstraussDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import Price, price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping
from sfumato.training.privacy.correlated_noise import BandedNoise
from sfumato.training.privacy.noise import Summation
from sfumato.training.privacy.sampling import Sampling

__all__ = ["DpSgd", "NoisyStep", "run_event"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyStep:
    """One noisy clipped sum: everything that decides its event except the noise itself.

    Args:
        clipping: The style of clipping.
        group_size: How many units are averaged before clipping; 1 clips each unit.
        projections: How many random projections estimate the norms; None computes them exactly.
        summation: A sum that has noise of its own, such as a secure sum of clients; None: Gaussian noise is
            added to the clipped sum.

    Raises:
        InvalidParameterError: If projections are combined with groups, layers or coordinates, or a summation
            with anything but one fixed clip norm, which must be its own.
    """

    clipping: Clipping | CoordinateClipping
    group_size: int = 1
    projections: int | None = None
    summation: Summation | None = None

    def __post_init__(self) -> None:
        _check.count(group_size=self.group_size)
        if self.summation is not None:
            self._require_one_norm(self.summation)
        if self.projections is None:
            return
        _check.count(projections=self.projections)
        if isinstance(self.clipping, CoordinateClipping):
            raise InvalidParameterError(
                "projections estimate norms, and clipping by coordinate uses none. Clip by norm, or leave "
                "projections out."
            )
        self._refuse_several_estimates(self.clipping)

    def _refuse_several_estimates(self, clipping: Clipping) -> None:
        """Refuse what has several estimated norms for one unit: its event knows one."""
        if clipping.per_layer or clipping.layer_norms is not None:
            raise InvalidParameterError(
                "projections estimate the norm of each layer on its own when layers are clipped one by one. "
                "Each estimate may be too low, and with many layers one of them often is, by far: the sum "
                "moves by more than the event of projections states. Clip the whole gradient "
                "(Clipping(clip_norm=...)), or leave projections out."
            )
        if self.group_size > 1:
            raise InvalidParameterError(
                f"group_size={self.group_size} cannot be combined with projections. The norm of a group is "
                "estimated once with a unit in it and once without, with another error each time, and the "
                "event of projections knows one error. Clip single units, or leave projections out."
            )

    def _require_one_norm(self, summation: Summation) -> None:
        """Refuse what a sum with noise of its own does not do: its units clip themselves, to one norm."""
        fixed = self.clipping == Clipping(clip_norm=summation.clip_norm)
        if not fixed or self.group_size > 1 or self.projections is not None:
            raise InvalidParameterError(
                f"a summation clips each unit to its clip_norm={summation.clip_norm:g} before it adds up. "
                "Pass clipping=Clipping(clip_norm=...) of the same norm, and leave out groups, projections, "
                "layers and adaptive clipping."
            )

    @property
    def sensitivity(self) -> float:
        """The most one unit moves the sum, as a multiple of the clip norm."""
        return 1.0 if self.group_size == 1 else 2.0

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return what one step costs.

        Args:
            noise_multiplier: The standard deviation of the noise, divided by the clip norm.

        Returns:
            The event of the step, before sampling.

        Raises:
            InvalidParameterError: If a setting is out of range.
        """
        _check.positive(noise_multiplier=noise_multiplier)
        if self.summation is not None:
            return self.summation.event_at(noise_multiplier)
        scale = noise_multiplier / self.sensitivity
        if self.projections is None:
            return self.clipping.event(dp.GaussianDpEvent(scale))
        return self.clipping.event(JohnsonLindenstraussDpEvent(scale, self.projections))


@dataclass(frozen=True, kw_only=True, slots=True)
class DpSgd:
    """A run of DP-SGD, as a mechanism that can be priced before it is run.

    Args:
        step: What one step releases.
        sampling: How batches are formed.
        noise: Noise multipliers in the order of the steps, each with its number of steps. They are copied.
        relation: Which data sets are neighbors.
        correlation: How noise is correlated over steps; None: not at all.

    Raises:
        InvalidParameterError: If there is no step, a noise multiplier is not above 0, or noise is correlated
            and the run has no proof for it.
    """

    step: NoisyStep
    sampling: Sampling
    noise: Sequence[tuple[float, int]]
    relation: Relation
    correlation: BandedNoise | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        # A list could be changed after the run was priced, charged or finished.
        object.__setattr__(self, "noise", tuple((noise, count) for noise, count in self.noise))
        if not self.noise:
            raise InvalidParameterError("a run needs at least one step: noise must not be empty.")
        for noise_multiplier, steps in self.noise:
            _check.positive(noise_multiplier=noise_multiplier)
            _check.count(steps=steps)
        if self.correlation is not None:
            self.event()  # what has no event is refused at birth
        if self.step.summation is not None:
            self._require_room(self.step.summation)

    def _require_room(self, summation: Summation) -> None:
        """Refuse batches that have more units than a sum has room for."""
        most = self.sampling.static_size
        if most is not None and most > summation.cohort:
            raise InvalidParameterError(
                f"a sum has room for cohort={summation.cohort} units, and batches of batch_size={most} have "
                "more. Use a sampler of smaller batches, or a larger cohort."
            )

    @property
    def steps(self) -> int:
        """How many noisy updates the run makes."""
        return sum(count for _, count in self.noise)

    def noise_multiplier(self, step: int) -> float:
        """Return the noise multiplier of a step.

        Args:
            step: The number of the step, from 0 on.

        Returns:
            Its noise multiplier.

        Raises:
            InvalidParameterError: If the run has no such step.
        """
        for noise_multiplier, count in self.noise:
            if step < count:
                return noise_multiplier
            step -= count
        raise InvalidParameterError(f"the run has {self.steps} steps; there is no step {step + self.steps}.")

    def event(self) -> DpEvent:
        """Return what the whole run costs.

        Returns:
            Its event, for an accountant.
        """
        return run_event(self.step, self.sampling, self.noise, self.relation, self.correlation)

    def unsampled_event(self) -> DpEvent:
        """Return what the run costs against who knows the batches: every unit may be in each of them.

        Returns:
            The event of all noisy sums, one after the other, without amplification.
        """
        return compose(
            *(dp.SelfComposedDpEvent(self.step.event(noise), count) for noise, count in self.noise)
        )

    def price_against_server(self, *, delta: float) -> Price | None:
        """Return what the run costs against a server that sees noisy sums and knows whom it asked.

        Sampling does not amplify: each round is priced as if every client were asked. Who takes part is not
        hidden from the server, so that what is compared are updates: one of them against zeros (zero-out), or
        against another one where the run has replace-one neighbors.

        Args:
            delta: The delta of the guarantee.

        Returns:
            The price; None if no sum has its noise before the server sees it.
        """
        if self.step.summation is None:
            return None
        relation = Relation.REPLACE_ONE if self.relation.replaces else Relation.ZERO_OUT
        return price(self.unsampled_event(), delta=delta, relation=relation)

    def first(self, steps: int) -> "DpSgd":
        """Return the run cut off after its first steps.

        Args:
            steps: How many steps are kept.

        Returns:
            A shorter run.
        """
        kept: list[tuple[float, int]] = []
        for noise_multiplier, count in self.noise:
            if steps > 0:
                kept.append((noise_multiplier, min(count, steps)))
            steps -= count
        return replace(self, noise=tuple(kept))

    def scaled(self, factor: float) -> "DpSgd":
        """Return the run with all its noise multiplied.

        Args:
            factor: What noise multipliers are multiplied by.

        Returns:
            A run with other noise.
        """
        return replace(self, noise=tuple((noise * factor, count) for noise, count in self.noise))

    def price(self, *, delta: float, given: DpEvent | None = None) -> Price:
        """Return what the run costs, together with what was spent before.

        Args:
            delta: The delta of the guarantee.
            given: What was spent before; None: nothing.

        Returns:
            The price, with its epsilon.
        """
        event = self.event() if given is None else dp.ComposedDpEvent([given, self.event()])
        return price(event, delta=delta, relation=self.relation)

    def calibrated(self, *, epsilon: float, delta: float, given: DpEvent | None = None) -> "DpSgd":
        """Return the run with the least noise that meets the budget.

        Args:
            epsilon: The most that the run may cost, together with what was spent before.
            delta: The delta of the guarantee.
            given: What was spent before; None: nothing.

        Returns:
            The run, with all its noise multiplied by one factor.

        Raises:
            CalibrationError: If no noise meets the budget.
        """
        factor = calibrate(
            lambda factor: self.scaled(factor).event(),
            epsilon=epsilon,
            delta=delta,
            relation=self.relation,
            given=given,
        )
        return self.scaled(factor)

    def stopped(self, *, epsilon: float, delta: float, given: DpEvent | None = None) -> "DpSgd":
        """Return the run cut off before the first step that would exceed the budget.

        The number of steps is computed before the run, from public numbers alone.

        Args:
            epsilon: The most that the run may cost, together with what was spent before.
            delta: The delta of the guarantee.
            given: What was spent before; None: nothing.

        Returns:
            The run with as many of its steps as the budget admits.

        Raises:
            CalibrationError: If not even one step meets the budget.
        """
        if self.price(delta=delta, given=given).epsilon <= epsilon:
            return self
        steps = calibrate_count(
            lambda count: self.first(count).event(),
            epsilon=epsilon,
            delta=delta,
            relation=self.relation,
            given=given,
            most=self.steps,
        )
        return self.first(steps)


def run_event(
    step: NoisyStep,
    sampling: Sampling,
    noise: Sequence[tuple[float, int]],
    relation: Relation,
    correlation: BandedNoise | None,
) -> DpEvent:
    """Return what noisy steps cost together.

    Args:
        step: What one step releases.
        sampling: How batches are formed.
        noise: Noise multipliers in the order of the steps, each with its number of steps.
        relation: Which data sets are neighbors.
        correlation: How noise is correlated over steps; None: not at all.

    Returns:
        The event of the run.

    Raises:
        InvalidParameterError: If the sampler has no event for the relation, or correlated noise has none.
    """
    released = [(step.event(multiplier), count) for multiplier, count in noise]
    independent = sampling.event(released, relation=relation)  # refuses what the sampler does not cover
    if correlation is None or not noise:
        return independent
    adaptive = isinstance(step.clipping, Clipping) and step.clipping.adaptive is not None
    single = step.group_size == 1 and step.projections is None and step.summation is None
    if adaptive or not single or len({m for m, _ in noise}) > 1:
        raise InvalidParameterError(
            "correlated noise is proven for a fixed clip norm, single units, exact norms, noise that is "
            "added to sums here, and one noise multiplier. Leave out adaptive clipping, projections, groups, "
            "summation and a schedule of noise, or leave out correlation."
        )
    steps = sum(count for _, count in noise)
    return step.event(noise[0][0] / correlation.sensitivity(sampling, steps=steps))
