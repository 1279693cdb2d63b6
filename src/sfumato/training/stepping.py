# SPDX-License-Identifier: Apache-2.0
"""What happens at each step of an optimizer that was made private (`compat`).

Guarantee  Before the optimizer moves anything, the `.grad` of every trainable parameter is set to the noisy
           clipped sum over one sample, divided by a public number, and the step is counted; or an error is
           raised, nothing is released and nothing is counted.
Sample     A step takes the batches of one sample alone, and no sample is taken by two steps. What a loop
           left without a step when it was abandoned is forgotten: it was never released.
Refused    A gradient that reached a parameter around the recorded passes, and a step beyond the target.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError, UnsupportedModelError
from sfumato.mechanisms.random import Generator
from sfumato.training import rows
from sfumato.training.book_keeping import BookKeeping
from sfumato.training.checking import agree, self_check
from sfumato.training.clipping import Clipper
from sfumato.training.listening import Listener, Piece, tensors_in
from sfumato.training.mechanism import DpSgd, NoisyStep
from sfumato.training.noise import IndependentNoise
from sfumato.training.sampling import PoissonSampling

__all__ = ["Criterion", "Privacy", "PrivateSteps"]

Criterion = Callable[[Any, Any], Tensor]  # (output, target) -> a mean or a sum over the rows of a batch
_CHECKED_ROWS = 8  # of the first batch, by which a criterion is judged


class Privacy:
    """What the steps so far cost, and by what they are described."""

    def __init__(
        self,
        *,
        sampling: PoissonSampling,
        step: NoisyStep,
        noise_multiplier: float,
        relation: Relation,
        seeded: bool,
    ) -> None:
        self.sampling = sampling
        self.noise_multiplier = noise_multiplier
        self.relation = relation
        self.seeded = seeded  # then the noise protects nobody
        self.steps = 0
        self.planned_steps: int | None = None  # with a target: the last step that keeps it
        self.step = step

    @property
    def sampling_rate(self) -> float:
        """The chance that a unit is in the sample of a step."""
        return self.sampling.sampling_rate

    def run(self, steps: int) -> DpSgd:
        """Return a run of so many such steps, as a mechanism: what a ledger may be asked for beforehand."""
        return DpSgd(
            step=self.step,
            sampling=self.sampling,
            noise=[(self.noise_multiplier, steps)],
            relation=self.relation,
        )

    def event(self) -> DpEvent:
        """Return what the steps so far did, in privacy terms."""
        taken = [(self.step.event(self.noise_multiplier), self.steps)] if self.steps else []
        return self.sampling.event(taken, relation=self.relation)

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon that the steps so far cost at a delta."""
        _check.probability(delta=delta)
        return price(self.event(), delta=delta, relation=self.relation).epsilon if self.steps else 0.0

    def guarantee(self, delta: float, *, privacy_unit: str = "example") -> Guarantee:
        """Return the whole statement: epsilon, delta, relation and unit."""
        return Guarantee(
            epsilon=self.get_epsilon(delta), delta=delta, relation=self.relation, privacy_unit=privacy_unit
        )


