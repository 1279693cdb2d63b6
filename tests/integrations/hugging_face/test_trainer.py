# SPDX-License-Identifier: Apache-2.0
import json
import math
import signal
import sys

import pytest
import torch
import transformers as hf
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import BudgetExceededError, InvalidParameterError, UnsupportedUseError
from sfumato.integrations.hugging_face import PrivateTrainer
from sfumato.integrations.hugging_face.arguments import checkpointing
from sfumato.ledger.state import Progress
from sfumato.testing import seeded
from sfumato.training import Charge, CheckpointError, Privacy, Runtime, Trainer, TrainingRun

from . import architectures

COUNT = 24
PRIVACY = Privacy(noise_multiplier=1.0, delta=1e-3, public_size=COUNT)
hf.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def one_thread():
    """Small products are slower on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def arguments(folder, **more):
    given = {"max_steps": 3, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    given |= {"learning_rate": 0.01, "optim": "sgd", "report_to": "none"}
    return hf.TrainingArguments(str(folder), **given | more)


def trainer(folder, name="GPT-2", *, rows=None, seed=1, args=None, model=None, **more):
    generator = None if seed is None else seeded(seed)
    own = {"privacy": PRIVACY, "generator": generator, "runtime": Runtime(check=False)}
    return PrivateTrainer(
        architectures.model(name) if model is None else model,
        arguments(folder, **(args or {})),
        train_dataset=architectures.rows(name, COUNT) if rows is None else rows,
        **own | more,
    )


def trained(*given, **more):
    found = trainer(*given, **more)
    found.train()
    return found


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


# --- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", architectures.MODELS)
def test_steps_are_bit_for_bit_those_of_our_own_trainer(name, tmp_path):
    found = trained(tmp_path, name)
    rows, own = architectures.tensors(architectures.rows(name, COUNT)), architectures.model(name)
    Trainer(
        own,
        rows,
        privacy=found.privacy,
        loss=architectures.own_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        schedule=lambda optimizer: hf.get_scheduler("linear", optimizer, 0, 3),
        runtime=Runtime(check=False, microbatch_size=8),
        generator=seeded(1),
        progress=False,
    ).fit()
    assert torch.equal(weights(found.model), weights(own))
    assert not torch.equal(weights(own), weights(architectures.model(name)))


def test_the_arguments_are_the_claim(tmp_path):
    found = trained(
        tmp_path,
        args={"gradient_accumulation_steps": 2, "per_device_train_batch_size": 3, "max_grad_norm": 0.5},
    )
    mechanism = found.run.mechanism
    assert (mechanism.steps, mechanism.sampling.sampling_rate) == (3, 6 / COUNT)
    assert mechanism.step.clipping.clip_norm == 0.5 and found.run.expected_batch_size == 6


def test_bfloat16_is_for_gradients_alone(tmp_path):
    found = trained(tmp_path, args={"bf16": True})
    assert weights(found.model).dtype is torch.float32
    assert not torch.equal(weights(found.model), weights(trained(tmp_path).model))


@pytest.mark.parametrize("name", ["GPT-2", "Llama, LoRA"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradient_checkpointing_gives_the_same_gradients(name, dropout, tmp_path, monkeypatch):
    ends, calls = [], []
    real = hf.modeling_utils.checkpoint

    def counted(*given, **more):
        calls.append(1)
        return real(*given, **more)

    monkeypatch.setattr(hf.modeling_utils, "checkpoint", counted)
    for wanted in (False, True):
        model = architectures.model(name)
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = dropout
        runtime = Runtime(check=False, engine="functional")
        args = {"gradient_checkpointing": wanted}
        ends.append(weights(trained(tmp_path, name, model=model, args=args, runtime=runtime).model))
        assert bool(calls) == wanted and not model.is_gradient_checkpointing
    assert torch.allclose(*ends, atol=1e-6)
    assert not torch.allclose(ends[0], weights(architectures.model(name)), atol=1e-6)


def test_gradient_checkpointing_chooses_an_engine_that_can_do_it(tmp_path):
    args = {"gradient_checkpointing": True}
    found = trained(tmp_path, args=args, runtime=None)
    assert torch.allclose(weights(found.model), weights(trained(tmp_path).model), atol=1e-2)


def test_reentrant_checkpointing_and_models_without_it_are_refused(tmp_path):
    args = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(UnsupportedUseError, match="use_reentrant"):
        trainer(tmp_path, args=args)

    class Own(nn.Module):
        pass

    with (
        pytest.raises(UnsupportedUseError, match="Own has no gradient_checkpointing_enable"),
        checkpointing(arguments(tmp_path, gradient_checkpointing=True), Own()),
    ):
        pass


def test_a_loss_of_a_subclass_is_used_for_one_row_at_a_time(tmp_path):
    sizes = []

    class Own(PrivateTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            sizes.append(inputs["input_ids"].shape[0])
            return 2 * super().compute_loss(model, inputs)

    rows = architectures.rows("GPT-2", COUNT)
    own = Own(architectures.model("GPT-2"), arguments(tmp_path), train_dataset=rows, privacy=PRIVACY)
    own.train()
    assert set(sizes) == {1}


def test_what_compute_loss_logs_or_keeps_of_private_rows_is_dropped(tmp_path):
    class Own(PrivateTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            found = super().compute_loss(model, inputs, return_outputs)
            if model.training:
                self.log({"sneaky": 1.0})
                self.kept = inputs["input_ids"]
                self.total = 1.0 + getattr(self, "total", 0.0)
            return found

    rows = architectures.rows("GPT-2", COUNT)
    own = Own(
        architectures.model("GPT-2"),
        arguments(tmp_path, logging_steps=1),
        train_dataset=rows,
        eval_dataset=architectures.rows("GPT-2", 2),
        privacy=PRIVACY,
    )
    own.train()
    assert not any("sneaky" in entry for entry in own.state.log_history)
    assert not hasattr(own, "kept") and not hasattr(own, "total")
    own.log({"mine": 1.0})  # outside of a pass over private rows
    assert "mine" in own.state.log_history[-1]


def test_label_smoothing_and_a_loss_function_see_one_row(tmp_path):
    seen = set()

    def loss(outputs, labels, num_items_in_batch=None):
        seen.add((tuple(labels.shape), num_items_in_batch))
        return outputs.logits.square().mean()

    trained(tmp_path, compute_loss_func=loss)
    assert seen == {((1, architectures.LENGTH), None)}
    smoothed = trained(tmp_path, args={"label_smoothing_factor": 0.1})
    assert not torch.equal(weights(smoothed.model), weights(trained(tmp_path).model))


# --- rows that are wrong ------------------------------------------------------------------------------------

GOOD = architectures.rows("GPT-2", 1)[0]
UNREADABLE = [
    {name: part[:3] for name, part in GOOD.items()},  # another length
    GOOD | {"labels": [1]},  # columns of different lengths
    {"input_ids": GOOD["input_ids"]},  # a missing column
    GOOD | {"input_ids": "seven"},
    GOOD | {"labels": [0.5] * 7},
    None,
]
FAILING = [
    GOOD | {"input_ids": [999] * 7},  # out of the vocabulary
    GOOD | {"labels": [999] * 7},
    GOOD | {"labels": [-100] * 7},  # all ignored
]


def after_rows(folder, first):
    """Return the weights after a run in which each row takes part in each step, some of them wrong."""
    model = architectures.model("GPT-2")
    for part in model.modules():
        if isinstance(part, nn.Dropout):  # a row that fails has others run again, with draws of their own
            part.p = 0.0
    rows = [*first, *architectures.rows("GPT-2", COUNT)[len(first) :]]
    args = {"per_device_train_batch_size": COUNT, "max_steps": 2}
    # The format of rows is that of the evaluation set, so the first rows may be wrong.
    shown = architectures.rows("GPT-2", 1)
    return weights(trained(folder, rows=rows, model=model, args=args, eval_dataset=shown).model)


@pytest.fixture(scope="module")
def without_them(tmp_path_factory):
    """Weights after runs in which the first rows contribute nothing, by their number."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    return {count: after_rows(folder, [None] * count) for count in (len(FAILING), len(UNREADABLE))}


