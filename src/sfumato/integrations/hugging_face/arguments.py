# SPDX-License-Identifier: Apache-2.0
"""`TrainingArguments` as a claim: which arguments become settings of ours, and which are refused.

Guarantee  Every argument of transformers is in one of the lists below. An argument that would break the
           claim, or show something private, is refused by name if it has another value than its default. So
           is an argument of a later version that no list knows.
Not here   What `transformers.Trainer` checks itself.
"""

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, replace
from typing import Any, Final

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from sfumato.accounting.plan import Plan
from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.training.description import Privacy
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.runtime import Runtime

__all__ = ["CHANGED", "KEPT", "REFUSED", "checkpointing", "claim", "kept_in_folder", "refuse", "runtime_for"]

# Arguments that become settings of ours.
_CHANGED = """
bf16 gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs max_grad_norm
max_steps num_train_epochs per_device_train_batch_size
"""
CHANGED: Final = frozenset(_CHANGED.split())

# Arguments that transformers goes on to use, and those without effect in one process without a loader.
_KEPT = """
accelerator_config adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices batch_eval_metrics
bf16_full_eval dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor
ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph
ddp_timeout disable_tqdm do_eval do_predict do_train eval_accumulation_steps eval_delay
eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object fp16_full_eval
fsdp_config full_determinism greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision
hub_strategy hub_token ignore_data_skip include_for_metrics label_names label_smoothing_factor
learning_rate length_column_name liger_kernel_config load_best_model_at_end local_rank log_level
log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter logging_steps
logging_strategy lr_scheduler_kwargs lr_scheduler_type metric_for_best_model optim optim_args
optim_target_modules output_dir per_device_eval_batch_size prediction_loss_only project
remove_unused_columns restore_callback_states_from_checkpoint resume_from_checkpoint run_name
save_on_each_node save_only_model save_steps save_strategy save_total_limit seed tf32
torch_compile_backend torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id
trackio_static_space_id use_cache use_cpu warmup_steps weight_decay
"""
KEPT: Final = frozenset(_KEPT.split())

# Arguments that are refused, with the reason and what to do.
REFUSED: Final[Mapping[str, str]] = {
    "auto_find_batch_size": "whether a batch fits in memory depends on how many private rows it has. Leave "
    "it out: pieces that do not fit are run in halves, and per_device_train_batch_size sets their size.",
    "data_seed": "which rows are in a batch is secret, so no seed that others may know can choose them. "
    "Leave it out; generator=sfumato.testing.seeded(0) repeats a run for study only.",
    "debug": "it prints activations of private rows. Debug on synthetic rows.",
    "deepspeed": "it splits weights and gradients, so that no row's own gradient can be clipped. Train "
    "without it.",
    "enable_jit_checkpoint": "it saves weights at any moment, of steps that a resumed run takes again. Leave "
    "it out: an interrupted run goes on from its last checkpoint.",
    "fp16": "small gradients vanish in float16. Use bf16=True.",
    "fsdp": "it splits weights and gradients, so that no row's own gradient can be clipped. Train "
    "without it, or with fully_shard and sfumato.training.Trainer, which gathers what each row needs.",
    "include_num_input_tokens_seen": "how many tokens a batch has is private. Leave it out.",
    "neftune_noise_alpha": "its noise protects nobody, and its hook stays in the model after a run that "
    "fails. Leave it out.",
    "parallelism_config": "it splits rows or weights over processes. Train in one process.",
    "push_to_hub": "it uploads weights during the run. Train, read the model card, then call push_to_hub().",
    "report_to": "the loggers of transformers keep the time of every step, which depends on private rows. "
    'Leave it out (report_to="none"), and pass PrivateTrainer(loggers=[...]).',
    "skip_memory_metrics": "how much memory a step takes depends on private rows. Leave it out.",
    "torch_compile": "it compiles the model for whole batches. Leave it out: private passes are compiled "
    "where that pays, and always with runtime=Runtime(compile=True).",
    "train_sampling_strategy": "the order of rows would depend on their lengths or on chance that the claim "
    "does not know. Leave it out: the claim says how batches are sampled (Privacy(sampling=...)).",
    "use_liger_kernel": "its kernels compute gradients of whole batches. Leave it out.",
}

# Values of arguments that are kept otherwise.
_SCHEDULES: Final = ("reduce_lr_on_plateau", "greedy")
_OPTIMIZERS: Final = ("layerwise", "lomo", "schedule_free")


def refuse(args: TrainingArguments) -> None:
    """Raise for the first argument that breaks the claim, or that no list knows."""
    for each in _own_fields(args):
        if not _given(args, each):
            continue
        if each.name in REFUSED:
            raise UnsupportedUseError(f"TrainingArguments({each.name}=...) is refused: {REFUSED[each.name]}")
        if each.name not in KEPT | CHANGED:
            raise UnsupportedUseError(
                f"TrainingArguments({each.name}=...) is not known to this version of sfumato, so nobody has "
                "looked at what it does to the claim. Leave it out."
            )
    _refuse_values(args)


