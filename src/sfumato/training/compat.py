# SPDX-License-Identifier: Apache-2.0
"""Make a training loop private in two lines, with the argument names of Opacus.

Guarantee  After `make_private`, the gradients of every `optimizer.step()` are (S + N) /
           expected_batch_size: S the sum over one Poisson sample of each unit's gradient, clipped to
           `max_grad_norm`, and N fresh Gaussian noise of standard deviation `noise_multiplier *
           max_grad_norm`. `privacy.event()` says what the steps so far cost together. With a target, the
           step that would exceed it raises instead.
Loop       Yours, unchanged: zero_grad, forward, criterion, backward, step. Module and optimizer are the
           same objects, and the state dict has the same keys. Gradients are kept aside until the step, so
           that `zero_grad` may come anywhere before it.
Trusted    The loss must be a mean over the batch (or, with loss_reduction="sum", a sum) of losses of single
           rows. What a loop makes of the module's output cannot be seen from here: give `criterion` to have
           it checked on the first batch. That a row's output depends on that row alone is checked there in
           any case. What happens to rows before the module sees them is yours: do not mix them.
Empty      A batch without rows is a step like any other: noise alone. Skipping it tells that it was empty.
Pieces     With `batches_per_step` above 1, a step takes several batches of the loader, which are disjoint
           parts of one sample: gradient accumulation, at the price of one step.
"""

import math
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve
from sfumato.training import fixing
from sfumato.training.clipping import Clipping
from sfumato.training.data import public_size_of
from sfumato.training.loaders import PoissonBatches, PoissonLoader, refuse_other_batches
from sfumato.training.mechanism import NoisyStep
from sfumato.training.sampling import PoissonSampling
from sfumato.training.stepping import Criterion, Privacy, PrivateSteps

__all__ = ["Privacy", "PrivateParts", "make_private", "make_private_with_epsilon"]


class PrivateParts(NamedTuple):
    """What `make_private` returns: the module and the optimizer it was given, a loader, and the account."""

    module: nn.Module
    optimizer: Optimizer
    data_loader: DataLoader[Any]
    privacy: Privacy


def make_private(
    *,
    module: nn.Module,
    optimizer: Optimizer,
    data_loader: DataLoader[Any],
    noise_multiplier: float,
    max_grad_norm: float,
    loss_reduction: str = "mean",
    criterion: Criterion | None = None,
    public_size: int | None = None,
    expected_batch_size: float | None = None,
    batches_per_step: int = 1,
    relation: Relation | str = Relation.ADD_REMOVE,
    generator: Generator | None = None,
) -> PrivateParts:
    """Make every step of `optimizer` a noisy sum of clipped gradients over a Poisson sample.

    `public_size` is the number of units that may be known. Unless it is given, `expected_batch_size` is the
    loader's batch size times `batches_per_step`. `criterion(output, target)` is only there to be checked.

    >>> import torch
    >>> rows = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.zeros(64, dtype=torch.int64))
    >>> module = nn.Linear(3, 2)
    >>> module, optimizer, loader, privacy = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(rows, batch_size=16), public_size=64,
    ...     noise_multiplier=1.0, max_grad_norm=1.0)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(module(x), y).backward()
    ...     optimizer.step()
    >>> privacy.steps, round(privacy.get_epsilon(1e-3), 2)
    (4, 2.51)
    """
    settings = _Settings(
        module=module,
        optimizer=optimizer,
        data_loader=data_loader,
        max_grad_norm=max_grad_norm,
        loss_reduction=loss_reduction,
        criterion=criterion,
        public_size=public_size,
        expected_batch_size=expected_batch_size,
        batches_per_step=batches_per_step,
        relation=Relation.parse(relation),
        generator=resolve(generator),
    )
    settings.check()
    _check.positive(noise_multiplier=noise_multiplier)
    return settings.parts(settings.privacy(noise_multiplier))


