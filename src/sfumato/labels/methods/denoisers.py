# SPDX-License-Identifier: Apache-2.0
"""Projections of noisy gradients on the gradients that public features allow: SelfSpan, SelfConv and AltConv.

A noisy gradient is moved to the nearest point of a set: the span (SelfSpan) or the convex hull (SelfConv,
AltConv) of the gradients of some rows for all labels they could have. Columns are unclipped, as published,
or clipped one by one with `clip_norm`. Zero lies in the hull of a row's columns
(`projection.gradient_products`), so a clipped gradient of a row lies in it too, whatever its label. A mean
of clipped gradients of a batch lies in the hull of the batch and is its own projection.

- SelfSpan and SelfConv use the rows of the step's own batch. The noiseless gradient is a mean over these
  rows and lies in the set.
- AltConv draws rows independently of the batch. The noiseless gradient is near their hull, not in it.
- Smoothing: of the weights w of a hull's columns, `smoothing` w + (1 - `smoothing`) / columns is used. The
  second part is the gradient toward even predictions. It has no noise and keeps the model from becoming too
  confident. The paper uses 0.75; 1 does not smooth.
- Averaging: AltConv may first average noisy gradients over steps (`averaging`). Weights change slowly and
  noise is fresh in each step, so the average has less noise, and is a little older.
- `log` has a proven bound on the distance of each projection to the nearest point (`projection.span`,
  `projection.hull`), and the statement of the run gives the largest. A solver that stops early is reported
  there.

Guarantee  Post-processing, which costs nothing. A denoiser gets a noisy gradient, features and weights; it
           gets no label and no gradient without noise. The claim is that of the step before it
           (`training.privacy.dp_sgd`): replacing one label replaces one clipped gradient by another, each of
           norm at most C. The sum moves by at most 2 C, and noise is priced for 2 C. The scaling of columns,
           smoothing and a projection that stopped early do not enter that bound. SelfSpan and SelfConv
           reveal who is in a batch. Sampling then amplifies nothing, and a label is charged each time it is
           used; `training.privacy.denoising` refuses any other accounting.
Source     Ghazi, Huang, Kamath, Kumar, Manurangsi, Zhang 2024, "LabelDP-Pro: Learning with label differential
           privacy via projections", section 3.3 for smoothing. Averaging before the projection is our
           addition.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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

__all__ = ["AltConvDenoiser", "Denoised", "SelfConvDenoiser", "SelfSpanDenoiser"]

Gradient = Mapping[str, Tensor]
_lerp: Callable[..., list[Tensor]] = torch._foreach_lerp  # pyright: ignore - one launch for all parameters
_mul: Callable[..., list[Tensor]] = torch._foreach_mul  # pyright: ignore
_ONE_PASS = 2**29  # bytes: columns that would take no more come from one pass over rows times classes
_OWN = (
    "Each noisy gradient was projected on the {where} of the gradients of its batch for all labels, which "
    "needs features and weights alone ({name})."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Denoised:
    """The result of one projection.

    Attributes:
        iterations: The number of iterations of the solver.
        distance: A bound on the distance to the nearest point, over the length of the noisy gradient.
        gap: The relative gap of a projection on a hull, else None.
        reached: Whether the solver ended within its tolerance.
    """

    iterations: int
    distance: float
    gap: float | None
    reached: bool


@dataclass(kw_only=True)
class SelfSpanDenoiser:
    """Project on the span of the gradients of the batch's rows, for all labels.

    Args:
        features: The public features of all rows.
        classes: The number of classes, 2 or more.
        solver: The solver of the projection.
        clip_norm: The L2 bound on each column, or None for unclipped columns.
        microbatch_size: The number of rows in memory at once, or None for all. It does not change the result.
        log: The results of the projections so far.
    """

    features: Tensor = field(repr=False)
    classes: int
    solver: Span | Solver = field(default_factory=Span)
    clip_norm: float | None = None
    microbatch_size: int | None = None
    log: list[Denoised] = field(default_factory=list[Denoised], repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_classes(self.classes)

    @property
    def reveals_batches(self) -> bool:
        """The projection is computed from the features of the batch."""
        return True

    @property
    def holds_rows(self) -> bool:
        """It has the features of the data."""
        return True

    def denoise(
        self, model: nn.Module, gradient: Gradient, *, rows: Tensor | None, generator: Generator
    ) -> Gradient:
        """Return the nearest point, or the gradient itself if the batch is empty.

        Args:
            model: The model at its current weights.
            gradient: The noisy gradient, by the name of each parameter.
            rows: The numbers of the rows in the batch.
            generator: Not used.

        Returns:
            The projected gradient, by the name of each parameter.
        """
        if rows is None or not len(rows):
            return gradient
        return _projected(self, model, gradient, rows)

    def statement(self) -> str:
        """Describe the projection for the statement of a run.

        Returns:
            One or a few sentences, with the proven distance of the projections so far.
        """
        return _OWN.format(where="span", name="SelfSpan") + _certified(self.log)

    def state_dict(self) -> dict[str, Any]:
        """Save the state for a checkpoint.

        Returns:
            The results of the projections so far.
        """
        return {"log": [asdict(entry) for entry in self.log]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint.

        Args:
            state: What `state_dict` returned.
        """
        self.log[:] = [Denoised(**entry) for entry in state["log"]]


