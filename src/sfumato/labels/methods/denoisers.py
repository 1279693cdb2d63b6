# SPDX-License-Identifier: Apache-2.0
"""SelfSpan, SelfConv and AltConv: noisy gradients, moved to where a gradient of public features can be.

Guarantee  Post-processing, which costs nothing: a denoiser is given a noisy gradient, features and weights,
           and neither a label nor a gradient without noise. The claim is that of the step before it
           (`dp_sgd`): replacing one label replaces one clipped gradient by another, each of norm
           at most C, so that the sum moves by at most 2 C, and noise is priced for 2 C. Nothing here enters
           that bound: neither how columns are scaled, nor smoothing, nor a projection that stopped early.
Set        The span (SelfSpan) or the convex hull (SelfConv, AltConv) of the gradients of some rows for all
           labels they could have. Columns are unclipped, as published, or with `clip_norm` clipped one by
           one. A row's columns hold zero in their hull (`products`), so a clipped gradient of a row lies in
           it either way, whatever its label. A mean of clipped gradients of a batch lies in the hull of the
           batch: its projection is itself.
Batches    SelfSpan and SelfConv use the rows of the step's own batch, of which the noiseless gradient is a
           mean, so it lies in the set. They thereby show who is in the batch: nothing is amplified by
           sampling, and a label is paid for each time it is used (`denoising` refuses any other
           accounting). AltConv draws rows of its own, independently of the batch, which stays secret; the
           noiseless gradient is near their hull, not in it.
Smoothing  Of the weights w of a hull's columns, `smoothing` w + (1 - `smoothing`) / columns is taken: the
           rest is the gradient toward even predictions, which has no noise and keeps the model from being
           sure. Published with 0.75; 1 is none.
Average    AltConv may first average noisy gradients over steps (`averaging`): weights move slowly, noise is
           fresh each time. What is projected then has less noise, and is a little old.
Certified  `log` has a true bound on how far each projection is from the nearest point (`span`, `hull`), and
           the run's statement says the largest. Solvers that stop early say so; that costs no privacy.
Source     Ghazi, Huang, Kamath, Kumar, Manurangsi, Zhang 2024, "LabelDP-Pro: Learning with label differential
           privacy via projections", section 3.3 for smoothing. The average before the projection is ours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting import round_up
from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.column_generation import ColumnGeneration
from sfumato.labels.projection.gradient_products import LabelGradients
from sfumato.labels.projection.hull import Projection, Solver
from sfumato.labels.projection.span import Span
from sfumato.mechanisms.random import Generator
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.fast.precision import whole_floats
from sfumato.training.privacy.batch_draws import subset

__all__ = ["AltConv", "Denoised", "SelfConv", "SelfSpan"]

Gradient = Mapping[str, Tensor]
_FORMED = 2**29  # bytes: on a GPU columns that take no more are formed, which is faster there
_OWN = (
    "Each noisy gradient was projected on the {where} of the gradients of its batch for all labels, which "
    "needs features and weights alone ({name})."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Denoised:
    """How one projection went."""

    iterations: int
    distance: float  # the most that it is away from the nearest point, over the length of the noisy gradient
    gap: float | None  # of a hull: the relative gap
    reached: bool  # whether it ended within the solver's tolerance


@dataclass(kw_only=True)
class SelfSpan:
    """Project on the span of the gradients of the batch's rows, for all labels."""

    features: Tensor = field(repr=False)  # of all rows
    classes: int
    solver: Span | Solver = field(default_factory=Span)
    clip_norm: float | None = None  # of each column
    microbatch_size: int | None = None
    log: list[Denoised] = field(default_factory=list[Denoised], repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_classes(self.classes)

    @property
    def reveals_batches(self) -> bool:
        """It computes from the features of the batch."""
        return True

    def denoise(
        self, model: nn.Module, gradient: Gradient, *, rows: Tensor | None, generator: Generator
    ) -> Gradient:
        """Return the nearest point; where there are no rows, the gradient as it is."""
        if rows is None or not len(rows):
            return gradient
        return _projected(self, model, gradient, rows)

    def statement(self) -> str:
        """Return what it does, in a sentence."""
        return _OWN.format(where="span", name="SelfSpan") + _certified(self.log)

    def state_dict(self) -> dict[str, Any]:
        """Return how the projections went so far."""
        return {"log": [asdict(entry) for entry in self.log]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.log[:] = [Denoised(**entry) for entry in state["log"]]


@dataclass(kw_only=True)
class SelfConv(SelfSpan):
    """Project on the convex hull of the gradients of the batch's rows, for all labels."""

    solver: Span | Solver = field(default_factory=ColumnGeneration)
    smoothing: float = 0.75

    def __post_init__(self) -> None:
        SelfSpan.__post_init__(self)
        require_smoothing(self.smoothing)

    def statement(self) -> str:
        """Return what it does, in a sentence."""
        own = _OWN.format(where="convex hull", name="SelfConv")
        return own + _smoothed(self.smoothing) + _certified(self.log)


@dataclass(kw_only=True)
class AltConv:
    """Project on the convex hull of the gradients of an alternative batch of public rows, for all labels.

    >>> AltConv(features=torch.zeros(100, 4), classes=3, batch_size=10)
    AltConv(classes=3, batch_size=10, averaging=0.0, smoothing=0.75, solver=ColumnGeneration(...), ...)
    """

    features: Tensor = field(repr=False)  # of all rows
    classes: int
    batch_size: int = 128
    averaging: float = 0.0
    smoothing: float = 0.75
    solver: Solver = field(default_factory=ColumnGeneration)
    clip_norm: float | None = None  # of each column
    microbatch_size: int | None = None
    log: list[Denoised] = field(default_factory=list[Denoised], repr=False, compare=False)
    _average: dict[str, Tensor] = field(default_factory=dict[str, Tensor], init=False, repr=False)
    _weight: float = field(default=0.0, init=False, repr=False)  # of the gradients that are in the average

    def __post_init__(self) -> None:
        _require_classes(self.classes)
        _check.count(batch_size=self.batch_size)
        require_smoothing(self.smoothing)
        if not 0 <= self.averaging < 1:
            raise InvalidParameterError(f"averaging must be in [0, 1), but {self.averaging!r} was given.")
        if self.batch_size > len(self.features):
            raise InvalidParameterError(
                f"an alternative batch of {self.batch_size} rows cannot be drawn from {len(self.features)} "
                "public rows. Use a smaller one."
            )

    @property
    def reveals_batches(self) -> bool:
        """It knows nothing of the batch."""
        return False

    def denoise(
        self, model: nn.Module, gradient: Gradient, *, rows: Tensor | None, generator: Generator
    ) -> Gradient:
        """Return the point of an alternative batch's hull nearest to the average of noisy gradients."""
        drawn = torch.from_numpy(subset(len(self.features), self.batch_size, generator))
        return _projected(self, model, self._averaged(gradient), drawn)

    def _averaged(self, gradient: Gradient) -> Gradient:
        """Take a gradient into the average, whose weights fall by `averaging` with each step of age."""
        kept, fresh = self.averaging, 1 - self.averaging
        self._average = {
            name: fresh * part + (kept * self._average[name].to(part) if self._average else 0.0)
            for name, part in gradient.items()
        }
        self._weight = kept * self._weight + fresh
        return {name: part / self._weight for name, part in self._average.items()}

    def statement(self) -> str:
        """Return what it does, in a sentence."""
        averaged = f", averaged over steps with a decay of {self.averaging:g}," if self.averaging > 0 else ""
        return (
            f"Each noisy gradient{averaged} was projected on the convex hull of the gradients of "
            f"{self.batch_size} other rows, drawn independently of its batch, for all labels, which needs "
            f"features and weights alone (AltConv).{_smoothed(self.smoothing)}{_certified(self.log)}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the average and how the projections went so far."""
        return {
            "log": [asdict(entry) for entry in self.log],
            "average": {name: part.cpu() for name, part in self._average.items()},
            "weight": self._weight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.log[:] = [Denoised(**entry) for entry in state["log"]]
        self._average = dict(state["average"])
        self._weight = float(state["weight"])


def _projected(denoiser: SelfSpan | AltConv, model: nn.Module, gradient: Gradient, rows: Tensor) -> Gradient:
    """Return the point nearest to a gradient, smoothed, and note how near it is known to be."""
    place = next(iter(gradient.values())).device
    features = denoiser.features[rows.to(denoiser.features.device)].to(place)
    # Dropout would make other gradients at each pass, and tf32 products that disagree by more than a gap.
    with evaluating(model), whole_floats(place):
        products = LabelGradients(
            model,
            features,
            classes=denoiser.classes,
            clip_norm=denoiser.clip_norm,
            microbatch_size=denoiser.microbatch_size,
            most_bytes=_FORMED if place.type == "cuda" else 0,
        )
        found = denoiser.solver.solve(products, gradient)
        better = _mixed(found.gradient, products, getattr(denoiser, "smoothing", 1.0))
    gap = found.relative_gap if isinstance(found, Projection) else None
    denoiser.log.append(
        Denoised(
            iterations=found.iterations,
            distance=found.relative_distance,
            gap=gap,
            reached=found.reached,
        )
    )
    return better


def _mixed(point: Gradient, products: LabelGradients, smoothing: float) -> Gradient:
    """Return G (smoothing w + (1 - smoothing) / columns), of a point G w."""
    if smoothing == 1:
        return point
    one = next(iter(point.values()))
    shape = products.rows, products.classes
    even = products.combine(torch.full(shape, 1 / (products.rows * products.classes)).to(one))
    return {name: torch.lerp(even[name], part, smoothing) for name, part in point.items()}


def _smoothed(smoothing: float) -> str:
    if smoothing == 1:
        return ""
    return f" A share of {1 - smoothing:g} of its weights was spread over all of these gradients evenly."


def _certified(log: Sequence[Denoised]) -> str:
    """Return how far projections can be from the nearest points, in a sentence: rounded up."""
    if not log:
        return ""
    early = sum(not entry.reached for entry in log)
    stopped = f" {early} of {len(log)} projections stopped before their tolerance." if early else ""
    unknown = sum(not math.isfinite(entry.distance) for entry in log)
    if unknown:
        return (
            f" How far {unknown} of {len(log)} projections are from the nearest point is not known.{stopped}"
        )
    farthest = round_up(100 * max(entry.distance for entry in log), 2)
    return (
        f" Each result, before any smoothing, is known to be within {farthest:g}% of the noisy gradient's "
        f"length of the nearest point.{stopped}"
    )


def require_smoothing(smoothing: float) -> None:
    """Require a share that leaves something of the noisy gradient."""
    _check.in_range(0, 1, smoothing=smoothing)
    if not smoothing > 0:
        raise InvalidParameterError(
            "smoothing must be above 0: at 0 nothing that labels say would be left. 1 smooths nothing."
        )


def _require_classes(classes: int) -> None:
    _check.count(classes=classes)
    if classes < 2:
        raise InvalidParameterError("classes must be 2 or more: with one class there is nothing to learn.")
