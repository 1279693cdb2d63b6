# SPDX-License-Identifier: Apache-2.0
"""Plans: everything that decides the guarantee of a DP-SGD run, fixed before the data is read.

`public_size` and `expected_batch_size` are constants that the user chooses. They are never read from data.

Guarantee  `steps` Gaussian sums of noise `noise_multiplier * clip_norm`, each over a Poisson sample at
           `sampling_rate`, are (`epsilon`, `delta`)-DP under `relation`. With `given`, this is the cost of
           the run together with what was spent before.
Unit       Sampling is Poisson: each unit is in each batch independently. Shuffled batches and batches of a
           fixed size are other events.
"""

from dataclasses import dataclass

from sfumato import _check, _notebook
from sfumato.accounting import events
from sfumato.accounting.calibrate import calibrate, calibrate_count
from sfumato.accounting.default_delta import delta_or_default
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.accounting.price import Price, price
from sfumato.errors import InvalidParameterError

__all__ = ["Plan", "plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The noise, the sampling and the length of a run, with its cost.

    Attributes:
        noise_multiplier: Standard deviation of the noise over the clip norm.
        sampling_rate: The chance that a unit is in one batch.
        steps: The number of noisy updates.
        price: The cost of the run and of `given` together.
        given: What was spent before and is covered by the same budget, or None.
        public_size: The number of units that the plan was made for, or None.
    """

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
        """Return the event of the run, for an accountant or a ledger; `given` is not in it.

        Returns:
            The event.
        """
        return events.dp_sgd(
            noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, steps=self.steps
        )

    def _repr_html_(self) -> str:
        own: dict[str, object] = {
            "noise multiplier": f"{-round_up(-self.noise_multiplier, 6):g}",
            "sampling rate": f"{round_up(self.sampling_rate, 6):g}",
            "steps": self.steps,
            "public size": self.public_size,
            "cost": "together with what was spent before" if self.given is not None else None,
        }
        title = "Plan: nothing is spent yet"
        return _notebook.panel(title, _notebook.facts({**own, **self.price.shown()}))

    def guarantee(self, privacy_unit: str = "example") -> Guarantee:
        """Return the guarantee of this plan.

        Args:
            privacy_unit: Who is protected: what one row that is clipped belongs to.

        Returns:
            The guarantee.
        """
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
    """Find the one of epsilon, noise, sampling rate and steps that is not given. Nothing is spent.

    Pass three of the four. The sampling rate can be given as `expected_batch_size / public_size`, the steps
    as `epochs`.

    Args:
        delta: The delta of the guarantee. Without one, `public_size` gives a default (`default_delta`).
        epsilon: The privacy budget of the run.
        noise_multiplier: Standard deviation of the noise over the clip norm.
        sampling_rate: The chance that a unit is in one batch, above 0 and at most 1.
        steps: The number of noisy updates.
        public_size: The number of units, which must be public.
        expected_batch_size: The mean size of a batch, a public constant; needs `public_size`.
        epochs: How often each unit is used on average; needs a sampling rate.
        relation: Which data sets are neighbors.
        given: What was spent before: epsilon then covers both. None for nothing.

    Returns:
        The plan, with its cost.

    Raises:
        InvalidParameterError: If a parameter is out of range, or not exactly one of the four is missing.
        CalibrationError: If no value of the missing parameter meets the budget.

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
