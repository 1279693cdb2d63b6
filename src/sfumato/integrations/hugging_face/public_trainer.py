# SPDX-License-Identifier: Apache-2.0
"""A `transformers.Trainer` that shows what may be seen, and refuses what would show more.

Guarantee  Logs, metrics and predictions hold no losses of private rows and no durations. Metrics are computed
           on data that is not protected; the training set itself is refused. Folders `checkpoint-...` hold
           weights and public states. While private rows go through `compute_loss`, it sees copies of the
           state and the control of the trainer and no evaluation set, and what it changes in other objects
           that the trainer holds is put back (`held_objects`). A `compute_loss` that changes some of a
           subclass for synthetic rows is refused before the charge.
Not here   Training (`trainer`). Globals and attributes of classes that `compute_loss` writes to.
"""

import copy
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import transformers
from torch import nn
from torch.utils.data import IterableDataset

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.integrations.hugging_face.callbacks import PublicCallbacks, public
from sfumato.integrations.hugging_face.held_objects import Others, Own, copied
from sfumato.training.data.silence import silent

__all__ = ["PublicTrainer", "refuse_data", "refuse_overrides"]

# Methods that a subclass might override, and that the private loop does not call.
_NOT_CALLED: Final = (
    "get_batch_samples",
    "get_train_dataloader",
    "training_step",
    "_get_train_sampler",
    "_inner_training_loop",
)


# What accelerate sets in a model that it evaluates; for bfloat16 it is another forward.
_OF_ACCELERATE: Final = ("forward", "_original_forward", "_is_accelerate_prepared")


_NOTHING: Final = Own({})


