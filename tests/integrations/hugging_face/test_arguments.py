# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, fields

import pytest
import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from sfumato.accounting import plan
from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.integrations.hugging_face import arguments
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Privacy, Runtime


def made(kind=TrainingArguments, **given):
    return kind("out", use_cpu=True, **given)


def test_every_argument_of_transformers_is_in_one_list():
    lists = [arguments.CHANGED, arguments.KEPT, frozenset(arguments.REFUSED)]
    names = {each.name for each in fields(TrainingArguments)}
    assert names - frozenset().union(*lists) == set()
    assert sum(len(each) for each in lists) == len(frozenset().union(*lists))


def test_the_defaults_are_accepted():
    arguments.refuse(made())
    arguments.refuse(made(report_to="none", max_steps=3, bf16=True, gradient_checkpointing=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_find_batch_size", True),
        ("data_seed", 1),
        ("debug", "underflow_overflow"),
        ("enable_jit_checkpoint", True),
        ("include_num_input_tokens_seen", "all"),
        ("neftune_noise_alpha", 5.0),
        ("report_to", "tensorboard"),
        ("skip_memory_metrics", False),
        ("torch_compile", True),
        ("train_sampling_strategy", "group_by_length"),
        ("train_sampling_strategy", "sequential"),
        ("use_liger_kernel", True),
        ("lr_scheduler_type", "greedy"),
        ("optim", "galore_adamw_layerwise"),
    ],
)
def test_an_argument_that_breaks_the_claim_is_refused_by_name(name, value):
    args = made()
    setattr(args, name, value)
    with pytest.raises(UnsupportedUseError, match=name):
        arguments.refuse(args)


@pytest.mark.parametrize("name", sorted(arguments.REFUSED))
def test_every_refused_argument_is_refused(name):
    args = made()
    setattr(args, name, not getattr(args, name) if isinstance(getattr(args, name), bool) else "on")
    with pytest.raises(UnsupportedUseError, match=rf"TrainingArguments\({name}="):
        arguments.refuse(args)


def test_an_argument_that_nobody_looked_at_is_refused(monkeypatch):
    with pytest.raises(UnsupportedUseError, match="predict_with_generate"):
        arguments.refuse(made(Seq2SeqTrainingArguments, predict_with_generate=True))
    arguments.refuse(made(Seq2SeqTrainingArguments))
    monkeypatch.setattr(arguments, "KEPT", arguments.KEPT - {"weight_decay"})
    with pytest.raises(UnsupportedUseError, match="weight_decay"):
        arguments.refuse(made(weight_decay=0.5))


def test_arguments_of_a_users_own_class_do_nothing_here():
    @dataclass
    class Own(TrainingArguments):
        data_folder: str = "a"

    arguments.refuse(made(Own, data_folder="b"))


# --- the claim ----------------------------------------------------------------------------------------------

OPEN = Privacy(epsilon=1, public_size=1000)


def test_what_privacy_leaves_open_is_taken_from_the_arguments():
    args = made(per_device_train_batch_size=4, gradient_accumulation_steps=8, num_train_epochs=2)
    found = arguments.claim(args, OPEN)
    assert (found.expected_batch_size, found.epochs, found.steps, found.clip_norm) == (32, 2, None, 1.0)
    found = arguments.claim(made(max_steps=7, max_grad_norm=0.3), OPEN)
    assert (found.epochs, found.steps, found.clip_norm, found.epsilon) == (None, 7, 0.3, 1)


def test_privacy_comes_before_the_defaults_of_the_arguments():
    own = Privacy(epsilon=1, public_size=1000, steps=5, clip_norm=0.1, expected_batch_size=64)
    found = arguments.claim(made(), own)
    assert (found.steps, found.epochs, found.clip_norm, found.expected_batch_size) == (5, None, 0.1, 64)


@pytest.mark.parametrize(
    ("given", "privacy"),
    [
        ({"max_steps": 7}, Privacy(epsilon=1, public_size=1000, steps=5)),
        ({"max_steps": 7}, Privacy(epsilon=1, public_size=1000, epochs=5)),
        ({"num_train_epochs": 7}, Privacy(epsilon=1, public_size=1000, epochs=5)),
        ({"max_grad_norm": 7}, Privacy(epsilon=1, public_size=1000, clip_norm=5)),
        ({"max_grad_norm": 7}, Privacy(epsilon=1, public_size=1000, clipping=Clipping(clip_norm=5))),
        ({"gradient_accumulation_steps": 7}, Privacy(epsilon=1, public_size=1000, expected_batch_size=5)),
    ],
)
def test_two_claims_are_refused(given, privacy):
    with pytest.raises(InvalidParameterError, match="in one place"):
        arguments.claim(made(**given), privacy)


def test_a_mechanism_and_a_plan_say_all():
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.1),
        noise=[(1.0, 5)],
        relation="add-remove",
    )
    assert arguments.claim(made(), mechanism).mechanism is mechanism
    with pytest.raises(InvalidParameterError, match="max_steps"):
        arguments.claim(made(max_steps=6), mechanism)
    planned = plan(epsilon=2, delta=1e-5, public_size=1000, expected_batch_size=100, epochs=1)
    found = arguments.claim(made(), planned)
    assert found.steps == planned.steps and found.noise_multiplier == planned.noise_multiplier


@pytest.mark.parametrize("norm", [0.0, -1.0, None])
def test_no_clipping_is_refused(norm):
    with pytest.raises(InvalidParameterError, match="would not clip"):
        arguments.claim(made(max_grad_norm=norm), OPEN)


def test_the_runtime_has_pieces_of_the_batch_size_of_a_device():
    found = arguments.runtime_for(made(per_device_train_batch_size=3, bf16=True), None)
    assert found.microbatch_size == 3 and found.autocast is torch.bfloat16
    own = arguments.runtime_for(made(), Runtime(microbatch_size=2, device="cpu"))
    assert own.microbatch_size == 2 and own.autocast is None


def test_a_run_is_kept_where_checkpoints_are():
    assert arguments.kept_in_folder(made()) and not arguments.kept_in_folder(made(save_strategy="no"))
