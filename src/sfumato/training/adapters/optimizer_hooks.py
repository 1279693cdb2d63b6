# SPDX-License-Identifier: Apache-2.0
"""The steps of a private loop: from the batches of its loader to the steps of its optimizer.

Guarantee  Before the optimizer moves anything, the `.grad` of every trainable parameter is the noisy clipped
           sum over one sample, divided by a public number, and the step is counted; or an error is raised,
           nothing is released and nothing is counted.
           Each sample of the loader is followed by exactly one step, whatever is in it: a loop that skips
           batches, by their size or otherwise, is stopped at the next batch, and so is a step without one.
Edge cases A batch without rows needs no pass: its step is noise alone. Batches of a loop that was abandoned
           before their step are forgotten: they were never released. What module, criterion and data set draw
           from global generators leaves no trace there; what the loop itself draws does (`random_state`).
           What they change in the optimizer is put back (`optimizer_state`); schedules are not known here.
Failure    A step beyond the planned ones, a closure, parameters that were unfrozen later, and more than one
           process raise an error.
Not here   Sums, noise and counting (`PrivateGradients`); what a loop does with a batch (`calls`).
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.mechanisms import random
from sfumato.training.adapters import optimizer_copies, processes
from sfumato.training.adapters.calls import BatchCalls, LossCall
from sfumato.training.adapters.nesting import row_count
from sfumato.training.adapters.runner import Runner
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.integrity.optimizer_state import OptimizerState
from sfumato.training.payment import Payment
from sfumato.training.privacy.dp_sgd import NoisyStep
from sfumato.training.random_state import StepDraws

__all__ = ["PrivateSteps"]


class PrivateSteps:
    """What a private module, criterion, loader and optimizer have in common."""

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        criterion: Callable[..., Any],
        *,
        step: NoisyStep,
        noise_multiplier: float,
        expected_batch_size: float,
        batches_per_step: int,
        planned_steps: int | None,
        generator: random.Generator,
    ) -> None:
        self.quiet = False  # whether the module is being run by ourselves
        self.gradients = PrivateGradients(
            module,
            self._loss,
            clipping=step.clipping,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            generator=generator,
        )
        self._forward, self._criterion = forward, criterion
        self._runner = Runner(module, criterion)
        self._frozen = [p for p in module.parameters() if not p.requires_grad]
        self._batches_per_step, self._planned_steps = batches_per_step, planned_steps
        self._payment: Payment | None = None
        self._batch: BatchCalls | None = None  # the one at hand; None once its step was taken
        self._place = 0  # of the batch at hand in its sample
        self._loop = 0
        self._adding: BatchCalls | None = None
        self._draws, self._generator = StepDraws(), generator
        self._updating = OptimizerState()  # which no row may change

    def pay(self, payment: Payment | None) -> None:
        """Let a payment, which is reserved, begin with the first batch and end with the last step."""
        self._payment = payment

    def attach(self, optimizer: Optimizer) -> None:
        """Take part in every step of an optimizer."""
        optimizer_copies.mark(optimizer)
        self._updating.include(optimizer)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def __reduce__(self) -> Any:
        raise InvalidParameterError(
            "the steps of a private loop cannot be copied or saved: a copy would draw and count on its own. "
            "Save the state dict of the module, and what privacy.event() returns."
        )

    # --- the loader --------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Begin a loop over the loader, and return its number."""
        self._refuse_excess()
        if self._payment is not None and self._loop == 0:
            self._payment.begin()
        self._forget()
        self._loop += 1
        return self._loop

    def hand_over(self, loop: int, place: int, batch: Any) -> None:
        """Take up a batch, the `place`-th of its sample, after the one before was dealt with."""
        self._refuse_other_loop(loop)
        if place == 0:
            self._refuse_skipped()
            self._refuse_excess()
        else:
            self._refuse_early()
            self._add_up()
        self._place = place
        self._batch = BatchCalls(row_count(batch), self._runner, self._forward, self._criterion)

    def end(self, loop: int) -> None:
        """End a loop over the loader."""
        self._refuse_other_loop(loop)
        self._refuse_skipped()

    def _forget(self) -> None:
        if self._batch is not None:
            self._batch.close()
        self._batch = None
        self.gradients.forget()

    def _refuse_other_loop(self, loop: int) -> None:
        if loop != self._loop:
            raise InvalidParameterError(
                "another loop over the private data_loader has begun since: loop over it once at a time."
            )

    def _refuse_skipped(self) -> None:
        if self._batch is not None:
            given = self._batches_per_step
            raise InvalidParameterError(
                f"the batch before was not followed by optimizer.step(). Each {given} batch(es) of the "
                "private data_loader must be followed by exactly one step, whatever their size: a skipped "
                "step reveals what was in the batch. An empty batch is a step too. To accumulate gradients "
                "over k batches, pass batches_per_step=k."
            )

    def _refuse_early(self) -> None:
        if self._batch is None:
            raise InvalidParameterError(
                f"a step was taken before all batches of its sample were. With batches_per_step="
                f"{self._batches_per_step} call optimizer.step() once after that many batches."
            )

    # --- the module and the criterion --------------------------------------------------------------------

    def batch_at_hand(self) -> BatchCalls:
        """Return the batch that passes are over."""
        if self._batch is None:
            raise InvalidParameterError(
                "the module or the criterion was called for training without a batch of the private loader "
                "at hand. Take batches from the data_loader that make_private returned, one "
                "optimizer.step() for each, and run anything else after module.eval() or under "
                "torch.no_grad()."
            )
        return self._batch

    def call_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module on the rows of the batch at hand."""
        with self._quietly(), self.drawing():  # a module may call itself
            return self.batch_at_hand().call_module(args, kwargs)

    def call_criterion(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, BatchCalls, LossCall]:
        """Return the mean loss of the rows, to look at, and the batch and the call that it came from."""
        batch = self.batch_at_hand()
        with self._quietly(), self.drawing():  # a criterion may call the module
            shown, call = batch.call_criterion(args, kwargs)
        return shown, batch, call

    def _loss(self, model: nn.Module, *batch: Any) -> Tensor:
        """Return the loss of each row: what the loop did, done again."""
        assert self._adding is not None
        return self._adding.loss(model, *batch)

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Return a context for the next work on rows: none is left in global generators or the optimizer."""
        with self._draws.part(self._generator, self.gradients.steps), self._updating.kept():
            yield

    @contextmanager
    def _quietly(self) -> Generator[None]:
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    # --- the optimizer -----------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        _refuse_closure(args[1:], kwargs)
        self._refuse_excess()
        processes.refuse_several()
        self._refuse_unfrozen(optimizer)
        if self._batch is None or self._place + 1 < self._batches_per_step:
            raise InvalidParameterError(
                f"optimizer.step() must come once after each {self._batches_per_step} batch(es) of the "
                "private data_loader, and at no other time: every step adds noise and costs privacy."
            )
        with self.drawing():
            self._add_up()
            self._batch = None
            self.gradients.finish()

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._payment is not None and self.gradients.steps == self._planned_steps:
            self._payment.commit()

    def _add_up(self) -> None:
        """Clip and add up the batch at hand."""
        batch = self.batch_at_hand()
        if batch.rows and not batch.taken:
            raise InvalidParameterError(
                "backward() was not called on a loss of this batch. Each batch must take part in its step, "
                "whatever is in it: call criterion(module(x), y).backward() for every batch."
            )
        self._adding = batch
        try:
            with self._quietly(), self.drawing():  # nested in the step, but for a sample of several batches
                if batch.taken:  # also without rows: whether the module can be trained must not tell of them
                    recorded = batch.recorded() if batch.rows else None
                    with batch.autocast():
                        self.gradients.accumulate(*batch.tensors, recorded=recorded)
        finally:
            self._adding = None
            batch.close()

    def _refuse_excess(self) -> None:
        planned = self._planned_steps
        if planned is not None and self.gradients.steps >= planned:
            raise BudgetExceededError(
                f"{planned} steps were planned and paid for, and all of them were taken; the module is as "
                "the last of them left it. Plan more epochs or steps beforehand."
            )

    def _refuse_unfrozen(self, optimizer: Optimizer) -> None:
        ours = {id(p) for p in self._runner.parameters.values()}
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if any(p.requires_grad for p in self._frozen) or any(id(p) not in ours for p in trained):
            raise InvalidParameterError(
                "a parameter was unfrozen, or given to the optimizer, after make_private: its gradient would "
                "be neither clipped nor noised. Choose what is trained first, then call make_private."
            )


def _refuse_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if any(value is not None for value in (*args, *kwargs.values())):
        raise InvalidParameterError(
            "optimizer.step(closure) would compute gradients again within the step. Call backward before, "
            "and optimizer.step() without arguments; optimizers that need a closure cannot be made private."
        )