class PublicTrainer(transformers.Trainer):
    """The part of a private trainer that evaluates, logs and saves."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.callback_handler = self._handler = PublicCallbacks(self.callback_handler)
        self._secluded = False  # whether private rows are at work
        self._own: Own | None = None
        self._others: Others | None = None
        self._not_own: Collection[str] = ()  # attributes that are not those of a subclass

    def begin_rehearsal(self) -> None:
        """Note what the trainer holds besides that of transformers: synthetic rows come next."""
        self._own = Own({name: part for name, part in vars(self).items() if self._is_own(name)})
        self._others = None

    def end_rehearsal(self) -> None:
        """From here on private rows go through `compute_loss`: nothing of them decides what is refused."""
        if self._own is not None:
            self._own.rehearsing = False

    def _is_own(self, name: str) -> bool:
        return name == "compute_loss_func" or name not in self._not_own

    @contextmanager
    def secluded(self) -> Generator[None]:
        """Drop what `compute_loss` logs, prints and sets as attributes, and what it changes in others.

        Yields:
            Nothing.
        """
        attributes, own = vars(self), _NOTHING if self._own is None else self._own
        if self._others is None:
            self._others = self._watched()
        before = dict(attributes)
        hidden = {"_secluded": True, "_own": None, "_others": None, "eval_dataset": None}
        try:
            with silent(), own.kept(), self._others.kept():
                attributes |= hidden | {"state": copied(self.state), "control": copy.copy(self.control)}
                yield
        finally:
            attributes.clear()
            attributes.update(before)

    def _watched(self) -> Others:
        """Return what transformers holds, but for what is kept in another way, or too large."""
        objects = {name: part for name, part in vars(self).items() if not self._is_own(name)}
        sets: Any = self.eval_dataset
        apart = [
            *self._module_parts(),
            self.train_dataset,
            sets,
            *(sets.values() if isinstance(sets, dict) else ()),
        ]
        apart += [self.optimizer, self.lr_scheduler, self.state, self.control, self]
        return Others(objects | {"callbacks": vars(self._handler)}, apart=apart)

    def _module_parts(self) -> list[nn.Module]:
        models = {id(m): m for m in vars(self).values() if isinstance(m, nn.Module)}
        return [part for model in models.values() for part in model.modules()]

    # --- what is shown -----------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep and show logs, without what is private.

        Args:
            logs: What to log.
            start_time: Not used: durations are private.
        """
        if self._secluded:  # `compute_loss` logs something of a private row
            return
        shown = public(logs)
        super().log(shown)
        if "epoch" in shown:  # transformers adds it to what it was given
            logs["epoch"] = shown["epoch"]

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Return exact metrics of data that is NOT protected.

        Args:
            eval_dataset: The data, instead of that of the trainer.
            ignore_keys: Outputs of the model that metrics do not get.
            metric_key_prefix: What the names of metrics begin with.

        Returns:
            The metrics, without durations.

        Raises:
            UnsupportedUseError: For the training data.
        """
        self._refuse_training_data(eval_dataset)
        return public(super().evaluate(eval_dataset, ignore_keys, metric_key_prefix))

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> Any:
        """Return exact predictions for data that is NOT protected.

        Args:
            test_dataset: The data.
            ignore_keys: Outputs of the model that are left out.
            metric_key_prefix: What the names of metrics begin with.

        Returns:
            Predictions, labels and metrics, without durations.

        Raises:
            UnsupportedUseError: For the training data.
        """
        self._refuse_training_data(test_dataset)
        found = super().predict(test_dataset, ignore_keys, metric_key_prefix)
        return found._replace(metrics=public(found.metrics or {}))

    def evaluation_loop(self, *args: Any, **keywords: Any) -> Any:
        """Evaluate, and leave the model as it is.

        Args:
            *args: As transformers passes them.
            **keywords: As transformers passes them.

        Returns:
            What transformers returns.
        """
        own: dict[str, Any] = vars(self.model)
        before = {name: own[name] for name in _OF_ACCELERATE if name in own}
        try:
            return super().evaluation_loop(*args, **keywords)
        finally:
            self.accelerator.free_memory()
            for name in _OF_ACCELERATE:
                own.pop(name, None)
            own.update(before)

    def _refuse_training_data(self, data: Any) -> None:
        if data is not None and data is self.train_dataset:
            raise UnsupportedUseError(
                "metrics are exact, so they must not be computed on private rows. Evaluate on data that is "
                "not protected."
            )

    # --- what folders hold ------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Do nothing: the run folder keeps them, and is what a run is resumed from."""

    def _save_scaler(self, output_dir: str) -> None:
        """Do nothing: there is none."""

    def _save_rng_state(self, output_dir: str) -> None:
        """Do nothing: the run folder keeps it."""

    # --- not supported -----------------------------------------------------------------------------------

    def get_train_dataloader(self) -> NoReturn:
        """Raise: which rows are in a batch is secret, and a loader would show it.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_call("get_train_dataloader", "rows are sampled by sfumato, as the claim says.")

    def training_step(self, *args: Any, **keywords: Any) -> NoReturn:
        """Raise: a step outside of the run would not be charged.

        Args:
            *args: Not used.
            **keywords: Not used.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_call("training_step", "a step outside of train() would not be charged.")

    def hyperparameter_search(self, *args: Any, **keywords: Any) -> NoReturn:
        """Raise: each trial would be a run of its own.

        Args:
            *args: Not used.
            **keywords: Not used.

        Raises:
            UnsupportedUseError: Always.
        """
        _refuse_call("hyperparameter_search", "each trial is a run of its own, to be charged to an account.")


def _refuse_call(name: str, reason: str) -> NoReturn:
    raise UnsupportedUseError(f"PrivateTrainer has no {name}: {reason}")


def refuse_data(training: Any, evaluation: Any) -> None:
    """Raise for a stream of rows, and for an evaluation on the training set."""
    if training is None:
        return
    iterable = isinstance(training, IterableDataset)
    if iterable or not (hasattr(training, "__getitem__") and hasattr(training, "__len__")):
        raise UnsupportedUseError(
            "train_dataset must give rows by number: of a stream, the order would decide which rows are in a "
            "batch. Pass a map-style data set or a list (a streamed data set of `datasets` is one with "
            "streaming=False)."
        )
    shown = evaluation.values() if isinstance(evaluation, Mapping) else [evaluation]
    if any(each is training for each in shown):
        raise UnsupportedUseError(
            "eval_dataset is train_dataset, but metrics are exact and shown. Evaluate on data that is not "
            "protected, or leave eval_dataset out."
        )


def refuse_overrides(kind: type[transformers.Trainer]) -> None:
    """Raise if a subclass overrides a method that the private loop does not call."""
    own = [
        base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("sfumato", "transformers")
    ]
    for name in _NOT_CALLED:
        if any(name in vars(base) for base in own):
            raise InvalidParameterError(
                f"{kind.__name__}.{name} would not be called: sampling and steps are those of the claim. "
                "Override compute_loss, or pass data_collator, privacy or callbacks."
            )