@pytest.mark.parametrize("poison", [UNREADABLE, FAILING], ids=["unreadable", "failing"])
def test_wrong_rows_contribute_nothing_and_stop_nothing(poison, without_them, tmp_path, caplog):
    found = after_rows(tmp_path, poison)
    assert torch.allclose(found, without_them[len(poison)], atol=1e-6)
    assert caplog.text == ""


def test_rows_that_are_right_contribute(without_them, tmp_path):
    found = after_rows(tmp_path, [GOOD] * len(FAILING))
    assert not torch.allclose(found, without_them[len(FAILING)], atol=1e-4)


def test_a_picture_that_is_not_a_number_contributes_nothing(tmp_path):
    ends = []
    for poison in (math.nan, math.inf):
        rows = architectures.rows("ViT", COUNT)
        rows[5] = rows[5] | {"pixel_values": rows[5]["pixel_values"] * poison}
        ends.append(weights(trained(tmp_path, "ViT", rows=rows).model))
    assert torch.equal(*ends) and ends[0].isfinite().all()


# --- what is shown ------------------------------------------------------------------------------------------

SHOWN = {"learning_rate", "epsilon", "eval_loss", "epoch", "step"}


class Watching(hf.TrainerCallback):
    def __init__(self):
        self.events, self.keys, self.touched = [], set(), []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.keys |= set(logs)

    def on_evaluate(self, args, state, control, metrics=None, model=None, **kwargs):
        self.keys |= set(metrics)
        assert model.training is False

    def on_train_begin(self, args, state, control, **kwargs):
        self.events.append("begin")

    def on_step_begin(self, args, state, control, train_dataloader=None, **kwargs):
        assert train_dataloader is None
        self.events.append(state.global_step)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.events.append("noisy")

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.events.append("moved")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.touched.append(model)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.events.append("epoch")

    def on_save(self, args, state, control, **kwargs):
        self.events.append("save")

    def on_train_end(self, args, state, control, **kwargs):
        self.events.append("end")


