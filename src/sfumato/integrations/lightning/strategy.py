# SPDX-License-Identifier: Apache-2.0
"""A strategy that makes a `LightningModule` private: `Trainer(strategy=PrivateStrategy(epsilon=3, ...))`.

Guarantee  Lightning's loop gets one object without content for each step, and never a row. The strategy draws
           the rows of the step itself, runs `training_step` on each of them alone, clips and adds noise, with
           the loop, the charge and the checkpoints of `sfumato.training.Trainer`. So gradients are those of
           `sfumato.training.train`, and no hook, callback or logger can see a row or its loss.
Unit       As in `sfumato.training.train`: a row of the data set, or an owner of rows.
Edge cases Every batch is one step. A run that a callback ends early is charged as a whole. Validation data
           are shown exactly: they must be declared as public.
Failure    What breaks the claim is refused by name before anything is charged (`refusals`). A run that stops
           leaves the weights of its last checkpoint, or those from before it. A logger that fails stops
           nothing (`held_loggers`).
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Unpack

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato.accounting.plan import Plan
from sfumato.errors import InvalidParameterError
from sfumato.integrations.lightning import loop_state, plan
from sfumato.integrations.lightning.launcher import NO_CKPT_PATH, Launcher
from sfumato.integrations.lightning.refusals import refuse, sees_each_step
from sfumato.integrations.lightning.rows import PrivateBatch, StepTokens, refuse_shared_rows, rows_of
from sfumato.integrations.lightning.run import DrivenTrainer
from sfumato.integrations.lightning.seclusion import RowLoss, Seclusion
from sfumato.integrations.lightning.session import Session, callbacks_of
from sfumato.mechanisms.random import Generator
from sfumato.training.data.units import public_size_of
from sfumato.training.description import (
    Charge,
    Evaluation,
    Optimization,
    Privacy,
    RunKeywords,
    Storage,
    describe,
)
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime

__all__ = ["PrivateStrategy"]

_OURS: Final = (Privacy, Storage, Charge)
_NAN: Final = torch.tensor(float("nan"))


class PrivateStrategy(SingleDeviceStrategy):
    """Trains a `LightningModule` with differential privacy; `run` is the finished `TrainingRun`.

    The module, its optimizer and its schedules stay as they are. The expected batch size is the `batch_size`
    of the training loader, and the number of steps comes from `max_epochs` or `max_steps` of the trainer.

    Args:
        privacy: What is claimed: a `Privacy`, what `sfumato.plan` returned, or a `DpSgd` mechanism.
        public_evaluation: Whether validation data may be shown exactly. Without it there can be none.
        device: Where to train. Default: the device of the accelerator.
        storage: Where checkpoints, metrics and weights are kept.
        charge: The account that pays, and the purpose.
        runtime: Engine and memory.
        generator: The source of randomness. Default: secure. A seeded one protects nobody.
        resume: Whether to continue the run in the folder instead of starting one.
        **keywords: Any field of `Privacy`, `Storage` and `Charge`, such as `epsilon`, `public_size`,
            `clip_norm`, `folder`, `account`.

    Raises:
        InvalidParameterError: If a keyword is unknown, or belongs to the module or the trainer.

    >>> strategy = PrivateStrategy(epsilon=3, delta=1e-5, public_size=60_000)
    >>> strategy.run is None
    True
    >>> PrivateStrategy(learning_rate=0.1)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: learning_rate is not an argument of PrivateStrategy. What ...
    """

    def __init__(
        self,
        privacy: Privacy | Plan | DpSgd | None = None,
        *,
        public_evaluation: bool = False,
        device: torch.device | str | None = None,
        storage: Storage | None = None,
        charge: Charge | None = None,
        runtime: Runtime | None = None,
        generator: Generator | None = None,
        resume: bool = False,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        super().__init__()
        described = describe(keywords, privacy=privacy, storage=storage, charge=charge)
        own = {name for kind in _OURS for name in kind.__dataclass_fields__}
        for name in keywords:
            if name not in own:
                raise InvalidParameterError(
                    f"{name} is not an argument of PrivateStrategy. What is optimized and evaluated, and "
                    "how, is said by the module and the trainer: training_step, configure_optimizers, "
                    "validation_step."
                )
        self._privacy, self._storage, self._charge = described.privacy, described.storage, described.charge
        self._public_evaluation, self._device = public_evaluation, device
        self._runtime = runtime if runtime is not None else Runtime()
        self._generator, self._resume = generator, resume
        self._session: Session | None = None
        self._run: TrainingRun | None = None
        self._private: Any = None  # the data of the run

    @property
    def run(self) -> TrainingRun | None:
        """The finished run, with its guarantee and its statement; None before."""
        return self._run

    @property
    def root_device(self) -> torch.device:
        """Where the module is trained."""
        if self._device is not None:
            return torch.device(self._device)
        kind = "cpu" if self.accelerator is None else self.accelerator.name()
        return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)

    # --- before the run ----------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Refuse what breaks the claim, and take charge of the trainer's loop, callbacks and loggers.

        Raises:
            InvalidParameterError: If a setting breaks the claim.
        """
        super().setup_environment()
        module = self.lightning_module
        assert module is not None
        trainer = module.trainer
        if not _is_fitting(trainer):
            return
        if self.root_device.type not in ("cpu", "cuda"):
            raise InvalidParameterError(
                f"private runs need a CPU or a CUDA device, but the trainer has {self.root_device.type!r}. "
                "Pass Trainer(accelerator='cpu')."
            )
        callbacks = callbacks_of(trainer)
        refuse(trainer, module, callbacks, resumable=self._storage.folder is not None)
        self._run = None
        self._session = Session(trainer, module, each_step=sees_each_step(module, callbacks))
        self._session.take_over(self._train)

    def _configure_launcher(self) -> None:
        self._launcher: Any = Launcher()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Return what a file of Lightning holds; a private run has checkpoints of its own.

        Args:
            checkpoint_path: The file.
            weights_only: As for `torch.load`.

        Returns:
            Its content.

        Raises:
            InvalidParameterError: During a private run.
        """
        if self._session is not None:
            raise InvalidParameterError(
                f"Lightning would continue the run from {str(checkpoint_path)!r}. {NO_CKPT_PATH}"
            )
        return super().load_checkpoint(checkpoint_path, weights_only)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Take the rows of the training loader, and see that validation data may be shown.

        Args:
            dataloader: A loader of the trainer.

        Returns:
            The steps of an epoch in place of a training loader; other loaders as they are.

        Raises:
            InvalidParameterError: If a loader cannot be used, or shows rows that may not be shown.
        """
        session = self._session
        if session is None:
            if self._private is not None:
                refuse_shared_rows(self._private, getattr(dataloader, "dataset", dataloader))
            return dataloader
        if session.trainer.training:
            return self._steps(session, dataloader)
        if not self._public_evaluation:
            raise InvalidParameterError(
                "there is validation data, and what is measured on it is shown exactly. If these rows need "
                "no protection, pass PrivateStrategy(public_evaluation=True). Otherwise pass "
                "limit_val_batches=0."
            )
        session.shown.append(getattr(dataloader, "dataset", dataloader))
        session.require_apart()
        return dataloader

    def _steps(self, session: "Session", loader: Any) -> StepTokens:
        if session.tokens is not None:
            raise InvalidParameterError(
                "there are several training loaders. Pass one: the guarantee is for one data set, which is "
                "sampled by row."
            )
        session.rows = rows_of(loader)
        session.private = self._private = loader.dataset
        session.batch_size = int(loader.batch_size)
        session.require_apart()
        size = public_size_of(loader.dataset, self._privacy.public_size)
        count = plan.steps_per_epoch(self._privacy, batch_size=session.batch_size, public_size=size)
        session.tokens = StepTokens(count)
        return session.tokens

    # --- the run -----------------------------------------------------------------------------------------

    def _train(self, session: "Session", run_loop: Callable[[], None]) -> None:
        """Run Lightning's loop inside of a paid run: this is called in place of it."""
        trainer, module = session.trainer, session.module
        _set_up_data(trainer)
        callbacks = callbacks_of(trainer)  # `setup` and `on_fit_start` may have changed them, and settings
        refuse(trainer, module, callbacks, resumable=self._storage.folder is not None)
        session.each_step = sees_each_step(module, callbacks)
        if session.tokens is None or len(self.optimizers) != 1:
            raise InvalidParameterError("a private run needs a training loader and one optimizer.")
        if trainer.global_step:
            raise InvalidParameterError(
                "this trainer has trained already. Use a new lightning Trainer for each run: it counts steps."
            )
        steps = plan.planned(trainer, len(session.tokens))
        session.seclusion = Seclusion(module, trainer)
        driven = session.driven = DrivenTrainer(
            module,
            session.rows,
            privacy=plan.with_steps(self._privacy, steps, batch_size=session.batch_size),
            optimization=Optimization(
                loss=RowLoss(module, session.seclusion), optimizer=_plain(self.optimizers[0])
            ),
            evaluation=Evaluation(progress=False),
            storage=self._storage,
            charge=self._charge,
            runtime=self._runtime_for(trainer),
            generator=self._generator,
        )
        driven.schedules = [config.scheduler for config in self.lr_scheduler_configs]
        driven.keep = partial(loop_state.kept, trainer)
        driven.rehearsed = session.rehearsed
        driven.drive = partial(session.drive, run_loop)
        with session.seclusion.entered():
            try:
                self._run = driven.fit(resume=self._resume)
            except KeyboardInterrupt as error:  # Lightning turns it into an end of the program
                for note in getattr(error, "__notes__", ()):
                    warnings.warn(note, stacklevel=2)
                raise

    def _runtime_for(self, trainer: Trainer) -> Runtime:
        halved = trainer.precision == "bf16-mixed"
        autocast = torch.bfloat16 if halved else self._runtime.autocast
        return replace(self._runtime, autocast=autocast, device=self.root_device)

    def on_train_start(self) -> None:
        """Finish the batch that was at work when the run was interrupted."""
        super().on_train_start()
        if self._session is not None:
            self._session.begin_loop()

    # --- one step ----------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Begin a step.

        Args:
            batch: An object without content.
            batch_idx: The number of the step in its epoch.
        """
        if self._session is not None:
            self._session.begin_step(batch_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Return what stands for the loss: no number, because the loss is private.

        Args:
            *args: As Lightning passes them.
            **kwargs: As Lightning passes them.

        Returns:
            NaN.

        Raises:
            InvalidParameterError: If there are rows among the arguments.
        """
        if self._session is None or not isinstance(args[0], PrivateBatch):
            raise InvalidParameterError(
                "rows came to the trainer other than by the strategy. Use Trainer.fit."
            )
        return _NAN.clone()

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Set the private gradient of the step.

        Args:
            closure_loss: What `training_step` returned.
            optimizer: The optimizer.
            *args: As Lightning passes them.
            **kwargs: As Lightning passes them.

        Returns:
            What stands for the loss.
        """
        session = self._session
        if session is None:
            return super().backward(closure_loss, optimizer, *args, **kwargs)
        self.precision_plugin.pre_backward(closure_loss, session.module)
        session.compute_gradients()
        return self.precision_plugin.post_backward(closure_loss, session.module)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Move the weights, and finish the step.

        Args:
            optimizer: The optimizer.
            closure: Sets the gradient.
            model: The module.
            **kwargs: As Lightning passes them.

        Returns:
            What the optimizer returns.
        """
        found = super().optimizer_step(optimizer, closure, model, **kwargs)
        if self._session is not None:
            self._session.complete_step()
        return found

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the weights for a file: hooks see them there before the file is written.

        Returns:
            The weights, which the run's own checkpoint holds.
        """
        if self._session is not None:
            self._session.publish()
        return super().lightning_module_state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a file of Lightning's, with weights that the run's own checkpoint holds already.

        Args:
            checkpoint: What is written.
            filepath: Where.
            storage_options: As Lightning passes them.
        """
        if self._session is not None:
            self._session.publish()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    # --- after the run -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Give the trainer back, and the loggers their figures."""
        session, self._session = self._session, None
        if session is not None:
            session.give_back(self._run)
        super().teardown()


def _is_fitting(trainer: Trainer) -> bool:
    return trainer.state.fn == "fit"


def _set_up_data(trainer: Any) -> None:
    """Let the trainer ask for all data now, so that what cannot be used is refused before the charge."""
    trainer.fit_loop.setup_data()
    if trainer.enable_validation:
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
        trainer.training = True


def _plain(optimizer: Any) -> Optimizer:
    return getattr(optimizer, "optimizer", optimizer)
