# SPDX-License-Identifier: Apache-2.0
"""The kinds of events that `dp_accounting` lacks: plain values, one class each.

`accounting.checks` checks that an event is well-formed, and the accountants price it. Noise is relative to
the norm bound of one unit's contribution: see `accounting.events`.
"""

from collections.abc import Sequence

import attrs

from sfumato.accounting.upstream import DpEvent

__all__ = [
    "ApproximateDpEvent",
    "DiscreteGaussianDpEvent",
    "ExponentialDpEvent",
    "JohnsonLindenstraussDpEvent",
    "ObjectivePerturbationDpEvent",
    "ParallelDpEvent",
    "PureDpEvent",
    "SelectionDpEvent",
    "SkellamDpEvent",
    "SparseVectorDpEvent",
    "SummedDiscreteGaussianDpEvent",
    "TruncatedPoissonSampledDpEvent",
    "UnsampledDpEvent",
]


@attrs.frozen(slots=True)
class PureDpEvent(DpEvent):
    """Any epsilon-differentially private mechanism of which nothing else is known.

    Args:
        epsilon: The epsilon of the mechanism.
    """

    epsilon: float


@attrs.frozen(slots=True)
class ApproximateDpEvent(DpEvent):
    """Any (epsilon, delta)-differentially private mechanism of which nothing else is known.

    Args:
        epsilon: The epsilon of the mechanism.
        delta: The delta of the mechanism.
    """

    epsilon: float
    delta: float


@attrs.frozen(slots=True)
class ExponentialDpEvent(DpEvent):
    """The exponential mechanism, or any other mechanism with epsilon-bounded range.

    Bounded range: the privacy losses of two neighbors lie in one interval of length epsilon (Durfee and
    Rogers 2019). It is stronger than epsilon-DP and composes better.

    Args:
        epsilon: The length of the range of privacy losses.
    """

    epsilon: float


@attrs.frozen(slots=True)
class SparseVectorDpEvent(DpEvent):
    """A sparse vector run: a noisy threshold, noisy comparisons and, if wanted, numeric answers.

    Each part is pure DP and the parts add up, whatever the number of queries below the threshold (Lyu, Su and
    Li 2017, Theorems 4 and 5).

    Args:
        threshold_epsilon: The epsilon of the noisy threshold.
        comparison_epsilon: The epsilon of all comparisons together.
        answer_epsilon: The epsilon of all numeric answers together; 0 without them.
    """

    threshold_epsilon: float
    comparison_epsilon: float
    answer_epsilon: float = 0.0

    @property
    def epsilon(self) -> float:
        """The pure cost of the whole run."""
        return self.threshold_epsilon + self.comparison_epsilon + self.answer_epsilon


@attrs.frozen(slots=True)
class DiscreteGaussianDpEvent(DpEvent):
    """Discrete Gaussian noise on a sum of integer vectors.

    Noise is drawn per coordinate with probability proportional to exp(-x^2 / (2 stddev^2)) on the integers;
    one unit contributes an integer vector of L2 norm at most `sensitivity` (Canonne, Kamath, Steinke 2020).

    Args:
        stddev: The parameter of the noise, about its standard deviation.
        sensitivity: The largest L2 norm of one unit's contribution.
        dimension: How many coordinates the sum has.
    """

    stddev: float
    sensitivity: float
    dimension: int = 1


@attrs.frozen(slots=True)
class SkellamDpEvent(DpEvent):
    """Skellam noise on a sum of integer vectors, of which many parties add a share each.

    A Skellam variable is the difference of two Poisson variables of equal mean. Shares add up: noises of
    variances v1 and v2 are together one of variance v1 + v2. Only the sum is seen, or the sum modulo a
    number. Coordinates are independent (Agarwal, Kairouz and Liu 2021).

    The sum must have noise of the same law whether or not a unit takes part. If parties may drop out or tell
    their noise, `variance` is what the shares of the fewest remaining parties add up to. More noise than that
    is harmless if its size does not depend on the unit. It does if the unit's party brings a share that
    would otherwise be missing: in many coordinates the size of the noise tells how many parties there were.
    So let the number of parties that add noise be fixed, or set the shares by the size of the cohort, so
    that they always add up to `variance`. Without sampling it is enough that the party remains, as under
    zero-out and replace-one neighbors.

    Args:
        variance: The variance of the sum's noise in each coordinate.
        sensitivity: The largest L2 norm of one unit's contribution, after rounding.
    """

    variance: float
    sensitivity: float


