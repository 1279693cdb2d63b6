# SPDX-License-Identifier: Apache-2.0
"""From the settings of a federation to a run whose clients add shares of the noise.

Guarantee  The event is that of Poisson cohorts of secure sums, with the least noise that meets the budget. A
           fixed number of shares is in every sum, whoever contributes, so that the law of the noise does not
           depend on who takes part.
Edge cases If a cohort is larger than the number of shares, its last clients contribute without a share; the
           modulus was sized for fewer, so a coordinate may wrap around, which harms accuracy alone.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from sfumato.accounting.default_delta import delta_or_default
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.training.engine import parameter_values
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling
from sfumato.training.run_audit import RunAudit

__all__ = ["CLAIMED", "distributed_run"]

# Keywords of a run that the mechanism says all about.
CLAIMED: Final = (
    "epsilon",
    "noise_multiplier",
    "steps",
    "expected_batch_size",
    "clip_norm",
    "clipping",
    "relation",
)
_REFUSED: Final = ("sampling", "correlation", "mechanism")
_BITS: Final = 16
_DEVIATIONS: Final = 6.0  # by which a cohort is seldom larger than expected


def distributed_run(
    model: nn.Module, noise: IntegerNoise, keywords: Mapping[str, Any], *, audit: RunAudit | None = None
) -> DpSgd:
    """Return the run of secure sums that keywords of `training.train` ask for; nothing is spent.

    Args:
        model: The model that will be trained.
        noise: The law of the noise.
        keywords: `epsilon` or `noise_multiplier`, `delta`, `clip_norm`, `steps`, `expected_batch_size`,
            `public_size` and `account`. Without a delta, that of the account holds, as in `training.train`.
        audit: The audit of the run: sums have room for its canaries and their coordinates.

    Returns:
        The run.

    Raises:
        InvalidParameterError: If a keyword has no meaning for secure sums, or the budget is missing.

    >>> settings = {"epsilon": 8, "delta": 1e-3, "steps": 5, "expected_batch_size": 50, "public_size": 100}
    >>> run = distributed_run(nn.Linear(3, 2), IntegerNoise.SKELLAM, settings)
    >>> run.step.summation.cohort, run.steps
    (93, 5)
    """
    _require(keywords)
    expected, clients = keywords["expected_batch_size"], keywords["public_size"]
    if not expected <= clients:
        raise InvalidParameterError(f"expected_cohort_size={expected:g} must be at most clients={clients}.")
    multiplier, epsilon = keywords.get("noise_multiplier"), keywords.get("epsilon")
    clipping = _clipping(keywords)
    units, beside = (clients, 0) if audit is None else (clients + audit.units, audit.coordinates)
    asked = expected * units / clients
    shares = min(units, math.ceil(asked + _DEVIATIONS * math.sqrt(asked)))
    own = sum(p.numel() for p in parameter_values.find(model).parameters.values())
    summation = SecureSum(
        dimension=own + beside,
        clip_norm=clipping.clip_norm or 1.0,
        noise_multiplier=1.0,
        cohort=shares,
        least_survivors=shares,
        noise=noise,
        bits=_BITS,
    )
    run = DpSgd(
        step=NoisyStep(clipping=clipping, summation=summation),
        sampling=PoissonSampling(sampling_rate=expected / clients),
        noise=((1.0 if multiplier is None else multiplier, keywords["steps"]),),
        relation=Relation.parse(keywords.get("relation") or Relation.ADD_REMOVE),
    )
    if epsilon is None:
        return run
    delta = _delta(keywords)
    return (
        run.calibrated(epsilon=epsilon, delta=delta)
        if multiplier is None
        else run.stopped(epsilon=epsilon, delta=delta)
    )


def _delta(keywords: Mapping[str, Any]) -> float:
    """Return the delta of the guarantee: the given one, else that of the account, else the default."""
    given, account = keywords.get("delta"), keywords.get("account")
    if given is None and account is not None:
        return account.budget.delta
    return delta_or_default(given, keywords["public_size"])


def _require(keywords: Mapping[str, Any]) -> None:
    given = [name for name in _REFUSED if keywords.get(name) is not None]
    if given:
        raise InvalidParameterError(
            f"{given[0]} has no meaning for noise of the clients: leave one of them out."
        )
    if keywords.get("epsilon") is None and keywords.get("noise_multiplier") is None:
        raise InvalidParameterError(
            "pass epsilon=... or noise_multiplier=...: noise of the clients needs one."
        )


def _clipping(keywords: Mapping[str, Any]) -> Clipping:
    """Return how updates are clipped: to one fixed norm."""
    given = keywords.get("clipping")
    if given is None:
        norm = keywords.get("clip_norm")
        return Clipping(clip_norm=1.0 if norm is None else norm)
    if keywords.get("clip_norm") is not None:
        raise InvalidParameterError("pass either clip_norm or clipping, not both.")
    if given != Clipping(clip_norm=getattr(given, "clip_norm", None) or 1.0):
        raise InvalidParameterError(
            "clients clip to one fixed norm: pass clip_norm=..., not adaptive or by layer."
        )
    return given