EVALUATED = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run with a folder and an evaluation set."""
    torch.set_num_threads(1)
    watching = Watching()
    found = trained(
        tmp_path_factory.mktemp("watched"),
        args=EVALUATED,
        eval_dataset=architectures.rows("GPT-2", 4, seed=2),
        callbacks=[watching],
    )
    found.save_model()
    return found, watching


def test_callbacks_are_called_in_the_order_of_transformers(watched):
    _, watching = watched
    step = ["noisy", "moved"]
    assert watching.events == ["begin", 0, *step, 1, *step, "save", 2, *step, "epoch", "save", "end"]


def test_logs_and_metrics_hold_nothing_private(watched):
    found, watching = watched
    assert watching.keys <= SHOWN and {"epsilon", "eval_loss"} <= watching.keys
    assert {name for row in found.state.log_history for name in row} <= SHOWN
    assert set(found.evaluate()) == {"eval_loss", "epoch"}
    assert set(found.predict(architectures.rows("GPT-2", 2)).metrics) == {"test_loss"}
    assert found.state.total_flos == 0 and found.state.num_input_tokens_seen == 0
    for path in (found._output / "checkpoint-3").rglob("*.json"):
        text = path.read_text()
        assert "grad_norm" not in text and "runtime" not in text and "train_loss" not in text
    assert not list(found._output.rglob("rng_state*")) and not list(found._output.rglob("optimizer.pt"))


def test_the_training_loss_is_not_returned(tmp_path):
    result = trainer(tmp_path).train()
    assert math.isnan(result.training_loss) and set(result.metrics) == {"epsilon", "delta"}


def test_weights_are_withheld_until_a_checkpoint_holds_them(watched):
    _, watching = watched
    for model in watching.touched:
        with pytest.raises(UnsupportedUseError, match="no checkpoint holds yet"):
            model.state_dict()


def test_a_run_that_cannot_be_resumed_shows_its_weights_to_callbacks(tmp_path):
    watching = Watching()
    found = trained(tmp_path, callbacks=[watching])
    assert watching.touched[-1] is found.model


def test_the_privacy_card_is_in_the_model_card(watched):
    found, _ = watched
    text = (found._output / "README.md").read_text()
    assert "epsilon: " in text.split("---")[1] and found.run.guarantee.privacy_unit in text
    found.create_model_card(license="apache-2.0")
    text = (found._output / "README.md").read_text()
    assert text.count("privacy card: begin") == 1 and "license: apache-2.0" in text


def test_the_run_is_kept_beside_the_checkpoints(watched):
    found, _ = watched
    run = TrainingRun.load(found._output / "_sfumato", architectures.model("GPT-2"))
    assert torch.equal(weights(run.model), weights(found.model))
    assert [row.step for row in run.history] == [1, 2, 3] and run.history[1].loss is not None
    assert "evaluation data, which is not protected" in run.statement()


def test_the_module_is_left_as_it_was(watched):
    found, _ = watched
    fresh = architectures.model("GPT-2")
    fresh.config.use_cache = found.model.config.use_cache  # transformers sets it
    assert set(vars(found.model)) == set(vars(fresh))
    for part, same in zip(found.model.modules(), fresh.modules(), strict=True):
        assert type(part) is type(same)
        assert not part._forward_hooks and not part._backward_hooks and not part._forward_pre_hooks
    assert not found.optimizer._optimizer_step_pre_hooks and all(p.grad is None for p in fresh.parameters())


# --- evaluation decides -------------------------------------------------------------------------------------


def worse_and_worse():
    values = iter(range(100))
    return lambda prediction: {"score": -next(values)}


def test_a_run_that_is_stopped_early_is_charged_whole(tmp_path):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=100, delta=1e-2))
    args = EVALUATED | {"eval_steps": 1, "save_steps": 1, "max_steps": 5}
    args |= {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True}
    found = trained(
        tmp_path / "out",
        args=args,
        seed=None,
        eval_dataset=architectures.rows("GPT-2", 2),
        compute_metrics=worse_and_worse(),
        callbacks=[hf.EarlyStoppingCallback(1)],
        charge=Charge(account=account, purpose="test"),
    )
    run = found.run
    assert found.state.global_step == 2 == run.stopped_after and run.mechanism.steps == 5
    assert "stopped after 2 of these steps" in run.statement()
    (release,) = account.releases()
    assert (
        release.progress is Progress.COMMITTED
        and run.epsilon == run.mechanism.price(delta=run.price.delta).epsilon
    )
    best = type(found.model).from_pretrained(tmp_path / "out" / "checkpoint-1")
    assert torch.equal(weights(best), weights(found.model))
    assert TrainingRun.load(tmp_path / "out" / "_sfumato").stopped_after == 2


# --- interrupted --------------------------------------------------------------------------------------------


class Interrupt(hf.TrainerCallback):
    def __init__(self, step, event="on_step_end", error=KeyboardInterrupt):
        self.step, self.error = step, error
        setattr(self, event, self.check)

    def check(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise self.error


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was not interrupted."""
    torch.set_num_threads(1)
    return trained(tmp_path_factory.mktemp("whole"), **LONGER)


