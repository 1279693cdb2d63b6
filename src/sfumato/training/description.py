# SPDX-License-Identifier: Apache-2.0
"""The description of a training run: five frozen objects that every way to train accepts.

- `Privacy`: what is claimed.
- `Optimization`: how the model is optimized.
- `Evaluation`: how the model is evaluated.
- `Storage`: where the run is kept.
- `Charge`: which account pays.

`train`, `Trainer`, `PrivateData.train` and the command line take the same objects; `labels.train` takes the
last three. Each field is also a keyword of these functions: `train(model, data, epsilon=3, epochs=10)` builds
`Privacy(epsilon=3, epochs=10)`. `RunKeywords` lists the keywords for type checkers and editors.
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypedDict, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.plan import Plan
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.training.data.units import Augment
from sfumato.training.engine.losses import Loss, cross_entropy, refuse_criterion
from sfumato.training.optimizers import ClipSchedule, MakeOptimizer, MakeSchedule
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping
from sfumato.training.privacy.correlated_noise import BandedNoise
from sfumato.training.privacy.denoising import Denoiser
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.sampling import PoissonSampling, Sampling
from sfumato.training.record.metrics import OnEvaluation, RunLogger, Score

__all__ = [
    "Charge",
    "Evaluation",
    "Optimization",
    "Privacy",
    "RunDescription",
    "RunKeywords",
    "Storage",
    "describe",
]

Part = TypeVar("Part", "Privacy", "Optimization", "Evaluation", "Storage", "Charge")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Privacy:
    """What a run claims, and for whom.

    Pass `epsilon` (the noise is computed), or `noise_multiplier` (epsilon is computed), or both (the run
    stops before the first step that would exceed epsilon), or a whole `mechanism`. With an account and none
    of them, the run spends all that the account has left.

    Args:
        epsilon: The privacy budget of the run.
        delta: The delta of the guarantee. Default: that of the account, or else the largest power of ten
            below 1 / `public_size`.
        noise_multiplier: Standard deviation of the noise, divided by the clip norm.
        epochs: Steps times sampling rate. Pass either `epochs` or `steps`.
        steps: How many noisy steps the run takes.
        expected_batch_size: How many units a step samples on average. Default: a fiftieth of `public_size`,
            and at least 256.
        public_size: The number of units that may be known, such as the planned one. It sets the sampling
            rate. Not needed if the data declares its own.
        clip_norm: The L2 norm to which the gradient of a unit is clipped. Default: 1.
        clipping: Another way to clip, instead of `clip_norm`.
        sampling: How batches are formed. Default: Poisson sampling.
        correlation: How noise is correlated over steps, for `CyclicBatches`. Default: not at all.
        relation: Which data sets are neighbors. Default: that of the account, or else add-remove.
        mechanism: The whole run as one mechanism, instead of all of the above but `delta` and `public_size`.
        privacy_unit: Who is protected, in a word for statements, such as "patient".
        owners: For each row, the number or the name of its owner, if a unit is an owner of several rows. Rows
            whose owner is missing (None, NaN) are not used.
        contribution_bound: How many rows of one owner count in a step.

    >>> Privacy(epsilon=3, delta=1e-5, epochs=10, public_size=60_000).epsilon
    3
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    epochs: float | None = None
    steps: int | None = None
    expected_batch_size: float | None = None
    public_size: int | None = None
    clip_norm: float | None = None
    clipping: Clipping | CoordinateClipping | None = None
    sampling: Sampling | None = None
    correlation: BandedNoise | None = None
    relation: Relation | str | None = None
    mechanism: DpSgd | None = None
    privacy_unit: str | None = None
    owners: Tensor | Sequence[Hashable] | None = field(default=None, repr=False)
    contribution_bound: int | None = None

    @classmethod
    def of(cls, given: "Privacy | Plan | DpSgd") -> "Privacy":
        """Return the description of what `sfumato.plan` returned, or of a mechanism.

        Args:
            given: A plan, a mechanism, or a description, which is returned as it is.

        Returns:
            The description.

        Raises:
            InvalidParameterError: If it is none of these.
        """
        if isinstance(given, Privacy):
            return given
        if isinstance(given, DpSgd):
            return cls(mechanism=given)
        if isinstance(given, Plan):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            return cls(
                noise_multiplier=given.noise_multiplier,
                steps=given.steps,
                sampling=PoissonSampling(sampling_rate=given.sampling_rate),
                public_size=given.public_size,
                delta=given.delta,
                relation=given.relation,
            )
        raise InvalidParameterError(
            f"privacy is of type {type(given).__name__}. Pass a Privacy, a plan from sfumato.plan(...), or a "
            "DpSgd mechanism."
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Optimization:
    """How a model is optimized. Nothing here changes the claim.

    Args:
        loss: `loss(model, *rows)` returns one number for each row.
        optimizer: A torch optimizer, or a function from parameters to one. Default: SGD with momentum 0.9.
        learning_rate: The rate of the default optimizer. Default: 0.1.
        schedule: A function from the optimizer to a torch learning-rate scheduler, stepped after each step.
        clip_schedule: A function from the number of a step to a factor of the clip norm. The noise shrinks
            with it.
        ema_decay: The decay of an exponential moving average of the weights, which the run returns and
            evaluates instead of the last weights.
        augment: `augment(rows, generator)` changes the rows of one unit at random.
        views: How many augmented copies of each row are averaged before clipping.
        denoiser: What is done to a noisy gradient before the optimizer gets it.
    """

    loss: Loss = cross_entropy
    optimizer: MakeOptimizer | Optimizer | None = None
    learning_rate: float | None = None
    schedule: MakeSchedule | None = None
    clip_schedule: ClipSchedule | None = None
    ema_decay: float | None = None
    augment: Augment | None = None
    views: int = 1
    denoiser: Denoiser | None = None

    def __post_init__(self) -> None:
        refuse_criterion(self.loss)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """How a model is evaluated, on data that is NOT protected: loss and accuracy are shown exactly.

    Args:
        data: Rows of the same kind as the training data.
        score: `score(model, *rows)` returns for each row whether the model is right, or another number whose
            average is shown as accuracy. Default: the largest logit, if the loss is cross-entropy.
        evaluate_every: After how many steps. Default: ten times in a run.
        on_evaluation: `on_evaluation(model, step)` is called after each evaluation, and without `data` as
            often: when a checkpoint holds the weights, which are the averaged ones where there are any.
        progress: Whether to show a progress bar with the figures.
        loggers: What else gets the figures, such as `sfumato.integrations.loggers.TensorBoardLog("runs/a")`.
    """

    data: Any = field(default=None, repr=False)
    score: Score | None = None
    evaluate_every: int | None = None
    on_evaluation: OnEvaluation | None = None
    progress: bool = True
    loggers: Sequence[RunLogger] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Storage:
    """Where a run is kept.

    Args:
        folder: Checkpoints, metrics, weights and the statement are written here.
        checkpoint_every: After how many steps. Default: twenty times in a run.
    """

    folder: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Charge:
    """Which account pays for a run, and what for.

    Args:
        account: The account of a ledger. The whole run is charged before data is read. Without an account
            the run states its guarantee, and that it was not recorded.
        purpose: What the run is for. The account keeps it.
    """

    account: Account | None = None
    purpose: str | None = None


class RunKeywords(TypedDict, total=False):
    """The keywords of every function that trains: the fields of the five objects, but evaluation data."""

    epsilon: float | None
    delta: float | None
    noise_multiplier: float | None
    epochs: float | None
    steps: int | None
    expected_batch_size: float | None
    public_size: int | None
    clip_norm: float | None
    clipping: Clipping | CoordinateClipping | None
    sampling: Sampling | None
    correlation: BandedNoise | None
    relation: Relation | str | None
    mechanism: DpSgd | None
    privacy_unit: str | None
    owners: Tensor | Sequence[Hashable] | None
    contribution_bound: int | None
    loss: Loss
    optimizer: MakeOptimizer | Optimizer | None
    learning_rate: float | None
    schedule: MakeSchedule | None
    clip_schedule: ClipSchedule | None
    ema_decay: float | None
    augment: Augment | None
    views: int
    denoiser: Denoiser | None
    score: Score | None
    evaluate_every: int | None
    on_evaluation: OnEvaluation | None
    progress: bool
    loggers: Sequence[RunLogger]
    folder: str | os.PathLike[str] | None
    checkpoint_every: int | None
    account: Account | None
    purpose: str | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunDescription:
    """The five descriptions of one run."""

    privacy: Privacy
    optimization: Optimization
    evaluation: Evaluation
    storage: Storage
    charge: Charge


_ELSEWHERE: Final = {  # names in Opacus, transformers and scikit-learn
    "batch_size": "expected_batch_size",
    "criterion": "loss",
    "l2_norm_clip": "clip_norm",
    "lr": "learning_rate",
    "max_grad_norm": "clip_norm",
    "sample_size": "public_size",
    "target_delta": "delta",
    "target_epsilon": "epsilon",
}


def describe(
    keywords: Mapping[str, Any],
    *,
    privacy: Privacy | Plan | DpSgd | None = None,
    optimization: Optimization | None = None,
    evaluation: Any = None,
    storage: Storage | None = None,
    charge: Charge | None = None,
) -> RunDescription:
    """Return one description from objects and keywords; a keyword sets what its object leaves open.

    >>> run = describe({"epsilon": 1.0, "folder": "runs/a"}, privacy=Privacy(epochs=5))
    >>> run.privacy.epsilon, run.privacy.epochs, run.storage.folder
    (1.0, 5, 'runs/a')
    >>> describe({"epsilom": 1.0})
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: unknown keyword 'epsilom'. Did you mean 'epsilon'?
    """
    if isinstance(privacy, Plan):
        _require_within(privacy, keywords.get("epsilon"))
    known = {name for kind in (Privacy, Optimization, Evaluation, Storage, Charge) for name in _names(kind)}
    _check.keywords(keywords, sorted(known), _ELSEWHERE)
    measured = evaluation if isinstance(evaluation, Evaluation) else Evaluation(data=evaluation)
    return RunDescription(
        privacy=_with(Privacy() if privacy is None else Privacy.of(privacy), keywords),
        optimization=_with(_checked(optimization, Optimization), keywords),
        evaluation=_with(measured, keywords),
        storage=_with(_checked(storage, Storage), keywords),
        charge=_with(_checked(charge, Charge), keywords),
    )


def _require_within(plan: Plan, epsilon: Any) -> None:
    """Raise if a plan costs more than a keyword allows: the run would not be the one that was planned."""
    if isinstance(epsilon, int | float) and epsilon < plan.epsilon:
        raise InvalidParameterError(
            f"epsilon={epsilon:g} was given, but the plan costs {plan.epsilon:.4g}. Plan for "
            f"epsilon={epsilon:g}, or leave the keyword out."
        )


def _checked(given: Part | None, kind: type[Part]) -> Part:
    if given is None:
        return kind()
    if not isinstance(given, kind):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        name = kind.__name__
        raise InvalidParameterError(
            f"{name.lower()} is of type {type(given).__name__}. Pass sfumato.training.{name}(...)."
        )
    return given


def _names(kind: type[Any]) -> list[str]:
    """Return the fields that are keywords: all but evaluation data, which is the argument `evaluation`."""
    return [each.name for each in fields(kind) if each.name != "data"]


def _with(part: Part, keywords: Mapping[str, Any]) -> Part:
    """Return a part with the keywords that are its fields; raise if it has another value already."""
    own = {name: keywords[name] for name in _names(type(part)) if name in keywords}
    for each in fields(part):
        if each.name in own and not _open(getattr(part, each.name), each.default, own[each.name]):
            raise InvalidParameterError(
                f"{each.name} was given twice, as a keyword and in {type(part).__name__}(...), and the two "
                "differ. Pass it once."
            )
    return replace(part, **own)


def _open(value: Any, default: Any, given: Any) -> bool:
    """Whether a field may be set: it has its default value, or the given one."""
    same = isinstance(value, int | float | str) and value == given
    return value is default or value is given or same
