# SPDX-License-Identifier: Apache-2.0
"""What the callbacks of a run get to see.

Guarantee  Logs and metrics hold the step, epsilon so far, the learning rate and metrics of evaluation data.
           Losses and gradient norms of private rows are not there, nor are durations, speeds, counts of
           operations or of memory: all of them depend on private rows.
Edge cases Where a run can be resumed, steps after the last checkpoint may be taken again with other noise,
           so nobody may have seen their weights. Until a checkpoint holds them, a callback gets a placeholder
           for the model, the optimizer and the schedule, which raises when it is used.
Not here   What a callback finds by other ways, such as a model that it holds itself, or a clock.
"""

from collections.abc import Mapping
from typing import Any, Final

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from sfumato.errors import UnsupportedUseError

__all__ = ["PublicCallbacks", "public"]

_PRIVATE: Final = ("loss", "grad_norm", "train_loss", "total_flos", "num_input_tokens_seen")
_TIMES: Final = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")


def public(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may be seen of logs or metrics.

    >>> public({"loss": 0.3, "eval_loss": 0.4, "eval_runtime": 1.5, "epsilon": 2.0})
    {'eval_loss': 0.4, 'epsilon': 2.0}
    """
    return {name: value for name, value in logs.items() if not _is_private(name)}


def _is_private(name: str) -> bool:
    return name in _PRIVATE or name.endswith(_TIMES)


class _Withheld:
    """Stands for weights that no checkpoint holds yet."""

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedUseError(
            "a callback asked for weights that no checkpoint holds yet: a resumed run would take these steps "
            "again, with other noise. Look at weights in on_evaluate or on_save, or train with "
            'save_strategy="no", which cannot be resumed.'
        )


class PublicCallbacks(CallbackHandler):
    """The callbacks of a trainer, in the same order."""

    def __init__(self, given: CallbackHandler) -> None:
        super().__init__(
            given.callbacks, given.model, given.processing_class, given.optimizer, given.lr_scheduler
        )
        self._withheld = False

    def show(self, *, weights: bool) -> None:
        """Show the weights from here on, or withhold them.

        Args:
            weights: Whether callbacks get the model, the optimizer and the schedule.
        """
        self._withheld = not weights

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **kwargs: Any,
    ) -> Any:
        """Pass on what may be seen."""
        return super().on_evaluate(args, state, control, public(metrics), **kwargs)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **kwargs: Any,
    ) -> Any:
        """Pass on what may be seen."""
        return super().on_predict(args, state, control, public(metrics), **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any],
        **kwargs: Any,
    ) -> Any:
        """Pass on what may be seen."""
        return super().on_log(args, state, control, public(logs), **kwargs)

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> Any:
        """Call an event of every callback."""
        if not self._withheld:
            return super().call_event(event, args, state, control, **kwargs)
        shown = self.model, self.optimizer, self.lr_scheduler
        withheld: Any = _Withheld()
        self.model = self.optimizer = self.lr_scheduler = withheld
        try:
            return super().call_event(event, args, state, control, **kwargs)
        finally:
            self.model, self.optimizer, self.lr_scheduler = shown