@dataclass(kw_only=True)
class SelfConvDenoiser(SelfSpanDenoiser):
    """Project on the convex hull of the gradients of the batch's rows, for all labels.

    Args:
        features: The public features of all rows.
        classes: The number of classes, 2 or more.
        solver: The solver of the projection.
        clip_norm: The L2 bound on each column, or None for unclipped columns.
        microbatch_size: The number of rows in memory at once, or None for all. It does not change the result.
        log: The results of the projections so far.
        smoothing: The share of the projection in the result, in (0, 1]. 1 does not smooth.
    """

    solver: Span | Solver = field(default_factory=ColumnGeneration)
    smoothing: float = 0.75

    def __post_init__(self) -> None:
        SelfSpanDenoiser.__post_init__(self)
        require_smoothing(self.smoothing)

    def statement(self) -> str:
        """Describe the projection for the statement of a run.

        Returns:
            One or a few sentences, with the proven distance of the projections so far.
        """
        own = _OWN.format(where="convex hull", name="SelfConv")
        return own + _smoothed(self.smoothing) + _certified(self.log)


@dataclass(kw_only=True)
class AltConvDenoiser:
    """Project on the convex hull of the gradients of an alternative batch of public rows, for all labels.

    Args:
        features: The public features of all rows.
        classes: The number of classes, 2 or more.
        batch_size: The number of rows of an alternative batch.
        averaging: The decay of an average of noisy gradients over steps, in [0, 1). 0 does not average.
        smoothing: The share of the projection in the result, in (0, 1]. 1 does not smooth.
        solver: The solver of the projection.
        clip_norm: The L2 bound on each column, or None for unclipped columns.
        microbatch_size: The number of rows in memory at once, or None for all. It does not change the result.
        log: The results of the projections so far.

    >>> AltConvDenoiser(features=torch.zeros(100, 4), classes=3, batch_size=10)
    AltConvDenoiser(classes=3, batch_size=10, averaging=0.0, smoothing=0.75, solver=ColumnGeneration(...), ...
    """

    features: Tensor = field(repr=False)
    classes: int
    batch_size: int = 128
    averaging: float = 0.0
    smoothing: float = 0.75
    solver: Solver = field(default_factory=ColumnGeneration)
    clip_norm: float | None = None
    microbatch_size: int | None = None
    log: list[Denoised] = field(default_factory=list[Denoised], repr=False, compare=False)
    _average: dict[str, Tensor] = field(default_factory=dict[str, Tensor], init=False, repr=False)
    _weight: float = field(default=0.0, init=False, repr=False)  # of the gradients that are in the average

    def __post_init__(self) -> None:
        _require_classes(self.classes)
        _check.count(batch_size=self.batch_size)
        require_smoothing(self.smoothing)
        require_averaging(self.averaging)
        if self.batch_size > len(self.features):
            raise InvalidParameterError(
                f"an alternative batch of {self.batch_size} rows cannot be drawn from {len(self.features)} "
                "public rows. Use a smaller one."
            )

    @property
    def reveals_batches(self) -> bool:
        """Alternative batches are drawn independently of the batch."""
        return False

    @property
    def holds_rows(self) -> bool:
        """It has the features of the data."""
        return True

    def denoise(
        self, model: nn.Module, gradient: Gradient, *, rows: Tensor | None, generator: Generator
    ) -> Gradient:
        """Return the point of an alternative batch's hull that is nearest to the average of noisy gradients.

        Args:
            model: The model at its current weights.
            gradient: The noisy gradient, by the name of each parameter.
            rows: Not used; batches stay secret.
            generator: The source of randomness for the alternative batch.

        Returns:
            The projected gradient, by the name of each parameter.
        """
        drawn = torch.from_numpy(subset(len(self.features), self.batch_size, generator))
        return _projected(self, model, self._averaged(gradient), drawn)

    def _averaged(self, gradient: Gradient) -> Gradient:
        """Take a gradient into the average, whose weights fall by `averaging` with each step of age."""
        if not self.averaging:
            return gradient
        kept, fresh = self.averaging, 1 - self.averaging
        parts = list(gradient.values())
        if self._average:
            before = [self._average[name].to(part) for name, part in gradient.items()]
            average = _lerp(parts, before, kept)
        else:
            average = _mul(parts, fresh)
        self._average = dict(zip(gradient, average, strict=True))
        self._weight = kept * self._weight + fresh
        return dict(zip(gradient, _mul(average, 1 / self._weight), strict=True))

    def statement(self) -> str:
        """Describe the projection for the statement of a run.

        Returns:
            One or a few sentences, with the proven distance of the projections so far.
        """
        averaged = f", averaged over steps with a decay of {self.averaging:g}," if self.averaging > 0 else ""
        return (
            f"Each noisy gradient{averaged} was projected on the convex hull of the gradients of "
            f"{self.batch_size} other rows, drawn independently of its batch, for all labels, which needs "
            f"features and weights alone (AltConv).{_smoothed(self.smoothing)}{_certified(self.log)}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Save the state for a checkpoint.

        Returns:
            The average of noisy gradients and the results of the projections so far.
        """
        return {
            "log": [asdict(entry) for entry in self.log],
            "average": {name: part.cpu() for name, part in self._average.items()},
            "weight": self._weight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint.

        Args:
            state: What `state_dict` returned.
        """
        self.log[:] = [Denoised(**entry) for entry in state["log"]]
        self._average = dict(state["average"])
        self._weight = float(state["weight"])


def _projected(
    denoiser: SelfSpanDenoiser | AltConvDenoiser, model: nn.Module, gradient: Gradient, rows: Tensor
) -> Gradient:
    """Return the point nearest to a gradient, smoothed, and log the proven distance."""
    place = next(iter(gradient.values())).device
    features = denoiser.features[rows.to(denoiser.features.device)].to(place)
    # Dropout would change gradients between passes, and tf32 products would differ by more than a gap.
    with evaluating(model), whole_floats(place):
        products = LabelGradients(
            model,
            features,
            classes=denoiser.classes,
            clip_norm=denoiser.clip_norm,
            microbatch_size=denoiser.microbatch_size,
            most_bytes=_ONE_PASS,
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
    parts = _lerp([even[name] for name in point], list(point.values()), smoothing)
    return dict(zip(point, parts, strict=True))


def _smoothed(smoothing: float) -> str:
    if smoothing == 1:
        return ""
    return f" A share of {1 - smoothing:g} of its weights was spread over all of these gradients evenly."


def _certified(log: Sequence[Denoised]) -> str:
    """Return how far projections can be from the nearest points, rounded up, as a sentence."""
    if not log:
        return ""
    early = sum(not entry.reached for entry in log)
    stopped = f" {early} of {len(log)} projections stopped before their tolerance." if early else ""
    unknown = sum(not math.isfinite(entry.distance) for entry in log)
    if unknown:
        known = f"of {len(log)} projections to the nearest point is not known"
        return f" The distance of {unknown} {known}.{stopped}"
    farthest = round_up(100 * max(entry.distance for entry in log), 2)
    return (
        " Before smoothing, the distance of each result to the nearest point is proven to be within "
        f"{farthest:g}% of the length of the noisy gradient.{stopped}"
    )


def require_averaging(averaging: float) -> None:
    """Raise unless this decay keeps something of the newest gradient."""
    if not 0 <= averaging < 1:
        raise InvalidParameterError(f"averaging must be in [0, 1), but {averaging!r} was given.")


def require_smoothing(smoothing: float) -> None:
    """Raise unless this share keeps something of the noisy gradient."""
    _check.in_range(0, 1, smoothing=smoothing)
    if not smoothing > 0:
        raise InvalidParameterError(
            "smoothing must be above 0, since at 0 the labels would not be used. 1 does not smooth."
        )


def _require_classes(classes: int) -> None:
    _check.count(classes=classes)
    if classes < 2:
        raise InvalidParameterError("classes must be 2 or more: with one class there is nothing to learn.")
