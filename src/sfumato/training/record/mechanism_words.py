# SPDX-License-Identifier: Apache-2.0
"""What the statement of a run says of its mechanism: batches, clipping and noise, in sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

__all__ = ["ROUNDS", "STEPS", "Words", "against_whom", "told"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """What a run calls its parts.

    Attributes:
        run: What was done, in so many steps.
        step: One noisy sum.
        contribution: What one unit gives to it.
    """

    run: str
    step: str
    contribution: str

    def trained(self, steps: int) -> str:
        """Return how the model was trained.

        >>> ROUNDS.trained(30)
        'The model was trained by federated averaging in 30 noisy rounds.'
        """
        return f"The model was trained by {self.run} in {steps} noisy {self.step}s."


STEPS = Words(run="DP-SGD", step="step", contribution="gradient")
ROUNDS = Words(run="federated averaging", step="round", contribution="update")


def against_whom(server: Guarantee | None) -> str:
    """Return against whom the guarantee of a federation holds; `server` is what holds against its server.

    >>> against_whom(None)
    'This holds against those who see the models. The server is trusted: it sees what clients reply before ...
    """
    seen = "This holds against those who see the models."
    if server is None:
        return f"{seen} The server is trusted: it sees what clients reply before this noise is added."
    return f"{seen} Against the server, which knows whom it asked, sampling does not amplify: {server}."


def told(mechanism: DpSgd, *, unit: str, divided_by: float, words: Words = STEPS) -> list[str]:
    """Return the sentences about a mechanism; `divided_by` is the public number that sums were divided by.

    >>> from sfumato.training.privacy.dp_sgd import NoisyStep
    >>> run = DpSgd(step=NoisyStep(clipping=Clipping(clip_norm=1.0)), noise=[(2.0, 3)], relation="add-remove",
    ...             sampling=PoissonSampling(sampling_rate=0.1))
    >>> told(run, unit="patient", divided_by=12.0)[0]
    'Each step took each patient with probability 0.1, independently (Poisson sampling) and clipped its ...
    """
    step = mechanism.step
    sentences = (
        f"Each {words.step} {_batches(mechanism.sampling, unit)} {_clipped(step.clipping, words)}",
        _groups(step.group_size),
        _projected(step.projections),
        f"{_noise_added(mechanism, words)} added to each sum, which was divided by {divided_by:g}, a public "
        "number.",
        _correlated(mechanism, words),
    )
    return [sentence for sentence in sentences if sentence is not None]


def _poisson(sampling: PoissonSampling, unit: str) -> str:
    rate = f"{sampling.sampling_rate:.6g}"
    return f"took each {unit} with probability {rate}, independently (Poisson sampling)"


def _truncated(sampling: TruncatedPoissonSampling, unit: str) -> str:
    return (
        f"took each {unit} with probability {sampling.sampling_rate:.6g}, independently, of at "
        f"most {sampling.public_size}, and kept a random {sampling.batch_size} where there were more "
        "(truncated Poisson sampling)"
    )


def _fixed(sampling: FixedSizeSampling, unit: str) -> str:
    return (
        f"took a fresh random {sampling.batch_size} of {sampling.public_size} units ({unit}) "
        "without replacement"
    )


def _shuffled(sampling: ShuffledBatches, unit: str) -> str:
    return (
        f"took the next {sampling.batch_size} of {sampling.public_size} units ({unit}) in an order "
        "shuffled each epoch, for which no amplification is claimed"
    )


def _cyclic(sampling: CyclicBatches, unit: str) -> str:
    return (
        f"took the next {sampling.batch_size} of {sampling.public_size} units ({unit}) in a fixed "
        "order, for which no amplification is claimed"
    )


_SAMPLING: dict[type, Callable[[Any, str], str]] = {
    PoissonSampling: _poisson,
    TruncatedPoissonSampling: _truncated,
    FixedSizeSampling: _fixed,
    ShuffledBatches: _shuffled,
    CyclicBatches: _cyclic,
}


def _batches(sampling: Sampling, unit: str) -> str:
    told = _SAMPLING.get(type(sampling))
    return f"took a batch of {sampling!r}" if told is None else told(sampling, unit)


def _clipped(clipping: Clipping | CoordinateClipping, words: Words) -> str:
    what = words.contribution
    if isinstance(clipping, CoordinateClipping):
        return f"and clipped each coordinate of a unit's {what} to at most {clipping.coordinate_bound:g}."
    norm = (
        "thresholds of its layers" if clipping.clip_norm is None else f"an L2 norm of {clipping.clip_norm:g}"
    )
    where = ", layer by layer" if clipping.per_layer or clipping.layer_norms else ""
    follow = (
        ", a threshold that then followed a quantile released with noise of its own"
        if clipping.adaptive
        else ""
    )
    return f"and clipped its {what} to {norm}{where} ({clipping.scaling.value} clipping){follow}."


def _groups(group_size: int) -> str | None:
    if group_size == 1:
        return None
    return (
        f"Averages of groups of about {group_size} were clipped, so one unit moves a sum by twice the norm."
    )


def _projected(projections: int | None) -> str | None:
    if projections is None:
        return None
    return f"Norms were estimated by {projections} random projections; the cost accounts for their error."


def _correlated(mechanism: DpSgd, words: Words) -> str | None:
    bands = None if mechanism.correlation is None else mechanism.correlation.bands
    return f"A part of it was taken back in the next {bands - 1} {words.step}s (DP-FTRL)." if bands else None


def _noise_added(mechanism: DpSgd, words: Words) -> str:
    """Return what noise was added; the sentence goes on with what it was added to."""
    summation = mechanism.step.summation
    if summation is not None:
        return summation.statement(min(multiplier for multiplier, _ in mechanism.noise))
    return f"Gaussian noise of {_noise(mechanism.noise, words)} times the bound on one contribution was"


def _noise(noise: Sequence[tuple[float, int]], words: Words) -> str:
    told = [
        f"{-round_up(-multiplier, 6):g}" for multiplier, _ in noise
    ]  # rounded down: noise is not overstated
    if len(told) == 1:
        return f"standard deviation {told[0]}"
    counts = ", ".join(str(count) for _, count in noise)
    return f"standard deviation {' then '.join(told)} (for {counts} {words.step}s)"
