# SPDX-License-Identifier: Apache-2.0
"""How `PrivateGradients` computes its passes, and checks of its arguments.

Guarantee  Nothing in `PassSettings` changes the claim: it decides speed and memory alone.
Failure    Arguments that contradict each other raise `InvalidParameterError`, before any row is read.
"""

from dataclasses import dataclass
from enum import Enum

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training.engine.contributions import (
    Contributor,
    NoisySummer,
    refuse_other_units,
    summation_of,
)
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping
from sfumato.training.privacy.dp_sgd import NoisyStep
from sfumato.training.privacy.noise import NoiseSource

__all__ = ["Engines", "PassSettings", "check_settings", "check_units", "noisy_step"]


class Engines(Enum):
    """Ways to get clipped sums. They agree; they differ in speed, memory and in what they support."""

    AUTO = "auto"  # book-keeping, or functional if rows cannot be isolated
    BOOK_KEEPING = "book-keeping"
    FUNCTIONAL = "functional"


@dataclass(frozen=True, kw_only=True, slots=True)
class PassSettings:
    """How passes over a batch are computed. Nothing here changes the claim.

    Args:
        engine: How gradients are computed: "auto", "book-keeping" or "functional". A `Contributor` gives
            something else in their place, such as the updates of clients. A `NoisySummer` gives sums that
            have their noise already.
        microbatch_size: How many units are run at once; None finds out how many fit in memory.
        cuda_graphs: True: replay passes as CUDA graphs from the first step on. False: never. None: if that
            is faster, which is found out after a few steps; so is `compile`. If one of both is True, nothing
            is found out.
        compile: True: compile passes at the first step. False: never. None: if the run is long enough to
            repay it.
        check: Compare the engine with a loop over examples, on synthetic rows.
        planned_steps: How many steps will be taken; None if that is unknown.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> PassSettings(engine="functional").engine
    <Engines.FUNCTIONAL: 'functional'>
    """

    engine: Engines | Contributor | NoisySummer | str = Engines.AUTO
    microbatch_size: int | None = None
    cuda_graphs: bool | None = None
    compile: bool | None = None
    check: bool = True
    planned_steps: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", _engine(self.engine))
        if self.planned_steps is not None:
            _check.count(planned_steps=self.planned_steps)
        if self.microbatch_size is not None:
            _check.count(microbatch_size=self.microbatch_size)

    @property
    def recorded(self) -> bool:
        """Whether passes must be recorded, to be replayed faster."""
        return bool(self.cuda_graphs or self.compile)


def _engine(engine: Engines | Contributor | NoisySummer | str) -> Engines | Contributor | NoisySummer:
    if isinstance(engine, (Contributor, NoisySummer)):
        return engine
    names = [kind.value for kind in Engines]
    if not (isinstance(engine, Engines) or engine in names):
        raise InvalidParameterError(f"unknown engine {engine!r}. Use one of: {', '.join(names)}.")
    return Engines(engine)


def check_settings(
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    passes: PassSettings,
    step: NoisyStep,
    generator: Generator | None,
    noise: NoiseSource | None,
) -> None:
    """Raise if arguments are out of range, or exclude each other."""
    _check.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
    if not isinstance(passes, PassSettings):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"passes is of type {type(passes).__name__}. Pass sfumato.training.PassSettings(...)."
        )
    called = isinstance(passes.engine, (Contributor, NoisySummer))
    refuse_other_units(groups=called and step.group_size > 1)
    if called and (passes.recorded or step.projections is not None):
        raise InvalidParameterError(
            "contributions that are computed elsewhere can neither be recorded nor projected. Leave "
            "cuda_graphs, compile and projections out."
        )
    if passes.recorded and step.projections is not None:
        raise InvalidParameterError(
            "projections are drawn anew at each step, so passes cannot be recorded. Leave cuda_graphs and "
            "compile out."
        )
    if noise is not None and generator is not None:
        raise InvalidParameterError("a noise source has a generator of its own: leave one of the two out.")


def noisy_step(
    clipping: Clipping | CoordinateClipping, group_size: int, projections: int | None, passes: PassSettings
) -> NoisyStep:
    """Return the privacy settings of one step, whose sums may have noise of their own."""
    return NoisyStep(
        clipping=clipping,
        group_size=group_size,
        projections=projections,
        summation=summation_of(
            getattr(passes, "engine", None)
        ),  # another type is refused by `check_settings`
    )


def check_units(count: int, rows_per_unit: int) -> None:
    """Raise unless `count` rows are whole units."""
    _check.count(rows_per_unit=rows_per_unit)
    if count % rows_per_unit:
        raise InvalidParameterError(
            f"a batch must hold whole units of rows_per_unit={rows_per_unit} rows. Pad each unit to that "
            "many rows, with row_weights of 0 for the padding."
        )