LONGER = {"args": EVALUATED | {"max_steps": 4}, "eval_dataset": architectures.rows("GPT-2", 4, seed=2)}


@pytest.mark.parametrize(("event", "step"), [("on_step_end", 3), ("on_save", 2), ("on_save", 4)])
def test_an_interrupted_run_goes_on_to_the_same_weights_and_one_charge(event, step, whole, tmp_path):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=100, delta=1e-2))
    given = LONGER | {"charge": Charge(account=account, purpose="test")}
    with pytest.raises(KeyboardInterrupt) as stopped:
        trainer(tmp_path / "out", callbacks=[Interrupt(step, event)], **given).train()
    (note,) = stopped.value.__notes__
    assert "the charge stays" in note and "with train(resume_from_checkpoint=True)." in note
    assert ("back at step 2" in note) == (step < 4)
    again = trainer(tmp_path / "out", **given)
    again.train(resume_from_checkpoint=True)
    assert again.state.log_history == whole.state.log_history
    assert torch.equal(weights(again.model), weights(whole.model))
    assert [row.step for row in again.run.history] == [row.step for row in whole.run.history]
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED


def test_a_callback_that_fails_at_the_end_loses_nothing(whole, tmp_path):
    failing = Interrupt(4, "on_train_end", OSError("the disk is full"))
    found = trainer(tmp_path, callbacks=[failing], **LONGER)
    with pytest.raises(OSError, match="the disk is full"):
        found.train()
    kept = TrainingRun.load(tmp_path / "_sfumato")
    assert kept.weights_sha256 == found.run.weights_sha256 == whole.run.weights_sha256


