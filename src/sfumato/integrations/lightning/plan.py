# SPDX-License-Identifier: Apache-2.0
"""How many steps a Lightning run has, and how many units a step samples: from public settings alone.

The sampler is ours, so an epoch is `public_size / batch_size` steps, whatever the loader holds. Lightning's
`max_epochs` and `max_steps` decide how many steps are planned, and nothing else does.
"""

from dataclasses import replace

from lightning.pytorch import Trainer

from sfumato.errors import InvalidParameterError
from sfumato.training.description import Privacy

__all__ = ["planned", "steps_per_epoch", "with_steps"]


def steps_per_epoch(privacy: Privacy, *, batch_size: int, public_size: int | None) -> int:
    """Return how many steps an epoch has.

    Args:
        privacy: What is claimed.
        batch_size: That of the loader.
        public_size: How many units there are, which may be known.

    Returns:
        The number of steps, at least 1.

    Raises:
        InvalidParameterError: If the size is not declared, or batch sizes contradict each other.

    >>> steps_per_epoch(Privacy(), batch_size=100, public_size=1_000)
    10
    """
    if public_size is None:
        raise InvalidParameterError(
            "the size of the data is private unless it is declared. Pass PrivateStrategy(public_size=...)."
        )
    return max(1, round(public_size / _expected(privacy, batch_size, public_size)))


def _expected(privacy: Privacy, batch_size: int, public_size: int) -> float:
    sampling = privacy.mechanism.sampling if privacy.mechanism is not None else privacy.sampling
    if sampling is not None:
        expected = float(sampling.expected_batch_size(public_size))
    else:
        expected = float(batch_size if privacy.expected_batch_size is None else privacy.expected_batch_size)
    if abs(expected - batch_size) >= 1:
        raise InvalidParameterError(
            f"the plan samples {expected:g} units a step on average, but the loader has "
            f"batch_size={batch_size}. Give the loader the batch size of the plan."
        )
    return expected


def planned(trainer: Trainer, steps_per_epoch: int) -> int:
    """Return how many steps the trainer was told to take.

    Args:
        trainer: The trainer.
        steps_per_epoch: How many steps an epoch has.

    Returns:
        The smaller one of `max_steps` and the steps of `max_epochs`.

    Raises:
        InvalidParameterError: If there is no limit.
    """
    limits: list[int] = []
    if trainer.max_steps != -1:
        limits.append(trainer.max_steps)
    if trainer.max_epochs is not None and trainer.max_epochs != -1:
        limits.append(trainer.max_epochs * steps_per_epoch)
    if not limits or min(limits) < 1:
        raise InvalidParameterError(
            "a private run has a fixed number of steps, which is charged before the first one. Pass "
            "Trainer(max_epochs=...) or Trainer(max_steps=...), at least 1."
        )
    return min(limits)


def with_steps(privacy: Privacy, steps: int, *, batch_size: int) -> Privacy:
    """Return what is claimed for a number of steps.

    Args:
        privacy: What is claimed, without the number of steps or with the same.
        steps: How many steps Lightning takes.
        batch_size: That of the loader.

    Returns:
        The whole claim.

    Raises:
        InvalidParameterError: If the claim has another number of steps.
    """
    own = privacy.mechanism.steps if privacy.mechanism is not None else privacy.steps
    if privacy.epochs is not None:
        raise InvalidParameterError("epochs belongs to Lightning: pass Trainer(max_epochs=...).")
    if own is not None and own != steps:
        raise InvalidParameterError(
            f"the plan has {own} steps, but the trainer takes {steps}. Pass Trainer(max_steps={own}, "
            "max_epochs=-1)."
        )
    if privacy.mechanism is not None:
        return privacy
    sampled = privacy.sampling is not None or privacy.expected_batch_size is not None
    expected = privacy.expected_batch_size if sampled else float(batch_size)
    return replace(privacy, steps=steps, expected_batch_size=expected)
