# SPDX-License-Identifier: Apache-2.0
"""What of a Lightning trainer, module or callback would break the claim of a private run: refused by name.

Guarantee  Everything here is looked at before the run is charged, so a refusal costs nothing.
Not here   Loaders (`rows`), and what `training_step` does (`seclusion`).
"""

import dis
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, callbacks
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler

from sfumato.errors import InvalidParameterError

__all__ = ["refuse", "refuse_monitors", "sees_each_step"]

_NOISE: Final = "The gradient of each example is clipped, and gets noise, by the strategy"
_TRAINER: tuple[tuple[str, Callable[[Any], bool], str], ...] = (  # name, whether it is given, reason
    (
        "gradient_clip_val",
        lambda t: t.gradient_clip_val is not None,
        f"It would clip the average of a batch. {_NOISE}: pass PrivateStrategy(clip_norm=...).",
    ),
    (
        "accumulate_grad_batches",
        lambda t: t.accumulate_grad_batches != 1,
        "Each batch is one noisy step. Use a larger batch_size; Runtime(microbatch_size=...) saves memory.",
    ),
    (
        "fast_dev_run",
        lambda t: bool(t.fast_dev_run),
        "It cuts the plan to a few steps. Try the module on public rows with another strategy first.",
    ),
    (
        "overfit_batches",
        lambda t: bool(t.overfit_batches),
        "It trains on a few chosen rows. Steps sample from the whole data set.",
    ),
    (
        "limit_train_batches",
        lambda t: t.limit_train_batches != 1.0,
        "An epoch is public_size / batch_size steps, and the plan is max_epochs of them. Pass max_steps.",
    ),
    (
        "reload_dataloaders_every_n_epochs",
        lambda t: bool(t.reload_dataloaders_every_n_epochs),
        "The guarantee is for one data set, so it cannot change during the run.",
    ),
    (
        "profiler",
        lambda t: type(t.profiler) is not PassThroughProfiler,
        "It keeps how long steps take, which depends on private rows.",
    ),
    (
        "detect_anomaly",
        lambda t: bool(getattr(t, "_detect_anomaly", False)),
        "It stops a run because of the values of one row, which shows that the row is there.",
    ),
    (
        "val_check_interval",
        lambda t: getattr(t, "_val_check_time_interval", None) is not None,
        "Validation at times instead of steps shows how long steps take, which depends on private rows.",
    ),
    (
        "devices",
        lambda t: t.num_devices != 1 or t.num_nodes != 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1,
        "The strategy trains on one device, in one process. Use sfumato.training.train under torchrun.",
    ),
)
_CALLBACKS: Final = {
    "DeviceStatsMonitor": "it logs memory and load, which depend on the size of a batch, and that is private",
    "ThroughputMonitor": "it logs times, which depend on private rows",
    "Timer": "it ends a run by the clock, and how long steps take depends on private rows",
    "GradientAccumulationScheduler": "each batch is one noisy step, so gradients cannot be accumulated",
    "BatchSizeFinder": "it trains on private rows without noise",
    "LearningRateFinder": "it trains on private rows without a charge",
    "BaseFinetuning": "it changes which parameters are trained, and clipping must bound all of them",
    "ModelPruning": "it replaces parameters during the run",
    "__MlflowPLCallback": "mlflow.autolog keeps the time of each figure, and inputs of the model, which are "
    "private rows. Call mlflow.pytorch.autolog(disable=True), and pass an MLFlowLogger",
    "SpikeDetection": "it decides by the training loss, which is private",
}
_MODULE: Final = {
    "backward": f"{_NOISE}, which also computes it",
    "configure_gradient_clipping": f"{_NOISE}; a clipping of your own would come after the noise",
    "on_before_batch_transfer": "it would see the rows of a batch together. Change rows in the data set",
    "on_after_batch_transfer": "it would see the rows of a batch together. Change rows in the data set",
    "transfer_batch_to_device": "the strategy moves rows to the device",
}
_BATCH_HOOKS: Final = {  # the places of their arguments in a module; callbacks get two more before them
    "on_train_batch_start": {"batch": 0},
    "on_train_batch_end": {"outputs": 0, "batch": 1},
}
_EACH_STEP: Final = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "optimizer_zero_grad",
)
_GRADIENTS: Final = (
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "lr_scheduler_step",
)


def refuse(trainer: Trainer, module: LightningModule, parts: Iterable[Callback], *, resumable: bool) -> None:
    """Raise if a setting of the trainer, or a hook, breaks the claim of a private run.

    Args:
        trainer: The trainer.
        module: The module.
        parts: The callbacks of the trainer.
        resumable: Whether the run keeps checkpoints.

    Raises:
        InvalidParameterError: If one does; the message names it.
    """
    for name, given, reason in _TRAINER:
        if given(trainer):
            raise InvalidParameterError(f"Trainer({name}=...) cannot be used in a private run. {reason}")
    _refuse_precision(trainer)
    if not module.automatic_optimization:
        raise InvalidParameterError(
            "the module has automatic_optimization=False, so it would compute gradients itself. Return the "
            f"loss from training_step instead. {_NOISE}."
        )
    data: LightningDataModule | None = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    for name, reason in _MODULE.items():
        for host, kind in ((module, LightningModule), (data, LightningDataModule)):
            if host is not None and _overrides(host, kind, name):  # pyright: ignore[reportUnknownArgumentType]
                raise InvalidParameterError(
                    f"{type(host).__name__}.{name} cannot be used in a private run: {reason}."  # pyright: ignore[reportUnknownArgumentType]
                )
    every = list(parts)
    for part in every:
        _refuse_callback(part)
    for host in (module, *every):
        _refuse_batch_readers(host)
        if resumable:
            _refuse_gradient_readers(host)
            _refuse_states_in_files(host)


