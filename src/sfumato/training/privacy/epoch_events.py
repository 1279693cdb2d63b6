# SPDX-License-Identifier: Apache-2.0
"""Events of many steps: all of them composed, or the most expensive one of each epoch.

Guarantee  If a unit takes part once in an epoch, in batches that do not depend on the data, then an epoch
           costs no more than its most expensive step. Given the batches, neighbors differ in one step of each
           epoch, and all other steps are the same function of what was released before.
Failure    Events of one epoch that differ in more than their Gaussian noise raise `UnsupportedEventError`.
"""

from collections.abc import Sequence

from dp_accounting import dp_event as dp

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.errors import UnsupportedEventError

__all__ = ["Steps", "composed", "once_per_epoch"]

Steps = Sequence[tuple[DpEvent, int]]  # what the steps release without sampling, in order: (event, how often)


def composed(steps: Steps) -> DpEvent:
    """Return what all steps cost together.

    >>> composed([(dp.GaussianDpEvent(1.0), 3)])
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.0), count=3)
    """
    for _, count in steps:
        _check.count(count_of_steps=count)
    return events.compose(*(dp.SelfComposedDpEvent(event, count) for event, count in steps))


def once_per_epoch(steps: Steps, steps_per_epoch: int) -> list[tuple[DpEvent, int]]:
    """Return the most expensive event of each epoch, with the number of epochs it stands for.

    An epoch that has begun counts as a whole.

    >>> once_per_epoch([(dp.GaussianDpEvent(1.0), 7)], steps_per_epoch=4)
    [(GaussianDpEvent(noise_multiplier=1.0), 1), (GaussianDpEvent(noise_multiplier=1.0), 1)]
    """
    epochs: list[tuple[DpEvent, int]] = []
    seen: list[DpEvent] = []
    room = steps_per_epoch
    for event, count in steps:
        _check.count(count_of_steps=count)
        while count > 0:
            if room == steps_per_epoch and count >= steps_per_epoch:  # whole epochs of this event alone
                epochs.append((event, count // steps_per_epoch))
                count %= steps_per_epoch
                continue
            seen.append(event)
            taken = min(count, room)
            room, count = room - taken, count - taken
            if room == 0:
                epochs.append((_most_expensive(seen), 1))
                seen, room = [], steps_per_epoch
    return [*epochs, (_most_expensive(seen), 1)] if seen else epochs


def _most_expensive(parts: Sequence[DpEvent]) -> DpEvent:
    """Return the event that costs most at every delta, under every relation: the one with the least noise."""
    if all(part == parts[0] for part in parts):
        return parts[0]
    scales = [events.gaussian_scale(part) for part in parts]
    if all(scale is not None for scale in scales):
        return min(zip(scales, parts, strict=True), key=lambda pair: pair[0] or 0.0)[1]
    projected = [part for part in parts if isinstance(part, events.JohnsonLindenstraussDpEvent)]
    if len(projected) == len(parts) and len({part.projections for part in projected}) == 1:
        return min(projected, key=lambda part: part.noise_multiplier)
    raise UnsupportedEventError(
        "the steps of one epoch release events that differ in more than their Gaussian noise, so it is not "
        "known which one costs most. Keep the event the same within an epoch, or use Gaussian noise."
    )
