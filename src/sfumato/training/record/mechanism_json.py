# SPDX-License-Identifier: Apache-2.0
"""A mechanism as plain values, for the file of a run, and back.

Failure    Only the classes of this library are read. What a file names beyond them is refused.
"""

import enum
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Final

from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping, CoordinateClipping, Scaling
from sfumato.training.privacy.correlated_noise import BandedNoise
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

__all__ = ["mechanism_from", "plain_mechanism"]

_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        AdaptiveClip,
        BandedNoise,
        Clipping,
        CoordinateClipping,
        CyclicBatches,
        FixedSizeSampling,
        NoisyStep,
        PoissonSampling,
        ShuffledBatches,
        TruncatedPoissonSampling,
    )
}

# Sums with noise of their own, of a room above this one: loaded when a run has one.
_SUMMATIONS: Final[Mapping[str, str]] = {"SecureSum": "sfumato.federated.secure_sum.secure_sum"}


def plain_mechanism(mechanism: DpSgd) -> dict[str, Any] | None:
    """Return a mechanism as plain values; None if it has a part of a class that is not of this library.

    >>> from sfumato.accounting.guarantee import Relation
    >>> step = NoisyStep(clipping=Clipping(clip_norm=1.0))
    >>> run = DpSgd(step=step, sampling=PoissonSampling(sampling_rate=0.1), noise=[(2.0, 3)],
    ...             relation=Relation.ADD_REMOVE)
    >>> mechanism_from(plain_mechanism(run)) == run
    True
    """
    try:
        return {
            "step": _plain(mechanism.step),
            "sampling": _plain(mechanism.sampling),
            "noise": [list(part) for part in mechanism.noise],
            "relation": mechanism.relation.value,
            "correlation": None if mechanism.correlation is None else _plain(mechanism.correlation),
        }
    except KeyError:
        return None


def mechanism_from(plain: Any) -> DpSgd:
    """Return the mechanism of plain values; raise if they are not those of a mechanism."""
    if plain is None:
        raise InvalidParameterError(
            "the run has a sampler or a way of clipping of its own class, which a file cannot hold. Build "
            "the mechanism anew."
        )
    return DpSgd(
        step=_made(plain["step"]),
        sampling=_made(plain["sampling"]),
        noise=[(float(noise), int(count)) for noise, count in plain["noise"]],
        relation=plain["relation"],
        correlation=None if plain.get("correlation") is None else _made(plain["correlation"]),
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        name = type(value).__name__
        if _kind(name) is not type(value):
            raise KeyError(name)
        return {"kind": name} | {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType] - names to numbers
    return value.value if isinstance(value, enum.Enum) else value


def _kind(name: str) -> type[Any]:
    """Return a class by its name; raise KeyError if it is none of this library's."""
    if name in _SUMMATIONS:
        return getattr(import_module(_SUMMATIONS[name]), name)
    return _KINDS[name]


def _made(plain: Mapping[str, Any]) -> Any:
    try:
        kind = _kind(plain["kind"])
    except KeyError:
        raise InvalidParameterError(f"unknown part {plain['kind']!r} of a mechanism.") from None
    own = {
        name: _made(value) if _is_part(value) else value for name, value in plain.items() if name != "kind"
    }
    if "scaling" in own:
        own["scaling"] = Scaling(own["scaling"])
    return kind(**own)


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and "kind" in value
