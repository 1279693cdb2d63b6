# SPDX-License-Identifier: Apache-2.0
"""A `transformers.Trainer` whose training is differentially private.

Sampling, gradients, noise, the ledger, checkpoints and resuming are those of `sfumato.training.Trainer`. What
comes from transformers: the loss of a row, the data collator, the optimizer and its schedule, callbacks,
evaluation, saving.

Guarantee  The weights of a run, of all its checkpoints and of the best one satisfy what `run.guarantee`
           states. Logs, metrics, states of the trainer and model cards hold nothing else of training rows.
Edge cases The evaluation set is NOT protected: metrics are exact, and may stop the run or choose among its
           weights.
Failure    An argument that breaks the claim is refused by name, before anything is spent.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import torch
from torch import nn
from torch.utils.data import Subset
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput, align_special_tokens, get_last_checkpoint

from sfumato import _check
from sfumato.accounting.plan import Plan
from sfumato.errors import UnsupportedUseError
from sfumato.integrations.hugging_face import arguments, model_card
from sfumato.integrations.hugging_face.callback_reporting import Actions, CallbackReporting
from sfumato.integrations.hugging_face.collated_rows import CollatedRows
from sfumato.integrations.hugging_face.public_trainer import PublicTrainer, refuse_data, refuse_overrides
from sfumato.integrations.hugging_face.row_format import KnownColumns, MaxLength
from sfumato.integrations.hugging_face.row_loss import RowLoss
from sfumato.mechanisms.random import Generator
from sfumato.training import budget
from sfumato.training.description import Charge, Evaluation, Optimization, Privacy, Storage
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.record.metrics import RunLogger
from sfumato.training.record.run_folder import CheckpointError, RunFolder
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["PrivateTrainer", "TrainerKeywords"]

RUN_FOLDER: Final = "_sfumato"  # in output_dir; push_to_hub uploads nothing that begins with "_"
_NEVER: Final = 2**62  # steps
_TRIED: Final = 2  # rows of the evaluation set that are tried before the run begins


class TrainerKeywords(TypedDict, total=False):
    """The other arguments of `transformers.Trainer`, and the loggers of `sfumato.integrations.loggers`."""

    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., Any] | None
    callbacks: list[TrainerCallback | type[TrainerCallback]] | None
    optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LRScheduler | None]
    optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[..., Any] | None
    loggers: Sequence[RunLogger]  # this one is ours


class _Resumable(Trainer):
    _resuming = "train(resume_from_checkpoint=True)"


class PrivateTrainer(PublicTrainer):
    """`transformers.Trainer` with differential privacy: `train()`, `evaluate()` and `save_model()` as usual.

    Args:
        model: A model of transformers, a PEFT model, or a module whose output has a loss.
        args: The training arguments. Those that break the claim are refused by name.
        data_collator: Makes tensors of examples; it gets one example at a time.
        train_dataset: Private examples, by number.
        eval_dataset: Examples that are NOT protected; metrics on them are exact.
        processing_class: The tokenizer or processor that is saved with the model.
        privacy: What is claimed: a `sfumato.training.Privacy`, a plan, or a `DpSgd` mechanism. What a
            `Privacy` leaves open is taken from the arguments: batch size, epochs or steps, `max_grad_norm`.
        charge: The account that pays, and the purpose.
        max_length: The number of tokens of a row, which is public. Needed if the collator pads; a mapping
            gives each column its own.
        runtime: Engine, memory and device.
        generator: The source of randomness. Default: secure. A seeded one protects nobody.
        **keywords: The other arguments of `transformers.Trainer`, and `loggers`: what gets the figures of the
            run, such as `sfumato.integrations.loggers.TensorBoardLog("runs/a")`.

    Raises:
        UnsupportedUseError: If an argument breaks the claim.
        InvalidParameterError: If an argument is unknown, or contradicts another one.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> config = GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1, n_positions=4, bos_token_id=0)
    >>> rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]} for _ in range(20)]
    >>> trainer = PrivateTrainer(
    ...     GPT2LMHeadModel(config),
    ...     TrainingArguments("out", max_steps=2, save_strategy="no", disable_tqdm=True, use_cpu=True),
    ...     train_dataset=rows,
    ...     privacy=Privacy(epsilon=8, delta=1e-3, public_size=20),
    ... )
    >>> trainer.train().global_step, trainer.run.guarantee.privacy_unit
    (2, 'example')
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        privacy: Privacy | Plan | DpSgd,
        charge: Charge | None = None,
        max_length: MaxLength | None = None,
        runtime: Runtime | None = None,
        generator: Generator | None = None,
        **keywords: Unpack[TrainerKeywords],
    ) -> None:
        own = set(vars(self))  # of a subclass, which it set before it called this
        args = TrainingArguments("tmp_trainer") if args is None else args
        _check.keywords(keywords, sorted(TrainerKeywords.__annotations__))
        arguments.refuse(args)
        refuse_data(train_dataset, eval_dataset)
        refuse_overrides(type(self))
        self._privacy = arguments.claim(args, privacy)
        self._charge, self._runtime, self._noise_generator = charge, runtime, generator
        self._max_length, self._loggers = max_length, keywords.pop("loggers", ())
        super().__init__(
            model,  # pyright: ignore[reportArgumentType] - a PEFT model is no PreTrainedModel
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            **keywords,  # pyright: ignore[reportArgumentType] - as its own annotations say
        )
        if not args.disable_tqdm:
            self.remove_callback(DEFAULT_PROGRESS_CALLBACK)  # it shows how long steps take
        self._given_optimizers = self.optimizer, self.lr_scheduler
        self._run: TrainingRun | None = None
        self._module = model
        self._output = Path(args.output_dir or "tmp_trainer")
        self._not_own = set(vars(self)) - own

    @property
    def privacy(self) -> Privacy:
        """What is claimed, completed from the arguments."""
        return self._privacy

    @property
    def run(self) -> TrainingRun:
        """The finished run: its guarantee, its statement, its report."""
        if self._run is None:
            raise UnsupportedUseError("there is no finished run yet: call train() first.")
        return self._run

    # --- training ----------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train privately, or continue the run in the output folder; a failure restores the last checkpoint.

        Args:
            resume_from_checkpoint: Whether to continue the run. A path must be that of its last checkpoint.
            trial: Not supported: a search over settings would have to be charged.
            ignore_keys_for_eval: Outputs of the model that metrics do not get.

        Returns:
            The number of steps, and what they cost. The training loss is private: it is NaN here.

        Raises:
            UnsupportedUseError: If there is no training data, or for a trial.
            BudgetExceededError: If the account cannot pay for the run. Nothing is spent.
            CheckpointError: If the output folder cannot be used.
        """
        if trial is not None:
            raise UnsupportedUseError(
                "trial is refused: each trial would be a run of its own, to be charged."
            )
        if self.train_dataset is None:
            raise UnsupportedUseError("there is nothing to train on: pass train_dataset=...")
        resume = self._resumed(resume_from_checkpoint)
        self._begin()
        trainer = self._private_trainer(resume=resume)
        self._prepare_state(trainer)
        reporting = self._reporting(trainer, ignore_keys_for_eval)
        self.begin_rehearsal()
        self.is_in_train = True
        try:
            with arguments.checkpointing(self.args, self._module):
                self._run = trainer.fit(resume=resume, reporting=reporting)
        finally:
            self.is_in_train = False
            reporting.close()
        self.control = self._handler.on_train_end(self.args, self.state, self.control)
        figures = {"epsilon": self._run.epsilon, "delta": self._run.price.delta}
        return TrainOutput(self.state.global_step, float("nan"), figures)

    def _resumed(self, given: str | bool | None) -> bool:
        """Return whether to continue; raise for another checkpoint than the last one of the run."""
        if not isinstance(given, str):
            return bool(given)
        last = get_last_checkpoint(str(self._output)) if self._output.is_dir() else None
        if last is None or Path(last).resolve() != Path(given).resolve():
            raise CheckpointError(
                f"{given!r} is not the last checkpoint in {str(self._output)!r}. A run has one "
                "continuation, from its last checkpoint: pass resume_from_checkpoint=True, or begin a new "
                "run from these weights, in another folder and with a charge of its own."
            )
        return True

    def _begin(self) -> None:
        self._run = None
        self.optimizer, self.lr_scheduler = self._given_optimizers
        if hasattr(self.processing_class, "pad_token_id") and hasattr(self.model, "config"):
            align_special_tokens(self._module, self.processing_class)

    def _private_trainer(self, *, resume: bool) -> Trainer:
        privacy, folder = self._privacy, self._folder
        if resume and folder is not None:  # a run that took what its account had left keeps its noise
            privacy = budget.resumed(privacy, lambda: RunFolder(folder).load()["noise"])
        runtime = arguments.runtime_for(self.args, self._runtime)
        trainer = _Resumable(
            self._module,
            self._rows(),
            privacy=privacy,
            optimization=Optimization(
                loss=RowLoss(self._loss_of_row),
                optimizer=lambda _: self.create_optimizer(),
                schedule=lambda optimizer: self.create_scheduler(steps, optimizer),
            ),
            evaluation=Evaluation(progress=not self.args.disable_tqdm, loggers=self._loggers),
            # How often is decided by transformers (`CallbackReporting.due`).
            storage=Storage(folder=folder, checkpoint_every=None if folder is None else _NEVER),
            charge=self._charge,
            runtime=runtime,
            generator=self._noise_generator,
        )
        steps = trainer.mechanism.steps
        return trainer

    def _loss_of_row(self, model: nn.Module, row: dict[str, Any]) -> Any:
        with self.secluded():
            return self.compute_loss(model, row)

    @property
    def _folder(self) -> Path | None:
        kept = arguments.kept_in_folder(self.args)
        return self._output / RUN_FOLDER if kept else None

    def _rows(self) -> CollatedRows:
        collate: Any = self.data_collator
        if self.args.remove_unused_columns:
            self._set_signature_columns_if_needed()
            collate = KnownColumns(collate, self._signature_columns or ())
        shown = next((each for each in self._shown() if len(each)), None)
        return CollatedRows(
            self.train_dataset,
            collate,
            max_length=self._max_length,
            public=None if shown is None else lambda: shown[0],
        )

    def _shown(self) -> list[Any]:
        """Return the evaluation sets that have rows by number."""
        shown: Any = self.eval_dataset
        sets: list[Any] = list(shown.values()) if isinstance(shown, dict) else [shown]
        return [each for each in sets if hasattr(each, "__getitem__") and hasattr(each, "__len__")]

    def _prepare_state(self, trainer: Trainer) -> None:
        own: list[Any] = [each for each in self._handler.callbacks if isinstance(each, ExportableState)]
        self.state = TrainerState(stateful_callbacks=[*own, self.control])  # pyright: ignore[reportArgumentType] - as transformers does
        steps = trainer.mechanism.steps
        self.state.train_batch_size = self.args.per_device_train_batch_size
        self.state.compute_steps(self.args, steps)
        epochs = max(1, round(steps / self._steps_per_epoch(trainer)))
        self.state.init_training_references(self, steps, epochs, None)

    def _steps_per_epoch(self, trainer: Trainer) -> float:
        """Return after how many steps each unit was sampled once on average; all steps if nobody says."""
        rate = getattr(trainer.mechanism.sampling, "sampling_rate", None)
        size = self._privacy.public_size or getattr(self.train_dataset, "public_size", None)
        if rate is None and size is not None:
            rate = trainer.expected_batch_size / size
        return trainer.mechanism.steps if rate is None else 1 / rate

    def _reporting(self, trainer: Trainer, ignored: list[str] | None) -> CallbackReporting:
        evaluated = self.eval_dataset is not None and self.args.eval_strategy != "no"
        actions = Actions(
            try_out=self._try_out,
            rehearsed=self.end_rehearsal,
            evaluate=lambda: self._measured(ignored),
            save=lambda: self._save_checkpoint(self._module, None),
            choose=self._choose,
        )
        return CallbackReporting(
            self,
            self._handler,
            actions,
            delta=trainer.delta,
            steps_per_epoch=self._steps_per_epoch(trainer),
            evaluated=evaluated,
            resumable=self._folder is not None,
        )

    def _try_out(self) -> None:
        """Evaluate a few rows: what cannot be evaluated is known before anything is spent."""
        for each in self._shown():
            few = Subset[Any](each, range(min(_TRIED, len(each))))
            self.evaluation_loop(self.get_eval_dataloader(few), "Trial", prediction_loss_only=True)

    def _measured(self, ignored: list[str] | None) -> dict[str, float]:
        metrics = self._evaluate(None, ignored)
        better = self._determine_best_metric(metrics=metrics, trial=None)
        if self.args.save_strategy == "best":
            self.control.should_save = better
        return metrics

    def _choose(self) -> None:
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()

    # --- saving ------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; after a run, with the privacy card in its README.md.

        Args:
            output_dir: Where. Default: the output folder of the arguments.
        """
        super().save_model(output_dir, _internal_call)
        if self._run is not None and not _internal_call:
            model_card.write(Path(output_dir or self._output) / "README.md", self._run.card())

    def create_model_card(self, *args: Any, **keywords: Any) -> None:
        """Write README.md into the output folder, with the privacy card of the run.

        Args:
            *args: As for `transformers.Trainer.create_model_card`.
            **keywords: As for `transformers.Trainer.create_model_card`.
        """
        card = self.run.card()
        super().create_model_card(*args, **keywords)
        model_card.write(self._output / "README.md", card)