def refuse_monitors(trainer: Trainer, parts: Iterable[Callback], logged: frozenset[str]) -> None:
    """Raise if a callback or a schedule waits for a value that `training_step` logs: it is not logged.

    Args:
        trainer: The trainer.
        parts: The callbacks of the trainer.
        logged: The names that `training_step` logs.

    Raises:
        InvalidParameterError: If one does.
    """
    watchers = [(type(part).__name__, getattr(part, "monitor", None)) for part in parts]
    configs: list[Any] = list(trainer.strategy.lr_scheduler_configs)
    watchers += [
        ("the learning-rate schedule", config.monitor) for config in configs if config.reduce_on_plateau
    ]
    for watcher, name in watchers:
        if name in logged or name in {f"{each}_{end}" for each in logged for end in ("step", "epoch")}:
            raise InvalidParameterError(
                f"{watcher} monitors {name!r}, which training_step logs: it is computed from private rows, "
                "so nothing may depend on it. Monitor a figure of validation_step."
            )


def sees_each_step(module: LightningModule, parts: Iterable[Callback]) -> bool:
    """Return whether something looks at the weights after each step, so that each needs a checkpoint first.

    Args:
        module: The module.
        parts: The callbacks of the trainer.

    Returns:
        Whether a hook that is called at each step is not Lightning's own. Those of Lightning look at numbers
        of steps, or save weights by the strategy.
    """
    own = [part for part in parts if not _is_quiet(part)]
    return any(_defines(host, name) for host in (module, *own) for name in _EACH_STEP)


def _is_quiet(part: Callback) -> bool:
    kinds = (callbacks.ProgressBar, callbacks.Checkpoint, callbacks.EarlyStopping)
    others = (callbacks.LearningRateMonitor, callbacks.ModelSummary)
    return type(part).__module__.startswith("lightning.") and isinstance(part, kinds + others)


def _refuse_precision(trainer: Trainer) -> None:
    plugin = trainer.precision_plugin
    bfloat = type(plugin) is MixedPrecision and plugin.precision == "bf16-mixed"
    if type(plugin) is not Precision and not bfloat:
        raise InvalidParameterError(
            f"Trainer(precision={trainer.precision!r}) cannot be used in a private run: small gradients "
            "vanish in coarser numbers, and scales that follow the gradients are private. Use '32-true' or "
            "'bf16-mixed'."
        )


def _refuse_callback(part: Callback) -> None:
    for name, reason in _CALLBACKS.items():
        kind = getattr(callbacks, name, None) or getattr(callbacks, name.lower(), None)
        named = {each.__name__ for each in type(part).__mro__}
        if name in named or (inspect.isclass(kind) and isinstance(part, kind)):
            raise InvalidParameterError(
                f"the callback {type(part).__name__} cannot be used in a private run: {reason}."
            )
    if getattr(part, "_train_time_interval", None) is not None:
        raise InvalidParameterError(
            f"{type(part).__name__}(train_time_interval=...) cannot be used in a private run: when files are "
            "written would show how long steps take. Pass every_n_train_steps."
        )


def _refuse_batch_readers(host: LightningModule | Callback) -> None:
    for name, arguments in _BATCH_HOOKS.items():
        if not _defines(host, name):
            continue
        for argument, place in arguments.items():
            if _reads(getattr(host, name), argument, place + 2 * isinstance(host, Callback)):
                raise InvalidParameterError(
                    f"{type(host).__name__}.{name} reads {argument!r}, which is computed from private rows. "
                    "Compute what you need in training_step, or leave the argument alone."
                )


def _refuse_gradient_readers(host: LightningModule | Callback) -> None:
    for name in _GRADIENTS:
        if _defines(host, name):
            raise InvalidParameterError(
                f"{type(host).__name__}.{name} sees the noisy gradient or the weights of a step before a "
                "checkpoint holds them. If the run died then, the step would be taken again with other "
                "noise. Take it out (a schedule such as LambdaLR needs no hook), or train without folder=..."
            )


def _refuse_states_in_files(host: LightningModule | Callback) -> None:
    if all(_defines(host, name) for name in ("on_save_checkpoint", "on_load_checkpoint")):
        raise InvalidParameterError(
            f"{type(host).__name__} keeps a state in files of Lightning (on_save_checkpoint), but a private "
            "run is not resumed from these, so the state would be lost. Let a callback have state_dict and "
            "load_state_dict, or a module buffers, or train without folder=..."
        )


def _overrides(host: Any, kind: type[Any], name: str) -> bool:
    original = getattr(kind, name, None)
    own = name in vars(host)  # set on the object alone, as LambdaCallback does
    return original is not None and (own or getattr(type(host), name, original) is not original)


def _defines(host: LightningModule | Callback, name: str) -> bool:
    """Whether a hook does something: a class of Lightning may define it as well."""
    return _overrides(host, LightningModule if isinstance(host, LightningModule) else Callback, name)


def _reads(hook: Any, argument: str, place: int) -> bool:
    """Whether a function uses its argument of that name, or at that place, at all."""
    function = inspect.unwrap(getattr(hook, "__func__", hook))
    code = getattr(function, "__code__", None)
    if code is None or getattr(hook, "__module__", "").startswith("lightning."):
        return False
    names = code.co_varnames[inspect.ismethod(hook) : code.co_argcount]
    if argument not in names and place >= len(names):  # among `*arguments`: an object without content
        return False
    parameter = argument if argument in names else names[place]
    return any(
        parameter in (found.argval if isinstance(found.argval, tuple) else (found.argval,))
        for found in dis.get_instructions(code)
        if found.opname.startswith("LOAD")
    )
