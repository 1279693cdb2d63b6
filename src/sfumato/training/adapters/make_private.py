# SPDX-License-Identifier: Apache-2.0
"""Make a training loop private in two lines, with the argument names of Opacus.

Guarantee  After `make_private`, the gradients of every `optimizer.step()` are (S + N) /
           expected_batch_size: S the sum over one Poisson sample of each unit's gradient, clipped to
           `max_grad_norm`, and N fresh Gaussian noise of standard deviation `noise_multiplier *
           max_grad_norm`. Module and criterion see each row alone, so a row's gradient depends on that row
           only. `privacy.event()` returns what the steps so far cost together. With a target or an account,
           a step beyond the planned ones raises.
Unit       One row of the data set.
Edge cases The loop is yours: zero_grad, forward, criterion, backward, step. Module and optimizer are the same
           objects, and the state dict has the same keys. Gradients are computed at the step, so `zero_grad`
           may come anywhere. A batch without rows is a step like any other: noise alone.
           With `LoopSettings(batches_per_step=k)`, a step takes k batches of the loader, which are disjoint
           parts of one sample: gradient accumulation, at the price of one step.
           A module or criterion that cannot run while rows are isolated is run by the reference engine, if
           necessary row by row, with a warning.
Failure    Losses that were computed outside of the criterion, batches that are skipped, copies that are
           trained, and several processes raise an error.
Not here   What the loop does to rows before module and criterion see them (augmentation, targets, constants
           that are passed along): compute it from each row alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, resolve, study_note
from sfumato.training.adapters import module_forward, optimizer_copies, processes
from sfumato.training.adapters.criterion import PrivateCriterion
from sfumato.training.adapters.data_loader import PoissonBatches, PoissonLoader, refuse_other_batches
from sfumato.training.adapters.loop_settings import LoopSettings
from sfumato.training.adapters.optimizer_hooks import PrivateSteps
from sfumato.training.adapters.spent_privacy import SpentPrivacy
from sfumato.training.data.units import public_size_of
from sfumato.training.description import Charge
from sfumato.training.engine.losses import is_criterion
from sfumato.training.models import batch_norm
from sfumato.training.payment import Payment
from sfumato.training.privacy import terms
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling

__all__ = ["PrivateParts", "SpentPrivacy", "make_private", "make_private_with_epsilon"]

_SETTINGS, _UNCHARGED = LoopSettings(), Charge()

Criterion = Callable[..., Tensor]  # (output, *targets) -> one number for each row


class PrivateParts(NamedTuple):
    """What `make_private` returns: the same module and optimizer, and three new parts.

    Attributes:
        module: The module that was passed.
        optimizer: The optimizer that was passed. Each of its steps is private now.
        criterion: Call it in place of the criterion that was passed.
        data_loader: Loop over it in place of the loader that was passed.
        privacy: What the steps so far cost.
    """

    module: nn.Module
    optimizer: Optimizer
    criterion: PrivateCriterion
    data_loader: DataLoader[Any]
    privacy: SpentPrivacy


def make_private(
    *,
    module: nn.Module,
    optimizer: Optimizer,
    criterion: Criterion,
    data_loader: DataLoader[Any],
    noise_multiplier: float,
    max_grad_norm: float,
    epochs: float | None = None,
    steps: int | None = None,
    public_size: int | None = None,
    settings: LoopSettings = _SETTINGS,
    charge: Charge = _UNCHARGED,
    generator: Generator | None = None,
) -> PrivateParts:
    """Make every step of `optimizer` a noisy sum of clipped gradients over a Poisson sample.

    Args:
        module: The module to train. It is called in the loop as before, and sees one row at a time.
        optimizer: Any optimizer of the module's parameters that needs no closure.
        criterion: `criterion(output, *targets)` returns one number for each row, such as
            `nn.CrossEntropyLoss(reduction="none")`. It sees one row at a time, and any structure of outputs
            and targets. The loop must call the criterion that is returned, with the module's outputs as they
            are. The value that it shows is exact, so it is private.
        data_loader: A plain loader, which is replaced by one that draws Poisson samples.
        noise_multiplier: Standard deviation of the noise, divided by `max_grad_norm`.
        max_grad_norm: The norm to which each row's gradient is clipped.
        epochs: How many passes over the loader are planned; or pass `steps`. Steps beyond these raise. An
            account needs one of the two.
        steps: How many steps are planned.
        public_size: The number of units that may be known.
        settings: How samples are drawn (`expected_batch_size`, `batches_per_step`), and whom the claim is
            about (`relation`, `privacy_unit`).
        charge: The account where the planned run is charged, before the first batch, and what the run is for.
            What is not used stays spent.
        generator: The source of samples and noise; None uses the operating system's entropy.

    Returns:
        Module, optimizer, criterion, loader and what the steps cost, in this order.

    Raises:
        InvalidParameterError: If an argument cannot be made private.
        UnsupportedModelError: If a layer of the module is known to mix rows.
        BudgetExceededError: If the account does not admit the run. Nothing is changed then.

    >>> import torch
    >>> rows = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.zeros(64, dtype=torch.int64))
    >>> module = nn.Linear(3, 2)
    >>> module, optimizer, criterion, loader, privacy = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     criterion=nn.CrossEntropyLoss(reduction="none"),
    ...     data_loader=DataLoader(rows, batch_size=16), public_size=64,
    ...     noise_multiplier=1.0, max_grad_norm=1.0)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     criterion(module(x), y).backward()
    ...     optimizer.step()
    >>> privacy.steps, round(privacy.get_epsilon(1e-3), 2)
    (4, 2.51)
    """
    loop = _Loop(
        module=module,
        optimizer=optimizer,
        criterion=criterion,
        data_loader=data_loader,
        max_grad_norm=max_grad_norm,
        public_size=public_size,
        settings=settings,
        charge=charge,
        generator=resolve(generator),
    )
    loop.check()
    _check.positive(noise_multiplier=noise_multiplier)
    return loop.parts(noise_multiplier, loop.planned(epochs, steps))


def make_private_with_epsilon(
    *,
    module: nn.Module,
    optimizer: Optimizer,
    criterion: Criterion,
    data_loader: DataLoader[Any],
    target_epsilon: float,
    target_delta: float,
    epochs: float,
    max_grad_norm: float,
    public_size: int | None = None,
    settings: LoopSettings = _SETTINGS,
    charge: Charge = _UNCHARGED,
    generator: Generator | None = None,
) -> PrivateParts:
    """Do the same as `make_private`, with the least noise for which `epochs` over the loader meet the target.

    One step more than these epochs have would exceed it, and raises `BudgetExceededError`.

    Args:
        module: See `make_private`.
        optimizer: See `make_private`.
        criterion: See `make_private`.
        data_loader: See `make_private`.
        target_epsilon: The epsilon that all planned steps together may cost.
        target_delta: The delta at which they cost it.
        epochs: How many passes over the loader are planned.
        max_grad_norm: See `make_private`.
        public_size: See `make_private`.
        settings: See `make_private`.
        charge: See `make_private`.
        generator: See `make_private`.

    Returns:
        Module, optimizer, criterion, loader and what the steps cost, in this order.

    Raises:
        CalibrationError: If no noise meets the target. See also `make_private`.
    """
    loop = _Loop(
        module=module,
        optimizer=optimizer,
        criterion=criterion,
        data_loader=data_loader,
        max_grad_norm=max_grad_norm,
        public_size=public_size,
        settings=settings,
        charge=charge,
        generator=resolve(generator),
    )
    loop.check()
    _check.positive(target_epsilon=target_epsilon)
    _check.delta(target_delta=target_delta)
    steps = loop.planned(epochs, None)
    assert steps is not None
    run = loop.run(1.0, steps).calibrated(epsilon=target_epsilon, delta=target_delta)
    return loop.parts(run.noise_multiplier(0), steps)


class _Loop(NamedTuple):
    """What both ways to make a loop private have in common."""

    module: nn.Module
    optimizer: Optimizer
    criterion: Criterion
    data_loader: DataLoader[Any]
    max_grad_norm: float
    public_size: int | None
    settings: LoopSettings
    charge: Charge
    generator: Generator

    def check(self) -> None:
        """Raise on what makes no sense; nothing has been changed yet."""
        _check.positive(max_grad_norm=self.max_grad_norm)
        _check_kind(self.settings, LoopSettings, "settings")
        _check_kind(self.charge, Charge, "charge")
        if not callable(self.criterion):
            raise InvalidParameterError(
                f"criterion must be a function or a module that returns one number for each row, but a "
                f"{type(self.criterion).__name__} was given."
            )
        _refuse_averaging(self.criterion)
        processes.refuse_several()
        processes.refuse_wrapped(self.module)
        batch_norm.refuse_mixing(self.module)
        _refuse_foreign(self.module, self.optimizer)
        refuse_other_batches(self.data_loader)
        if self.denominator > self.units:
            raise InvalidParameterError(
                f"expected_batch_size={self.denominator:g} must be at most public_size={self.units}."
            )

    def planned(self, epochs: float | None, steps: int | None) -> int | None:
        """Return how many steps are planned; None if no limit is stated."""
        if epochs is not None and steps is not None:
            raise InvalidParameterError("epochs and steps both set the length of the run: pass one of them.")
        if epochs is not None:
            _check.positive(epochs=epochs)
            return math.ceil(epochs * self.steps_per_epoch)
        if steps is not None:
            _check.count(steps=steps)
        elif self.charge.account is not None:
            raise InvalidParameterError(
                "an account is charged for the whole run before the first batch: pass epochs=... or steps=..."
            )
        return steps

    @property
    def units(self) -> int:
        """The number of units that may be known."""
        found = public_size_of(self.data_loader.dataset, self.public_size)
        if found is None:
            raise InvalidParameterError(
                "the number of rows of the data set is private unless you state otherwise. If the number "
                "may be known, pass public_size=len(dataset); else a number that does not come from the "
                "data, such as the planned one."
            )
        return found

    @property
    def denominator(self) -> float:
        """The public number of units to expect in the sample of a step."""
        if self.settings.expected_batch_size is not None:
            return self.settings.expected_batch_size
        return float((self.data_loader.batch_size or 1) * self.settings.batches_per_step)

    @property
    def steps_per_epoch(self) -> int:
        """How many samples have as many units as the data set, on average."""
        return max(1, round(self.units / self.denominator))

    @property
    def sampling(self) -> PoissonSampling:
        """How samples are drawn."""
        return PoissonSampling(sampling_rate=self.denominator / self.units)

    @property
    def step(self) -> NoisyStep:
        """What one step is."""
        return NoisyStep(clipping=Clipping(clip_norm=self.max_grad_norm))

    def run(self, noise_multiplier: float, steps: int) -> DpSgd:
        """Return a run of so many steps."""
        return DpSgd(
            step=self.step,
            sampling=self.sampling,
            noise=((noise_multiplier, steps),),
            relation=Relation.parse(self.settings.relation),
        )

    def parts(self, noise_multiplier: float, planned: int | None) -> PrivateParts:
        """Charge the account, put everything into its place, and make the loader."""
        inner = module_forward.uncompiled(self.module)
        steps = PrivateSteps(
            inner,
            module_forward.forward_of(inner),
            self.criterion,
            step=self.step,
            noise_multiplier=noise_multiplier,
            expected_batch_size=self.denominator,
            batches_per_step=self.settings.batches_per_step,
            planned_steps=planned,
            generator=self.generator,
        )
        privacy = SpentPrivacy(
            sampling=self.sampling,
            step=self.step,
            noise_multiplier=noise_multiplier,
            relation=Relation.parse(self.settings.relation),
            privacy_unit=terms.privacy_unit_of(
                self.settings.privacy_unit, self.charge.account, by_owner=False
            ),
            planned_steps=planned,
            study_note=study_note(self.generator),
            record_note=record_note(self.charge.account),
            _taken=steps.gradients,
        )
        loader = self._loader(steps)
        module_forward.refuse_private(inner)
        optimizer_copies.refuse_private(self.optimizer)
        steps.pay(self._payment(privacy))
        module_forward.install(self.module, steps)
        steps.attach(self.optimizer)
        criterion = PrivateCriterion(inner, self.criterion, steps)
        return PrivateParts(self.module, self.optimizer, criterion, loader, privacy)

    def _loader(self, steps: PrivateSteps) -> PoissonLoader:
        sampler = self.sampling.sampler(len(self.data_loader.dataset), self.generator)  # type: ignore[arg-type]
        batches = PoissonBatches(
            sampler, steps_per_epoch=self.steps_per_epoch, batches_per_step=self.settings.batches_per_step
        )
        return PoissonLoader(
            self.data_loader, batches, batches_per_step=self.settings.batches_per_step, watcher=steps
        )

    def _payment(self, privacy: SpentPrivacy) -> Payment | None:
        """Charge the whole run, if there is an account."""
        if self.charge.account is None and self.charge.purpose is None:
            return None
        mechanism = privacy.run(privacy.planned_steps or 1)
        payment = Payment(self.charge, mechanism, generator=self.generator)
        payment.reserve()
        return payment


def _check_kind(given: object, kind: type[LoopSettings] | type[Charge], name: str) -> None:
    if not isinstance(given, kind):
        raise InvalidParameterError(
            f"{name} is of type {type(given).__name__}. Pass sfumato.training.{kind.__name__}(...)."
        )


def _refuse_averaging(criterion: Criterion) -> None:
    """Raise for a criterion of torch that makes one number of a batch: in the loop it is too late."""
    reduction = getattr(criterion, "reduction", "none")
    if is_criterion(criterion) and reduction != "none":
        raise InvalidParameterError(
            f"the criterion makes one number of all rows (reduction={reduction!r}). Clipping needs each "
            f"row's own loss: pass nn.{type(criterion).__name__}(reduction='none'). Nothing was charged."
        )


def _refuse_foreign(module: nn.Module, optimizer: Optimizer) -> None:
    own = {id(p) for p in module.parameters()}
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(id(p) not in own for p in trained):
        raise InvalidParameterError(
            "the optimizer has parameters that are not the module's: their gradients would be neither "
            "clipped nor noised. Put all parts into one module, or give the others an optimizer of their "
            "own."
        )