def make_private_with_epsilon(
    *,
    module: nn.Module,
    optimizer: Optimizer,
    data_loader: DataLoader[Any],
    target_epsilon: float,
    target_delta: float,
    epochs: float,
    max_grad_norm: float,
    loss_reduction: str = "mean",
    criterion: Criterion | None = None,
    public_size: int | None = None,
    expected_batch_size: float | None = None,
    batches_per_step: int = 1,
    relation: Relation | str = Relation.ADD_REMOVE,
    generator: Generator | None = None,
) -> PrivateParts:
    """Do as `make_private`, with the least noise for which `epochs` over the loader meet the target.

    One step more than these epochs have would exceed it, and raises `BudgetExceededError`.
    """
    settings = _Settings(
        module=module,
        optimizer=optimizer,
        data_loader=data_loader,
        max_grad_norm=max_grad_norm,
        loss_reduction=loss_reduction,
        criterion=criterion,
        public_size=public_size,
        expected_batch_size=expected_batch_size,
        batches_per_step=batches_per_step,
        relation=Relation.parse(relation),
        generator=resolve(generator),
    )
    settings.check()
    _check.positive(target_epsilon=target_epsilon, epochs=epochs)
    _check.probability(target_delta=target_delta)
    steps = math.ceil(epochs * settings.steps_per_epoch)
    run = settings.privacy(1.0).run(steps).calibrated(epsilon=target_epsilon, delta=target_delta)
    privacy = settings.privacy(run.noise_multiplier(0))
    privacy.planned_steps = steps
    return settings.parts(privacy)


class _Settings(NamedTuple):
    """What both ways to make a loop private have in common."""

    module: nn.Module
    optimizer: Optimizer
    data_loader: DataLoader[Any]
    max_grad_norm: float
    loss_reduction: str
    criterion: Criterion | None
    public_size: int | None
    expected_batch_size: float | None
    batches_per_step: int
    relation: Relation
    generator: Generator

    def check(self) -> None:
        """Raise on what makes no sense; nothing has been changed yet."""
        _check.positive(max_grad_norm=self.max_grad_norm)
        _check.count(batches_per_step=self.batches_per_step)
        if self.expected_batch_size is not None:
            _check.positive(expected_batch_size=self.expected_batch_size)
        if self.loss_reduction not in ("mean", "sum"):
            raise InvalidParameterError(
                f"loss_reduction must be 'mean' or 'sum', as the criterion's, but {self.loss_reduction!r} "
                "was given."
            )
        fixing.refuse_mixing(self.module)
        _refuse_foreign(self.module, self.optimizer)
        refuse_other_batches(self.data_loader)
        if self.denominator > self.units:
            raise InvalidParameterError(
                f"expected_batch_size={self.denominator:g} must be at most public_size={self.units}."
            )

    @property
    def units(self) -> int:
        """The number of units that may be known."""
        found = public_size_of(self.data_loader.dataset, self.public_size)
        if found is None:
            raise InvalidParameterError(
                "how many rows the data set has is private unless you say otherwise. If the number may be "
                "known, pass public_size=len(dataset); else a public number near it, such as a rounded one."
            )
        return found

    @property
    def denominator(self) -> float:
        """The public number of units to expect in the sample of a step."""
        if self.expected_batch_size is not None:
            return self.expected_batch_size
        return float((self.data_loader.batch_size or 1) * self.batches_per_step)

    @property
    def steps_per_epoch(self) -> int:
        """How many samples have as many units as the data set, on average."""
        return max(1, round(self.units / self.denominator))

    def privacy(self, noise_multiplier: float) -> Privacy:
        """Return the account of a run with this noise."""
        return Privacy(
            sampling=PoissonSampling(sampling_rate=self.denominator / self.units),
            step=NoisyStep(clipping=Clipping(clip_norm=self.max_grad_norm)),
            noise_multiplier=noise_multiplier,
            relation=self.relation,
            seeded=self.generator.seeded,
        )

    def parts(self, privacy: Privacy) -> PrivateParts:
        """Hook into module and optimizer, and make the loader."""
        sampler = privacy.sampling.sampler(len(self.data_loader.dataset), self.generator)  # type: ignore[arg-type]
        batches = PoissonBatches(
            sampler, steps_per_epoch=self.steps_per_epoch, batches_per_step=self.batches_per_step
        )
        steps = PrivateSteps(
            self.module,
            self.optimizer,
            privacy=privacy,
            expected_batch_size=self.denominator,
            batches_per_step=self.batches_per_step,
            averaged=self.loss_reduction == "mean",
            criterion=self.criterion,
            generator=self.generator,
        )
        loader = PoissonLoader(
            self.data_loader, batches, batches_per_step=self.batches_per_step, watcher=steps
        )
        return PrivateParts(self.module, self.optimizer, loader, privacy)


def _refuse_foreign(module: nn.Module, optimizer: Optimizer) -> None:
    own = {id(p) for p in module.parameters()}
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(id(p) not in own for p in trained):
        raise InvalidParameterError(
            "the optimizer has parameters that are not the module's: their gradients would be neither "
            "clipped nor noised. Put all parts into one module, or give the others an optimizer of their "
            "own."
        )