def test_an_interrupted_run_leaves_the_weights_of_its_last_checkpoint(tmp_path):
    found = trainer(
        tmp_path, args=EVALUATED | {"max_steps": 5, "eval_strategy": "no"}, callbacks=[Interrupt(3)]
    )
    with pytest.raises(KeyboardInterrupt):
        found.train()
    kept = type(found.model).from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(weights(kept), weights(found.model))
    with pytest.raises(UnsupportedUseError, match="no finished run"):
        _ = found.run


def test_a_handler_of_sigterm_ends_the_run_while_a_row_is_read(tmp_path):
    class Rows(list):
        reads = 0

        def __getitem__(self, number):
            self.reads += 1
            if self.reads == 20:
                signal.raise_signal(signal.SIGTERM)
            return super().__getitem__(number)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = trainer(tmp_path, rows=Rows(architectures.rows("GPT-2", COUNT)))
    start = weights(found.model)
    try:
        with pytest.raises(SystemExit, match="143"):
            found.train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert torch.equal(weights(found.model), start)


def test_only_the_last_checkpoint_can_be_continued(tmp_path):
    args = EVALUATED | {"max_steps": 4, "eval_strategy": "no", "save_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, args=args, callbacks=[Interrupt(3)]).train()
    with pytest.raises(CheckpointError, match="not the last checkpoint"):
        trainer(tmp_path, args=args).train(str(tmp_path / "checkpoint-1"))
    again = trainer(tmp_path, args=args)
    again.train(str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == 4


def test_a_finished_run_is_not_trained_over(watched):
    found, _ = watched
    with pytest.raises(CheckpointError, match="is finished"):
        found.train()


# --- the ledger ---------------------------------------------------------------------------------------------


class Untouched(list):
    def __getitem__(self, number):
        raise AssertionError("a row was read")


def test_what_the_account_cannot_pay_is_refused_before_a_row_is_read(tmp_path):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=0.1, delta=1e-2))
    found = trainer(tmp_path, rows=Untouched([GOOD]), seed=None, charge=Charge(account=account, purpose="x"))
    with pytest.raises(BudgetExceededError):
        found.train()


# --- refused ------------------------------------------------------------------------------------------------


def test_what_the_private_loop_does_not_do_is_refused_by_name(tmp_path):
    found = trainer(tmp_path)
    for name in ("get_train_dataloader", "training_step", "hyperparameter_search"):
        with pytest.raises(UnsupportedUseError, match=name):
            getattr(found, name)()
    with pytest.raises(UnsupportedUseError, match="trial"):
        found.train(trial=object())
    with pytest.raises(UnsupportedUseError, match="must not be computed on private rows"):
        found.evaluate(found.train_dataset)
    with pytest.raises(UnsupportedUseError, match="must not be computed on private rows"):
        found.predict(found.train_dataset)


def test_an_unknown_keyword_is_refused(tmp_path):
    with pytest.raises(InvalidParameterError, match="model_init"):
        trainer(tmp_path, model_init=lambda: nn.Linear(1, 1))


def test_training_needs_rows(tmp_path):
    found = PrivateTrainer(architectures.model("GPT-2"), arguments(tmp_path), privacy=PRIVACY)
    with pytest.raises(UnsupportedUseError, match="nothing to train on"):
        found.train()


def test_a_collator_that_pads_needs_a_public_length(tmp_path):
    def pad(examples):
        longest = max(len(each["input_ids"]) for each in examples)
        ids = torch.tensor(
            [each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in examples]
        )
        return {"input_ids": ids, "labels": ids.where(ids > 0, -100)}

    rows = architectures.rows("GPT-2", COUNT)
    rows = [{"input_ids": row["input_ids"][: 2 + i % 6]} for i, row in enumerate(rows)]
    with pytest.raises(UnsupportedUseError, match="max_length"):
        trained(tmp_path, rows=rows, data_collator=pad)
    found = trained(tmp_path, rows=rows, data_collator=pad, max_length=8)
    assert found._rows()[1][1]["input_ids"].shape == (8,)
    assert json.loads(json.dumps(found.run.to_json()))
