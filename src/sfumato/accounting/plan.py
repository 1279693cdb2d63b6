# SPDX-License-Identifier: Apache-2.0
"""A plan: all that decides the guarantee of a DP-SGD run, fixed before the data is touched.

Guarantee  `steps` Gaussian sums of noise `noise_multiplier * clip_norm`, each over a Poisson sample at
           `sampling_rate`, are (`epsilon`, `delta`)-DP under `relation`; with `given`, they and what was
           spent before together.
Sampling   Poisson: each unit is in each batch independently. Shuffled or fixed-size batches are other events.
Sizes      `public_size` and `expected_batch_size` are constants the user chooses, never read from data.
"""

from dataclasses import dataclass

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.calibrate import calibrate, calibrate_count
from sfumato.accounting.default_delta import delta_or_default
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import Price, price
from sfumato.errors import InvalidParameterError

__all__ = ["Plan", "plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Noise, sampling and length of a run, with what they cost."""

    noise_multiplier: float
    sampling_rate: float
    steps: int
    price: Price
    given: DpEvent | None = None
    public_size: int | None = None

    @property
    def epsilon(self) -> float:
        """The cost of the run and of `given` together."""
        return self.price.epsilon

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self.price.delta

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self.price.relation

    def event(self) -> DpEvent:
        """Return what the run does, for an accountant or a ledger; without `given`."""
        return events.dp_sgd(
            noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, steps=self.steps
        )

    def guarantee(self, privacy_unit: str = "example") -> Guarantee:
        """Return the statement this plan allows for a given unit."""
        return self.price.guarantee(privacy_unit)


@in_floats
def plan(
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    public_size: int | None = None,
    expected_batch_size: float | None = None,
    epochs: float | None = None,
    relation: Relation = Relation.ADD_REMOVE,
    given: DpEvent | None = None,
) -> Plan:
    """Find the one of epsilon, noise, sampling rate and steps that is not given; spend nothing.

    The sampling rate may be told as `expected_batch_size / public_size`, the steps as `epochs`. Without a
    `delta`, `public_size` gives one (`default_delta`).

    >>> found = plan(epsilon=2, delta=1e-6, public_size=30_000, expected_batch_size=1024, epochs=20)
    >>> found.steps, round(found.noise_multiplier, 2)
    (586, 2.04)
    """
    relation = Relation.parse(relation)
    delta = delta_or_default(delta, public_size)
    rate = _sampling_rate(sampling_rate, public_size, expected_batch_size)
    count = _steps(steps, epochs, rate)
    _one_unknown(epsilon=epsilon, noise_multiplier=noise_multiplier, sampling_rate=rate, steps=count)
    if epsilon is not None:
        noise_multiplier, rate, count = _solve(epsilon, delta, noise_multiplier, rate, count, relation, given)
    assert noise_multiplier is not None and rate is not None and count is not None  # for the type checker
    run = events.dp_sgd(noise_multiplier=noise_multiplier, sampling_rate=rate, steps=count)
    whole = run if given is None else events.compose(given, run)
    cost = price(whole, delta=delta, relation=relation)
    return Plan(
        noise_multiplier=noise_multiplier,
        sampling_rate=rate,
        steps=count,
        price=cost,
        given=given,
        public_size=public_size,
    )


def _solve(
    epsilon: float,
    delta: float,
    noise: float | None,
    rate: float | None,
    steps: int | None,
    relation: Relation,
    given: DpEvent | None,
) -> tuple[float, float, int]:
    """Return (noise multiplier, sampling rate, steps), the missing one found."""

    def run(noise: float, rate: float, steps: int) -> DpEvent:
        return events.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)

    if rate is not None and steps is not None:
        run(1.0, rate, steps)  # checks both before the search
        noise = calibrate(
            lambda s: run(s, rate, steps), epsilon=epsilon, delta=delta, relation=relation, given=given
        )
        return noise, rate, steps
    if noise is not None and steps is not None:
        rate = calibrate(
            lambda q: run(noise, q, steps),
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            bracket=(1e-9, 1.0),
            cost_rises=True,
            given=given,
        )
        return noise, rate, steps
    assert noise is not None and rate is not None  # `_one_unknown` saw to it
    steps = calibrate_count(
        lambda n: run(noise, rate, n), epsilon=epsilon, delta=delta, relation=relation, given=given
    )
    return noise, rate, steps


def _sampling_rate(rate: float | None, size: int | None, batch: float | None) -> float | None:
    if size is None and batch is None:
        return rate
    if rate is not None or size is None or batch is None:
        raise InvalidParameterError(
            "give either sampling_rate, or both public_size and expected_batch_size; "
            f"got sampling_rate={rate!r}, public_size={size!r}, expected_batch_size={batch!r}."
        )
    _check.count(public_size=size)
    _check.positive(expected_batch_size=batch)
    if batch > size:
        raise InvalidParameterError(f"expected_batch_size={batch:g} must be at most public_size={size}.")
    return batch / size


def _steps(steps: int | None, epochs: float | None, rate: float | None) -> int | None:
    if epochs is None:
        return steps
    if steps is not None or rate is None:
        raise InvalidParameterError(
            "give either steps, or epochs together with a sampling rate; "
            f"got steps={steps!r}, epochs={epochs!r}, sampling rate {rate!r}."
        )
    _check.positive(epochs=epochs)
    _check.rate(sampling_rate=rate)
    return max(1, round(epochs / rate))


def _one_unknown(**values: float | None) -> None:
    unknown = [name for name, value in values.items() if value is None]
    if len(unknown) != 1:
        raise InvalidParameterError(
            "leave exactly one of epsilon, noise_multiplier, sampling_rate and steps to be found; "
            f"{len(unknown)} are missing{': ' + ', '.join(unknown) if unknown else ''}."
        )