class PrivateSteps:
    """What happens between the loader's batches and at each step of the optimizer."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        privacy: Privacy,
        expected_batch_size: float,
        batches_per_step: int,
        averaged: bool,
        criterion: Criterion | None,
        generator: Generator,
    ) -> None:
        self._module = module
        self._privacy = privacy
        self._batches_per_step = batches_per_step
        self._averaged = averaged
        self._denominator = expected_batch_size if averaged else 1.0
        self._criterion = criterion
        self._listener = Listener(module, averaged=averaged)
        self._clipper = Clipper(privacy.step.clipping, self._listener.parameters)
        self._noise = IndependentNoise(generator)
        self._unchecked = True
        self._sums: dict[str, Tensor] = {}
        self._given: dict[
            str, tuple[Tensor, int]
        ] = {}  # the gradients that were set last, and their versions
        self._batch: Any = None  # the one at hand; None once its step was taken
        self._sample = 0  # the one it is part of
        self._adding: int | None = None  # the sample whose parts are being added up
        self._released = 0  # the last sample that a step took
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    # --- the loader --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what an abandoned loop left: it was never released."""
        self._listener.close()
        self._sums, self._adding, self._batch = {}, None, None

    def hand_over(self, sample: int, batch: Any) -> None:
        """Add up the batch before, and take up the next one."""
        if self._batch is not None and not _rows(self._batch) and not self._listener.touched:
            raise InvalidParameterError(
                "the batch before was empty and was skipped. An empty batch is a step like any other, and "
                "to skip it tells that it was empty: call optimizer.step() for it too."
            )
        self._settle()
        self._batch, self._sample = batch, sample
        self._listener.open(_rows(batch))

    def end(self) -> None:
        """Add up the last batch; its step may still come."""
        self._settle()
        self._batch = None

    # --- the optimizer -----------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._refuse_closure(args[1:], kwargs)
        self._refuse_excess()
        self._settle()
        self._refuse_other_gradients(optimizer)
        sums = [self._sum_of(name) for name in self._listener.parameters]
        stddev = self._privacy.noise_multiplier * self._clipper.bound
        self._noise.add_(sums, stddev=stddev, step=self._privacy.steps)
        for parameter, total in zip(self._listener.parameters.values(), sums, strict=True):
            parameter.grad = total.div_(self._denominator).to(parameter.dtype)
        self._privacy.steps += 1
        self._released = self._sample
        self._sums, self._adding, self._batch = {}, None, None

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember the gradients as the optimizer leaves them: some change them in place."""
        left = {name: parameter.grad for name, parameter in self._listener.parameters.items()}
        self._given = {name: (grad, grad._version) for name, grad in left.items() if grad is not None}

    def _sum_of(self, name: str) -> Tensor:
        parameter = self._listener.parameters[name]
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        total = self._sums.get(name)
        return (
            torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            if total is None
            else total.to(dtype)
        )

    def _refuse_closure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if any(value is not None for value in (*args, *kwargs.values())):
            raise InvalidParameterError(
                "optimizer.step(closure) would compute gradients again within the step. Call backward "
                "before, and optimizer.step() without arguments; optimizers that need a closure cannot be "
                "made private."
            )

    def _refuse_excess(self) -> None:
        planned = self._privacy.planned_steps
        if planned is not None and self._privacy.steps >= planned:
            raise BudgetExceededError(
                f"the noise was chosen so that {planned} steps meet the target, and all of them were taken; "
                "the module is as the last of them left it. Ask for more epochs beforehand."
            )

    def _refuse_other_gradients(self, optimizer: Optimizer) -> None:
        """Raise if a gradient reached a parameter by another way than the recorded one."""
        ours = {id(p): name for name, p in self._listener.parameters.items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or self._is_ours(ours.get(id(parameter)), parameter.grad):
                    continue
                raise UnsupportedModelError(
                    "a gradient reached a parameter around the recorded passes: a part of the module was "
                    "called on its own, the module was in evaluation mode, a parameter was used in the loss "
                    "itself or was unfrozen after make_private. Call module(...) as a whole, after "
                    "module.train(); use the optimizer's weight_decay; make the loop private after choosing "
                    "what is trained."
                )

    def _is_ours(self, name: str | None, grad: Tensor) -> bool:
        given, version = self._given.get(name or "", (None, 0))
        # Zeros are what zero_grad may leave, and what a pass over no rows brings.
        return (given is grad and version == grad._version) or not bool(grad.any())

    # --- one batch ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Clip and add up what was heard of the batch at hand, if anything was."""
        piece = self._listener.close()
        if piece is None:
            return
        self._refuse_other_samples()
        if self._unchecked:
            self._check(piece)
        self._add(piece)

    def _refuse_other_samples(self) -> None:
        if self._sample == self._released or self._adding not in (None, self._sample):
            given = self._batches_per_step
            raise InvalidParameterError(
                f"with batches_per_step={given} each step must take {given} batches of the loader, and each "
                "batch must be part of one step: they are parts of one sample, and a unit that is in two "
                "samples would count twice. To accumulate gradients over k batches, pass batches_per_step=k."
            )
        self._adding = self._sample

    def _add(self, piece: Piece) -> None:
        found = self._clipper.sums(piece.recorded(self._listener.parameters))
        kept = torch.arange(piece.rows, device=found.device) if isinstance(found, Tensor) else None
        while isinstance(found, Tensor):
            assert kept is not None
            kept = kept[found]
            if not len(kept):
                return
            found = self._clipper.sums(self._listener.again(piece, kept))
        for name, total in found.sums.items():
            earlier = self._sums.get(name)
            self._sums[name] = total if earlier is None else earlier.add_(total)

    def _check(self, piece: Piece) -> None:
        """Compare the first batch with what each of its rows gives alone."""
        engine = BookKeeping(self._module, piece.loss)
        self._listener.quietly(lambda: self_check(engine, self._module, piece.loss, piece.batch))
        if self._criterion is not None:
            _check_criterion(self._criterion, piece, self._batch, averaged=self._averaged)
        self._unchecked = False


def _rows(batch: Any) -> int:
    return next(tensors_in(batch)).shape[0]


def _check_criterion(criterion: Criterion, piece: Piece, batch: Any, *, averaged: bool) -> None:
    """Raise unless the criterion is a mean, or a sum, of losses of single rows."""
    if not (isinstance(batch, list | tuple) and len(batch) == 2 and len(piece.calls[0].outputs) == 1):
        raise InvalidParameterError(
            "criterion can be checked where the loader gives (input, target) and the module returns one "
            "tensor. Leave criterion out, and make sure that the loss is a mean of losses of single rows."
        )
    output = piece.calls[0].outputs[0][:_CHECKED_ROWS]
    target = rows.take(batch[1], slice(0, _CHECKED_ROWS))
    together = _gradient(criterion, output, target) * (len(output) if averaged else 1)
    alone = [
        _gradient(criterion, output[i : i + 1], rows.take(target, slice(i, i + 1)))
        for i in range(len(output))
    ]
    if not agree(together, torch.cat(alone)):
        raise UnsupportedModelError(
            f"the criterion is not a {'mean' if averaged else 'sum'} over the batch of losses of single "
            "rows: it mixes rows, weighs them by the batch, or has another reduction. Give "
            "loss_reduction='mean' or 'sum' as the criterion has it, without weights of classes and without "
            "an ignored class."
        )


def _gradient(criterion: Criterion, output: Tensor, target: Any) -> Tensor:
    output = output.detach().requires_grad_()
    target = target.to(output.device) if isinstance(target, Tensor) else target
    return torch.autograd.grad(criterion(output, target), output)[0]