def _refuse_values(args: TrainingArguments) -> None:
    if args.lr_scheduler_type in _SCHEDULES:
        raise UnsupportedUseError(
            f"TrainingArguments(lr_scheduler_type={str(args.lr_scheduler_type)!r}) is refused: a schedule "
            'must need nothing but the number of steps. Use "linear", "cosine" or another one of this kind.'
        )
    if any(part in str(args.optim).lower() for part in _OPTIMIZERS):
        raise UnsupportedUseError(
            f"TrainingArguments(optim={str(args.optim)!r}) is refused: it updates weights during the "
            "backward pass, before noise is added, or keeps two sets of them. Use an optimizer that takes "
            'one noisy gradient a step, such as "adamw_torch".'
        )
    how: Any = args.gradient_checkpointing_kwargs or {}
    if args.gradient_checkpointing and how.get("use_reentrant"):
        raise UnsupportedUseError(
            "TrainingArguments(gradient_checkpointing_kwargs={'use_reentrant': True}) is refused: gradients "
            "of single rows cannot go through it. Leave use_reentrant out."
        )
    if args.world_size > 1:
        raise UnsupportedUseError(
            f"PrivateTrainer trains in one process, but there are {args.world_size}. Use "
            "sfumato.training.Trainer, which trains under torchrun."
        )


def _own_fields(args: TrainingArguments) -> list[Field[Any]]:
    """Return the fields that transformers defines; those of a subclass of the user do nothing here."""
    theirs = {
        name
        for kind in type(args).__mro__
        if kind.__module__.partition(".")[0] == "transformers"
        for name in inspect.get_annotations(kind)
    }
    return [each for each in fields(args) if each.name in theirs]


def _given(args: TrainingArguments, each: Field[Any]) -> bool:
    """Whether an argument has another value than its default, before or after transformers completed it."""
    value = getattr(args, each.name)
    default = each.default if each.default_factory is MISSING else each.default_factory()
    if each.name in _OFF:
        return not _OFF[each.name](value)
    return value != default


# What transformers makes of defaults.
_OFF: Final[Mapping[str, Callable[[Any], bool]]] = {
    "debug": lambda value: not value,
    "fsdp": lambda value: not value,
    "include_num_input_tokens_seen": lambda value: value in (False, "no"),
    "report_to": lambda value: value in ("none", None) or not [each for each in value if each != "none"],
}


# --- the claim -------------------------------------------------------------------------------------------


def claim(args: TrainingArguments, privacy: Privacy | Plan | DpSgd) -> Privacy:
    """Return what is claimed: `privacy`, and what it leaves open from the arguments."""
    own = Privacy.of(privacy)
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    steps = args.max_steps if args.max_steps > 0 else None
    if own.mechanism is not None:
        _require_same("max_steps", steps, own.mechanism.steps)
        return own
    if own.steps is None and own.epochs is None:
        own = replace(own, steps=steps, epochs=None if steps else args.num_train_epochs)
    else:
        _require_same("max_steps", steps, own.steps)
        _require_same("num_train_epochs", _unless_default(args, "num_train_epochs"), own.epochs)
    if own.expected_batch_size is None and own.sampling is None:
        own = replace(own, expected_batch_size=rows)
    elif own.expected_batch_size is not None and args.gradient_accumulation_steps > 1:
        name = "per_device_train_batch_size * gradient_accumulation_steps"
        _require_same(name, rows, own.expected_batch_size)
    return _clipped(args, own)


def _clipped(args: TrainingArguments, own: Privacy) -> Privacy:
    if own.clip_norm is None and own.clipping is None:
        if not (args.max_grad_norm and args.max_grad_norm > 0):
            raise InvalidParameterError(
                f"max_grad_norm={args.max_grad_norm} would not clip. It is the most that one row's gradient "
                "may have in L2 norm: give a positive number, or pass Privacy(clip_norm=...)."
            )
        return replace(own, clip_norm=args.max_grad_norm)
    _require_same("max_grad_norm", _unless_default(args, "max_grad_norm"), own.clip_norm)
    return own


def _unless_default(args: TrainingArguments, name: str) -> Any:
    (each,) = (each for each in fields(args) if each.name == name)
    return getattr(args, name) if _given(args, each) else None


def _require_same(name: str, given: float | None, claimed: float | None) -> None:
    if given is not None and given != claimed:
        raise InvalidParameterError(
            f"{name} is {given:g} in TrainingArguments, but privacy says otherwise. Say it in one place."
        )


def runtime_for(args: TrainingArguments, runtime: Runtime | None) -> Runtime:
    """Return how a run is computed: rows in pieces of the size for one device, bfloat16 where asked for."""
    own = Runtime() if runtime is None else runtime
    return replace(
        own,
        microbatch_size=own.microbatch_size or args.per_device_train_batch_size,
        autocast=torch.bfloat16 if args.bf16 else own.autocast,
        device=args.device if own.device is None else own.device,
    )


@contextmanager
def checkpointing(args: TrainingArguments, model: Any) -> Generator[None]:
    """Let a model compute activations again in place of keeping them, if asked for; then as it was."""
    if not args.gradient_checkpointing or getattr(model, "is_gradient_checkpointing", False):
        yield
        return
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise UnsupportedUseError(
            f"gradient_checkpointing=True needs a model of transformers; {type(model).__name__} has no "
            "gradient_checkpointing_enable. Leave it out, and lower per_device_train_batch_size."
        )
    given: Any = args.gradient_checkpointing_kwargs or {}
    model.gradient_checkpointing_enable({**given, "use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def kept_in_folder(args: TrainingArguments) -> bool:
    """Whether a run is kept in a folder, and can be resumed."""
    return args.save_strategy != SaveStrategy.NO