@attrs.frozen(slots=True)
class SummedDiscreteGaussianDpEvent(DpEvent):
    """The sum of several discrete Gaussian noises, one of each party, on a sum of integer vectors.

    Such a sum is not a discrete Gaussian, but almost one if `stddev` is 2 or more (Kairouz, Liu and Steinke
    2021). Only the sum is seen, or the sum modulo a number. Coordinates are independent.

    As for `SkellamDpEvent`, the noise must not depend on whether a unit takes part. If parties may drop out
    or tell their noise, `summands` is the smallest number of noises that remain unknown.

    Args:
        stddev: The parameter of one party's noise, about its standard deviation.
        sensitivity: The largest L2 norm of one unit's contribution, after rounding.
        summands: How many noises are added.
    """

    stddev: float
    sensitivity: float
    summands: int


@attrs.frozen(slots=True)
class ParallelDpEvent(DpEvent):
    """Mechanisms on disjoint parts of the data: each unit is in exactly one part, fixed by public rules.

    Adding, removing or zeroing a unit touches one part, so the cost is that of the most expensive part.
    Replacing a unit may touch two parts, so accountants refuse this event under replace-one. Under
    replace-label the rule that makes the parts must not look at labels, which are private there.

    Args:
        events: The event of each part.
    """

    events: Sequence[DpEvent]


@attrs.frozen(slots=True)
class UnsampledDpEvent(DpEvent):
    """A mechanism on all of the data, whose bound is the distance of neighbors and nothing more.

    Values in [0, 1] move a sum by at most 1 when one is replaced, so half of that is stated as the bound of
    one contribution. It is not the bound of a contribution: a unit that is absent from a sample moves the sum
    by up to 1. So this event costs what `event` costs, and must not stand inside a sampling event.

    Args:
        event: The event whose cost this is.
    """

    event: DpEvent


@attrs.frozen(slots=True)
class TruncatedPoissonSampledDpEvent(DpEvent):
    """A mechanism on a Poisson sample that is cut to a uniformly random `batch_size` of it if it is larger.

    The cost is monotone in `public_size`, so the price holds for every smaller data set. Only noise on sums
    of bounded contributions is priced inside: Gaussians, of which several may share one sample; for
    add-remove neighbors integer noise of many parties, too.

    Args:
        sampling_probability: The chance that a unit is drawn, before the sample is cut.
        batch_size: The largest size of a sample.
        public_size: The largest number of units, which must be public.
        event: The event on one sample.
    """

    sampling_probability: float
    batch_size: int
    public_size: int
    event: DpEvent


@attrs.frozen(slots=True)
class JohnsonLindenstraussDpEvent(DpEvent):
    """Gaussian noise on a sum of contributions that were clipped by an estimate of their norm (DP-SGD-JL).

    The estimate is the root mean square of `projections` products with independent standard Gaussian vectors,
    fresh for each event, shared by all units and independent of the data. A clipped contribution may then be
    longer than its bound, by a factor distributed as sqrt(projections / chi2(projections)), whatever the
    contribution (Bu et al. 2021, arXiv:2102.03013).

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm.
        projections: How many random vectors the norm is estimated from.
    """

    noise_multiplier: float
    projections: int


@attrs.frozen(slots=True)
class ObjectivePerturbationDpEvent(DpEvent):
    """The exact minimum of a convex objective to which a random linear term was added.

    The objective is a sum over rows of losses f(w . x), plus regularization * |w|^2 / 2, plus b . w with b a
    Gaussian vector. Each f is convex and never rises, with slopes in [-1, 0] and curvature up to c.
    `accounting.perturbation` derives the cost.

    Args:
        noise_multiplier: Standard deviation of b over the bound on |x|.
        curvature: c |x|^2 / regularization, with the bound on |x|.
    """

    noise_multiplier: float
    curvature: float


@attrs.frozen(slots=True)
class SelectionDpEvent(DpEvent):
    """The best of a random number of runs, each of one of several events, chosen independently of the data.

    The number of runs has the truncated negative binomial distribution: the geometric one with success
    probability `stop` at shape 1, the logarithmic one at shape 0. Only the output of the best run is
    released; scores are part of the outputs (Papernot and Steinke 2022, arXiv:2110.03620).

    Args:
        events: The events of the candidates.
        shape: The shape of the distribution, above -1.
        stop: The second parameter of the distribution, between 0 and 1.
    """

    events: Sequence[DpEvent]
    shape: float
    stop: float
