# SPDX-License-Identifier: Apache-2.0
"""The choice of a way, in whole steps: with a recorder and a clock that are made up."""

import logging
import math
import sys
import warnings

import pytest
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training import CoordinateClipping, PassSettings, PrivateGradients, Runtime, Trainer
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.recording import faster_passes, pass_trial
from sfumato.training.engine.recording.faster_passes import FasterPasses
from sfumato.training.engine.recording.pass_trial import PassTrial
from sfumato.training.engine.recording.recorded_pieces import RecordedPieces
from sfumato.training.fast import compilation

from ...gradients import private_gradients

EAGER, GRAPHS, COMPILED = 0.005, 0.002, 0.001  # seconds of a pass


class Clock:
    """Time passes while passes run, and at no other time."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Recorder:
    """Records a pass as itself, a faster one by the clock; or fails, or is wrong."""

    def __init__(self, machine, *, cuda_graphs, compile, tell):
        self.machine, self.compiles, self.tell = machine, compile, tell

    def takes(self, batch):
        return True

    def record(self, run, batch):
        self.machine.recorded.append((self.compiles, [t.clone() for t in batch if t is not None]))
        failure = self.machine.failures.get(self.compiles)
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            self.tell(failure)
            return run

        def replay(given):
            self.machine.replays += 1
            self.machine.clock.now += COMPILED if self.compiles else GRAPHS
            return run(given)

        return replay


class Machine:
    """A machine with something like a GPU."""

    def __init__(self, monkeypatch):
        self.clock, self.recorded, self.replays, self.failures = Clock(), [], 0, {}
        clipped = Passes._clipped

        def slow(passes, *args):
            self.clock.now += EAGER
            return clipped(passes, *args)

        def recorder(**options):
            return Recorder(self, **options)

        def trial(**options):
            return PassTrial(**options, clock=self.clock)

        monkeypatch.setattr(Passes, "_clipped", slow)
        monkeypatch.setattr(FasterPasses, "_device", torch.device("cuda"))
        monkeypatch.setattr(faster_passes, "no_compiler", lambda device: None)
        monkeypatch.setattr(faster_passes, "PassTrial", trial)
        monkeypatch.setattr(pass_trial, "recorder", recorder)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def private_of(model, **options):
    options = {"clip_norm": 0.5, "noise_multiplier": 1e-6, "expected_batch_size": 6, **options}
    return private_gradients(model, generator=seeded(0), **options)


def rows(count, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=draws), torch.randint(0, 2, (count,), generator=draws)


def run(private, steps, batches=rows):
    for step in range(steps):
        private.backward(*batches(4 + step % 5, step))


def test_a_planned_run_is_tried_after_three_steps_and_its_sums_stay_the_same(machine):
    model = network()
    private = private_of(model, planned_steps=100)
    run(private, 2)
    assert "after the first steps" in private.way and not machine.recorded
    run(private, 1)
    assert private.way.startswith("Passes run as CUDA graphs: 2.5 times faster")
    machine.replays = 0
    run(private, 5)
    assert machine.replays > 0
    plain = private_of(model, cuda_graphs=False, compile=False)
    private.backward(*rows(5, seed=9))
    found = gradient(model).clone()
    plain.backward(*rows(5, seed=9))
    torch.testing.assert_close(gradient(model), found, rtol=1e-4, atol=1e-5)


def test_a_long_run_is_compiled(machine):
    private = private_of(network(), planned_steps=10**6)
    run(private, 3)
    assert private.way == (
        "Passes run compiled, as CUDA graphs: 5.0 times faster than eagerly, on synthetic rows."
    )
    assert [compiles for compiles, _ in machine.recorded] == [False, True]


def test_a_resumed_run_counts_what_is_left(machine):
    private = private_of(network(), planned_steps=100)
    private.load_state_dict({**private_of(network()).state_dict(), "history": [(1e-6, 60)]})
    run(private, 3)
    assert "too short" in private.way and not machine.recorded


def test_a_run_of_unknown_length_waits_longer(machine):
    private = private_of(network())
    run(private, 9)
    assert not machine.recorded
    run(private, 1)
    assert "as CUDA graphs" in private.way and "not compiled before step" in private.way


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cuda_graphs": False, "compile": False}, "cuda_graphs=False and compile=False"),
        ({"clip_norm": None, "clipping": CoordinateClipping(coordinate_bound=1.0)}, "by coordinate"),
        ({"engine": "functional"}, "functional passes are not recorded"),
        ({"projections": 4}, "projections are drawn anew"),
    ],
)
def test_what_cannot_be_recorded_says_why(machine, options, says):
    private = private_of(network(), planned_steps=100, **options)
    run(private, 4)
    assert says in private.way and not machine.recorded


def test_parameters_that_are_spread_over_processes_are_not_recorded(machine):
    model = network()
    model[0].weight.device_mesh = "as a parameter of FSDP has one"
    private = private_of(model, planned_steps=100)
    run(private, 4)
    assert "spread over processes" in private.way and not machine.recorded


def test_a_loop_that_runs_the_model_itself_is_not_recorded(machine):
    model = network()
    private = private_of(model, planned_steps=100)
    x, y = rows(6)
    engine = private._passes._engine
    for _ in range(4):
        private.accumulate(x, y, recorded=engine.run((None, x, y), per_unit=1))
        private.finish()
    assert "the loop runs the model itself" in private.way and not machine.recorded


def test_a_flag_that_is_true_leaves_nothing_to_choose(machine):
    private = private_of(network(), planned_steps=10**6, compile=True)
    private._passes._replays.stop()  # which would take a compiler
    run(private, 4)
    assert private.way == "Passes run as they were asked to." and not machine.recorded


@pytest.mark.parametrize("steps", [10, 20])
def test_rows_of_another_shape_at_each_step_are_not_recorded(machine, steps):
    model = nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2))
    private = private_of(model, planned_steps=10**6)
    for length in range(3, 3 + steps):
        private.backward(torch.randn(4, length), torch.zeros(4, dtype=torch.int64))
    assert (
        private.way == "Passes run eagerly: rows have another shape at most steps." and not machine.recorded
    )


def test_shapes_that_begin_to_change_later_end_it(machine):
    model = nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2))
    private = private_of(model, planned_steps=10**6)
    for length in [3, 3, 3, *range(4, 20)]:
        private.backward(torch.randn(4, length), torch.zeros(4, dtype=torch.int64))
    assert "more than 8 shapes" in private.way and private.way.startswith("Passes run eagerly")
    made = len(machine.recorded)
    private.backward(torch.randn(4, 30), torch.zeros(4, dtype=torch.int64))
    assert len(machine.recorded) == made <= 2 + 8 and model[1].weight.grad.isfinite().all()


def test_shapes_that_change_end_what_was_asked_for_with_a_warning(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda program, **options: program)
    model = nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2))
    private = private_of(model, compile=True)
    with pytest.warns(UserWarning, match="more than 8 shapes"):
        for length in range(3, 14):
            private.backward(torch.randn(4, length), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ("the pass was recorded to something that does not agree with it", "does not agree"),
        (torch.OutOfMemoryError("17 GiB"), "not enough memory"),
        (RuntimeError("secret 4711"), "the pass failed"),
    ],
)
def test_a_way_that_fails_is_named_and_not_quoted(machine, failure, says):
    machine.failures = {False: failure, True: failure}
    model = network()
    private = private_of(model, planned_steps=10**6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(private, 5)
    assert private.way.startswith("Passes run eagerly") and says in private.way and "4711" not in private.way
    assert machine.replays == 0


def test_a_model_without_a_gradient_at_zero_is_not_padded_with_zeros(machine):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            return self.layer(x).square().sum(1, keepdim=True).sqrt() * torch.ones(1, 2)

    private = private_of(Norm(), planned_steps=100)
    run(private, 3)
    assert "a row of zeros" in private.way and private.way.startswith("Passes run eagerly")


# --- privacy ---------------------------------------------------------------------------------------------


def poisoned(kind):
    def made(count, seed):
        x, y = rows(count, seed)
        if kind == "NaN":
            x[0] = math.nan
        if kind == "huge":
            x[0] = 3e38
        if kind == "label out of range":
            y[0] = 99
        return x, y

    return made


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("poison", ["NaN", "huge", "label out of range"])
def test_no_row_decides_which_way_is_chosen_or_whether_one_fails(monkeypatch, poison, failing):
    found = []
    for kind in ("clean", poison):
        machine = Machine(monkeypatch)
        machine.failures = {False: "it could not be recorded"} if failing else {}
        private = private_of(network(), planned_steps=10**6)
        lines = []
        for step in range(12):
            private.backward(*poisoned(kind)(6, step))
            lines.append(private.way)
        found.append((lines, machine.recorded))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def test_the_size_of_batches_decides_nothing_that_is_told(monkeypatch):
    found = []
    for counts in ([6] * 12, [1, 9, 0, 3, 0, 14, 2, 30, 0, 1, 8, 5], [0] * 12):
        Machine(monkeypatch)
        private = private_of(network(), planned_steps=10**6)
        lines = []
        for step, count in enumerate(counts):
            private.backward(*rows(count, step))
            lines.append(private.way)
        found.append(lines)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["groups", "owners"])
def test_the_number_of_rows_of_units_decides_nothing_that_is_tried_or_told(monkeypatch, kind):
    found = []
    for most in (1, 5):
        machine = Machine(monkeypatch)
        private = private_of(network(), planned_steps=10**6, group_size=2 if kind == "groups" else 1)
        if kind == "owners":
            private.public_rows.expect(None)
        lines = []
        for step in range(5):
            per_unit = most if kind == "owners" else 1
            private.backward(*rows(6 * most, step), rows_per_unit=per_unit)
            lines.append(private.way)
        found.append((lines, len(machine.recorded)))
    assert found[0] == found[1] and "another number of rows" in found[0][0][-1]


def test_a_run_by_owners_tells_nothing_of_how_many_rows_they_have(machine):
    owners = torch.arange(60) // 2
    run = trained(owners=owners, contribution_bound=2, public_size=30, expected_batch_size=3).fit()
    assert not machine.recorded and run.model is not None


def test_steps_without_rows_do_not_change_how_many_rows_are_tried(machine):
    private = private_of(network(), planned_steps=10**6)
    private.public_rows.expect(2)
    for _ in range(3):
        private.backward(*rows(0))
    assert {batch[1].shape[0] for _, batch in machine.recorded} == {12}


def test_what_recording_one_size_says_is_not_shown(machine, monkeypatch, capsys):
    private = private_of(network(), planned_steps=100)
    run(private, 3)
    record = Recorder.record

    def recorded(self, run, batch):
        warnings.warn(f"a batch of {len(batch[1])} rows is slow", stacklevel=1)
        sys.stderr.write(str(len(batch[1])))
        return record(self, run, batch)

    monkeypatch.setattr(Recorder, "record", recorded)
    made = len(machine.recorded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private.backward(*rows(23))
    assert len(machine.recorded) > made and not capsys.readouterr().err


def test_memory_that_recordings_hold_is_given_back_without_a_word(machine, monkeypatch):
    private = private_of(network(), planned_steps=100, microbatch_size=None)
    run(private, 4)
    way, clipped = private.way, Passes._clipped
    assert "as CUDA graphs" in way

    def short(passes, *args):
        if passes._replays.active:
            raise torch.OutOfMemoryError("17 GiB")
        return clipped(passes, *args)

    monkeypatch.setattr(Passes, "_clipped", short)
    monkeypatch.setattr(
        RecordedPieces, "replay", lambda *given, **options: None
    )  # a size without a recording
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private.backward(*rows(5))
    assert private.way == way and gradient(private._passes._model).isfinite().all()


def test_a_trial_leaves_no_draws_and_nothing_in_the_model(machine):
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    private = private_of(model, planned_steps=10**6)
    before, state = torch.get_rng_state(), {n: t.clone() for n, t in model.state_dict().items()}
    run(private, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert "draws random numbers" in private.way


# --- rooms -----------------------------------------------------------------------------------------------


def trained(tmp_path=None, **options):
    torch.manual_seed(1)
    data = torch.randn(60, 3), torch.randint(0, 2, (60,))
    options = {
        "public_size": 60,
        "expected_batch_size": 6,
        "steps": 60,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "delta": 1e-3,
        **options,
    }
    return Trainer(network(), data, generator=seeded(3), progress=False, **options)


def test_a_run_says_its_length_and_sums_do_not_depend_on_the_way(machine, caplog):
    found = []
    for runtime in (Runtime(), Runtime(cuda_graphs=False, compile=False)):
        with caplog.at_level(logging.INFO, logger="sfumato.training.engine.recording.faster_passes"):
            model = trained(runtime=runtime).fit().model
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    (line,) = [r.message for r in caplog.records if "CUDA graphs" in r.message]
    assert "would have to follow" in line  # the run is known to end before
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_default_settings_leave_the_choice_open():
    assert (
        (Runtime().compile, Runtime().cuda_graphs)
        == (None, None)
        == (
            PassSettings().compile,
            PassSettings().cuda_graphs,
        )
    )
    assert not PassSettings().recorded and PassSettings(compile=True).recorded
    with pytest.raises(ValueError, match="planned_steps"):
        PassSettings(planned_steps=0)


def test_a_cpu_runs_eagerly_without_a_trial():
    private = PrivateGradients(network(), clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
    run(private, 12)
    assert private.way == ("Passes run eagerly: this is the fastest way for most models on this device.")


# --- numbers that a recording takes for constant -----------------------------------------------------------


class Cooling(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.temperature = 1.0

    def forward(self, x):
        return super().forward(x) / self.temperature


def freezing(machine, monkeypatch):
    """Let recordings replay what they were made of, as real ones do: with the temperature of that moment."""
    record = Recorder.record

    def recorded(self, run, batch):
        replay, model, then = record(self, run, batch), machine.model, machine.model.temperature

        def frozen(given):
            now, model.temperature = model.temperature, then
            try:
                return replay(given)
            finally:
                model.temperature = now

        return frozen

    monkeypatch.setattr(Recorder, "record", recorded)


@pytest.mark.parametrize("holder", ["the model", "the loss"])
def test_a_number_that_changes_between_steps_ends_recordings(machine, monkeypatch, holder):
    model = machine.model = Cooling()
    freezing(machine, monkeypatch)
    at = {"scale": 1.0}

    def loss(model, x, y):
        return nn.functional.cross_entropy(at["scale"] * model(x), y, reduction="none")

    private = PrivateGradients(
        model,
        loss,
        clip_norm=100.0,
        noise_multiplier=1e-8,
        expected_batch_size=6,
        passes=PassSettings(planned_steps=100),
        generator=seeded(0),
    )
    run(private, 6)
    assert "as CUDA graphs" in private.way and machine.replays > 0
    if holder == "the model":
        model.temperature = 0.1
    else:
        at["scale"] = 10.0
    machine.replays = 0
    private.backward(*rows(6, seed=9))
    found = gradient(model).clone()
    plain = private_of(model, cuda_graphs=False, compile=False, clip_norm=100.0, noise_multiplier=1e-8)
    model.temperature = 0.1
    plain.backward(*rows(6, seed=9))
    torch.testing.assert_close(found, gradient(model), rtol=1e-4, atol=1e-5)
    assert machine.replays == 0 and ("changes between steps" in private.way) == (holder == "the model")


@pytest.mark.parametrize("count", [0, 6])
def test_the_end_of_recordings_is_told_whether_a_batch_has_rows_or_not(machine, count):
    model = Cooling()
    private = private_of(model, planned_steps=100)
    run(private, 4)
    model.temperature = 0.5
    private.backward(*rows(count))
    assert "changes between steps" in private.way and private.way.startswith("Passes run eagerly")


def test_what_was_asked_for_ends_with_a_warning_if_a_number_changes(monkeypatch):
    model = Cooling()
    private = private_of(model, compile=True)
    monkeypatch.setattr(compilation, "_compiled", lambda run, batch: run)
    private.backward(*rows(6))
    model.temperature = 0.5
    with pytest.warns(UserWarning, match="changes between steps"):
        private.backward(*rows(6))


def test_modes_and_numbers_that_recording_itself_changes_end_nothing(machine, monkeypatch):
    model, calls = network(), []
    record = Recorder.record

    def counted(self, run, batch):
        calls.append(len(calls))  # as code of a loss does that runs once for each recording
        return record(self, run, batch)

    monkeypatch.setattr(Recorder, "record", counted)

    def loss(model, x, y):
        assert len(calls) >= 0
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    private = PrivateGradients(
        model,
        loss,
        clip_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=6,
        passes=PassSettings(planned_steps=100),
    )
    for step in range(8):
        private.backward(*rows(4 + step % 5, step))
        model.eval()
        model(rows(3)[0])
        model.train()
    assert "as CUDA graphs" in private.way and private._passes._replays.active
