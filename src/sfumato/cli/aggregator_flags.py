# SPDX-License-Identifier: Apache-2.0
"""The aggregator that the flags of `sfumato pate` describe.

Failure    A flag that the aggregator does not have is refused, not ignored.
"""

from collections.abc import Sequence

from sfumato import _check
from sfumato.cli.pate_settings import PateSettings
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import Aggregator, ConfidentGNMax, GNMax, LNMax

__all__ = ["aggregator_of"]

_AGGREGATORS = ("gnmax", "confident", "lnmax")
# Votes for each teacher, as published for 250 teachers: noise 40, threshold 200 with noise 150; scale 20.
_NOISE, _THRESHOLD, _THRESHOLD_NOISE, _SCALE = 0.16, 0.8, 0.6, 0.08


def aggregator_of(
    settings: PateSettings, usual: tuple[Aggregator, Sequence[float] | None], *, teachers: int
) -> tuple[Aggregator, Sequence[float] | None]:
    """Return how votes become answers and the agreement to test: from flags, or else as is `usual`."""
    aggregator, agreement = usual
    chosen = settings.aggregator or _name(aggregator)
    if chosen not in _AGGREGATORS:
        raise InvalidParameterError(
            f"unknown --aggregator {chosen!r}. Use one of: {', '.join(_AGGREGATORS)}."
        )
    if chosen != "confident" and (settings.threshold is not None or settings.threshold_noise is not None):
        raise InvalidParameterError("--threshold and --threshold-noise are for --aggregator confident.")
    same = chosen == _name(aggregator)
    if not same or settings.noise is not None or settings.threshold is not None:
        agreement = None  # what was expected of the usual noise
    before = aggregator if same else _published(chosen, teachers)
    return _changed(before, settings), settings.agreement or agreement


def _name(aggregator: Aggregator) -> str:
    if isinstance(aggregator, LNMax):
        return "lnmax"
    return "confident" if isinstance(aggregator, ConfidentGNMax) else "gnmax"


def _published(name: str, teachers: int) -> Aggregator:
    if name == "lnmax":
        return LNMax(scale=_SCALE * teachers)
    if name == "gnmax":
        return GNMax(stddev=_NOISE * teachers)
    return ConfidentGNMax(
        threshold=_THRESHOLD * teachers,
        threshold_stddev=_THRESHOLD_NOISE * teachers,
        stddev=_NOISE * teachers,
    )


def _changed(aggregator: Aggregator, settings: PateSettings) -> Aggregator:
    """Return an aggregator with the noise and the threshold of flags."""
    for name in ("noise", "threshold_noise"):
        value = getattr(settings, name)
        if value is not None:
            _check.positive(**{name: value})
    noise = settings.noise
    if isinstance(aggregator, LNMax):
        return aggregator if noise is None else LNMax(scale=noise)
    if isinstance(aggregator, ConfidentGNMax):
        threshold, above = settings.threshold, settings.threshold_noise
        return ConfidentGNMax(
            threshold=aggregator.threshold if threshold is None else threshold,
            threshold_stddev=aggregator.threshold_stddev if above is None else above,
            stddev=aggregator.stddev if noise is None else noise,
        )
    return aggregator if noise is None else GNMax(stddev=noise)
