# SPDX-License-Identifier: Apache-2.0
"""From a budget to a mechanism: the noise, or the number of steps, that meets what `Privacy` asks for.

Everything is computed from public numbers before the data is read. With both `epsilon` and
`noise_multiplier` the run stops before the first step that would exceed epsilon; that step is known in
advance.

Guarantee  The mechanism that is returned is what the run does, is charged and is priced by.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sfumato import _check
from sfumato.accounting.default_delta import delta_or_default
from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, CalibrationError, InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.training import distributed
from sfumato.training.description import Privacy
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling, Sampling

__all__ = ["default_batch_size", "delta_for", "dp_sgd_for", "resumed"]

_LEAST_BATCH = 256  # units on average, by default
_STEPS_PER_EPOCH = 50  # at most, by default
_MOST_EXTRA_NOISE = 4.0  # far more than any run needs; within 3% where noise multipliers are above 0.7


def dp_sgd_for(privacy: Privacy, *, public_size: int | None = None, account: Account | None = None) -> DpSgd:
    """Return the run of DP-SGD that a description asks for; nothing is spent.

    >>> privacy = Privacy(public_size=60_000, expected_batch_size=600, epochs=5, epsilon=3, delta=1e-5)
    >>> run = dp_sgd_for(privacy)
    >>> run.steps, round(run.noise_multiplier(0), 2)
    (500, 0.74)
    """
    if privacy.mechanism is not None:
        _require_nothing_else(privacy)
        return privacy.mechanism
    size = privacy.public_size if public_size is None else public_size
    noise, epsilon = privacy.noise_multiplier, privacy.epsilon
    sampling = _sampling(privacy, size)
    run = DpSgd(
        step=NoisyStep(clipping=_clipping(privacy)),
        sampling=sampling,
        noise=((1.0 if noise is None else noise, _steps(privacy, sampling, size)),),
        relation=_relation(privacy.relation, account),
        correlation=privacy.correlation,
    )
    if epsilon is not None:
        delta = delta_for(privacy, size, account)
        if noise is not None:
            return _stopped(run, epsilon, delta)
        planned = run.calibrated(epsilon=epsilon, delta=delta)
        return planned if account is None else _admitted(planned, account, epsilon, delta)
    if noise is not None:
        return run
    if account is None:
        raise InvalidParameterError(
            "pass epsilon=..., or noise_multiplier=..., or account=... to spend what an account has left: "
            "without one of them nothing says how private the run must be."
        )
    return run.scaled(distributed.first_decides(lambda: _fitting(run, account)))


def delta_for(privacy: Privacy, public_size: int | None, account: Account | None) -> float:
    """Return the delta of the guarantee: the given one, else that of the account, else the default."""
    if privacy.delta is None and account is not None:
        return distributed.first_decides(lambda: account.budget.delta)
    return delta_or_default(privacy.delta, public_size)


def default_batch_size(public_size: int) -> int:
    """Return the expected batch size of a run that names none: a fiftieth of all units, at least 256.

    >>> default_batch_size(60_000), default_batch_size(2000), default_batch_size(100)
    (1200, 256, 100)
    """
    return min(public_size, max(_LEAST_BATCH, public_size // _STEPS_PER_EPOCH))


def _require_nothing_else(privacy: Privacy) -> None:
    names = ("epsilon", "noise_multiplier", "epochs", "steps", "expected_batch_size", "clip_norm")
    names += ("clipping", "sampling", "correlation", "relation")
    given = [name for name in names if getattr(privacy, name) is not None]
    if given:
        raise InvalidParameterError(
            f"a mechanism says all about noise, batches and steps already: leave out {', '.join(given)}, or "
            "leave out mechanism."
        )


def _sampling(privacy: Privacy, public_size: int | None) -> Sampling:
    if privacy.sampling is not None:
        if privacy.expected_batch_size is not None and not _same_size(privacy, public_size):
            raise InvalidParameterError(
                "the sampling that was given has another expected_batch_size: leave one of the two out."
            )
        return privacy.sampling
    if public_size is None:
        raise InvalidParameterError(
            "the size of the data is private unless it is declared: pass public_size, the number of units "
            "that may be known, such as the planned one. It sets the sampling rate; the data may have more "
            "or fewer."
        )
    _check.count(public_size=public_size)
    expected = privacy.expected_batch_size
    expected = default_batch_size(public_size) if expected is None else expected
    _check.positive(expected_batch_size=expected)
    if expected > public_size:
        raise InvalidParameterError(
            f"expected_batch_size={expected:g} must be at most public_size={public_size}."
        )
    return PoissonSampling(sampling_rate=expected / public_size)


def _same_size(privacy: Privacy, public_size: int | None) -> bool:
    assert privacy.sampling is not None and privacy.expected_batch_size is not None
    own = privacy.sampling.expected_batch_size(public_size)
    return abs(own - privacy.expected_batch_size) <= 1e-9 * own


def _steps(privacy: Privacy, sampling: Sampling, public_size: int | None) -> int:
    epochs, steps = privacy.epochs, privacy.steps
    if (epochs is None) == (steps is None):
        raise InvalidParameterError(f"pass either epochs or steps; got epochs={epochs!r}, steps={steps!r}.")
    if steps is None:
        assert epochs is not None
        _check.positive(epochs=epochs)
        return max(1, round(epochs / _rate(sampling, public_size)))
    _check.count(steps=steps)
    return steps


def _rate(sampling: Sampling, public_size: int | None) -> float:
    if isinstance(sampling, PoissonSampling):
        return sampling.sampling_rate
    if public_size is None:
        raise InvalidParameterError("pass public_size, which epochs are counted by, or steps.")
    return sampling.expected_batch_size(public_size) / public_size


def _clipping(privacy: Privacy) -> Clipping | CoordinateClipping:
    if privacy.clipping is None:
        return Clipping(clip_norm=1.0 if privacy.clip_norm is None else privacy.clip_norm)
    if privacy.clip_norm is not None:
        raise InvalidParameterError("pass either clip_norm or clipping, not both.")
    return privacy.clipping


def _relation(given: Relation | str | None, account: Account | None) -> Relation:
    if given is not None:
        return Relation.parse(given)
    if account is None:
        return Relation.ADD_REMOVE
    return distributed.first_decides(lambda: account.relation)


def _fitting(run: DpSgd, account: Account, bracket: tuple[float, float] = (1e-3, 1e6)) -> float:
    """Return the factor of the noise with which a run fits what an account has left."""
    try:
        return account.calibrate(run.scaled, bracket=bracket)
    except CalibrationError:
        left = account.remaining().run_epsilon
    raise BudgetExceededError(
        f"account {account.name!r} has too little left for this run: the largest that it admits has "
        f"epsilon={left:g}, and no noise makes these steps so cheap. Grant more budget, take fewer steps, or "
        "lower the expected batch size. Nothing was reserved for this run."
    )


def _admitted(run: DpSgd, account: Account, epsilon: float, delta: float) -> DpSgd:
    """Return a run with the little more noise that an account needs for what it said is left.

    An account counts runs beside each other by the Gaussian that dominates them, and a run with few effective
    steps is not quite a Gaussian. What asks for more than is left comes back as it is: the ledger refuses it.
    """

    def factor() -> float:
        asks_too_much = epsilon > account.remaining().run_epsilon or delta > account.budget.delta
        if run.relation is not account.relation or asks_too_much or account.admits(run):
            return 1.0
        return _fitting(run, account, (1.0, _MOST_EXTRA_NOISE))

    return run.scaled(distributed.first_decides(factor))


def _stopped(run: DpSgd, epsilon: float, delta: float) -> DpSgd:
    _check.positive(epsilon=epsilon)
    try:
        return run.stopped(epsilon=epsilon, delta=delta)
    except CalibrationError:
        cost = run.first(1).price(delta=delta)
        raise CalibrationError(
            f"epsilon={epsilon:g} does not pay for one step: at noise_multiplier={run.noise_multiplier(0):g} "
            f"the first costs {cost}. Use more noise or a lower sampling rate. Nothing was spent, and the "
            "data was not touched."
        ) from None


def resumed(privacy: Privacy, noise: Callable[[], Sequence[Sequence[float]]]) -> Privacy:
    """Return the description of a run that continues; `noise` reads the noise it began with.

    A run that took what its account had left must not be calibrated again: it keeps its noise.
    """
    if privacy.mechanism is not None or privacy.epsilon is not None or privacy.noise_multiplier is not None:
        return privacy
    return replace(privacy, noise_multiplier=float(noise()[0][0]))
