# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training import train

DATA = torch.zeros(20, 2), torch.zeros(20, dtype=torch.int64)


class Log:
    """Keeps what it gets; raises as long as it is told to."""

    def __init__(self, failures=0, at=("begin", "figures", "end")):
        self.got, self._failures, self._at = [], failures, at

    def _take(self, kind, *given):
        if kind in self._at and self._failures:
            self._failures -= 1
            raise OSError(28, "No space left on device")
        self.got.append((kind, *given))

    def begin(self, settings):
        self._take("begin", settings)

    def figures(self, step, values):
        self._take("figures", step, values)

    def end(self, facts):
        self._take("end", facts)


def trained(*loggers, **options):
    given = {"noise_multiplier": 1.0, "delta": 1e-4, "public_size": 20, "expected_batch_size": 5, "steps": 6}
    given |= {"evaluation": DATA, "evaluate_every": 2, "progress": False, "generator": seeded(0)}
    return train(nn.Linear(2, 2), DATA, loggers=loggers, **given | options)


def test_a_logger_gets_settings_figures_and_the_guarantee_and_nothing_else():
    log = Log()
    run = trained(log)
    (_, settings), *figures, (_, facts) = log.got
    assert [kind for kind, *_ in log.got] == ["begin", "figures", "figures", "figures", "end"]
    assert set(settings) == {
        *("steps", "noise_multiplier", "sampling", "clipping", "relation", "expected_batch_size"),
        *("parameters", "optimizer", "learning_rate", "delta", "privacy_unit"),
    }
    assert [step for _, step, _ in figures] == [2, 4, 6]
    assert all(set(values) == {"epsilon", "learning_rate", "loss", "accuracy"} for *_, values in figures)
    assert figures[-1][2]["epsilon"] == run.epsilon
    assert set(facts) == {"epsilon", "delta", "relation", "privacy_unit", "guarantee", "statement"}
    assert facts["statement"] == run.statement()


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_what_a_failing_logger_missed_goes_out_later(failures):
    log, other = Log(failures), Log()
    with pytest.warns(UserWarning, match=r"the logger Log failed \(OSError: .*No space left"):
        trained(log, other)
    assert log.got == other.got


def test_a_logger_that_never_works_stops_nothing_and_is_told_of_twice():
    log = Log(failures=1000)
    with pytest.warns(UserWarning, match="run.history") as told:
        run = trained(log)
    assert len(told) == 2  # at the first failure, and at the end
    assert log.got == [] and [row.step for row in run.history] == [2, 4, 6]


def test_a_logger_that_fails_at_the_end_does_not_lose_the_run(tmp_path):
    with pytest.warns(UserWarning, match="failed"):
        run = trained(Log(failures=1, at=("end",)), folder=tmp_path)
    assert run.weights_sha256 and (tmp_path / "run.json").exists()


def test_a_run_that_fails_ends_its_loggers_without_a_guarantee():
    log = Log()

    def stop(model, step):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(log, on_evaluation=stop)
    assert log.got[-1] == ("end", None)
    assert [step for kind, step, *_ in log.got if kind == "figures"] == [2, 4]


def test_a_resumed_run_gives_all_figures_again(tmp_path):
    def stop(model, step):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(Log(), on_evaluation=stop, folder=tmp_path)
    log = Log()
    trained(log, folder=tmp_path, resume=True)
    assert [step for kind, step, *_ in log.got if kind == "figures"] == [2, 4, 6]
    assert log.got[0][0] == "begin" and log.got[-1][1] is not None


def test_a_refused_run_tells_its_loggers_nothing():
    log = Log()
    with pytest.raises(ValueError, match="loss"):
        trained(log, loss=lambda model, x, y: model(x).sum())
    assert log.got == []
