# SPDX-License-Identifier: Apache-2.0
"""The decision with figures made up: no clock is read here."""

import pytest

from sfumato.training.fast.choice import Choice, Facts, Unusable, Way, ways

GPU = {"device": "cuda"}


class Trial:
    """Says what it is told to, and notes what it was asked."""

    def __init__(self, *, eager=0.030, graphs=0.010, compiled=0.020, both=0.005, operations=100, draws=False):
        self.times = {Way.EAGER: eager, Way.GRAPHS: graphs, Way.COMPILED: compiled, Way.BOTH: both}
        self.operations, self.draws, self.refusal = lambda: operations, lambda: draws, None
        self.asked, self.kept = [], []

    def seconds(self, way):
        self.asked.append(way)
        if isinstance(self.times[way], str):
            raise Unusable(self.times[way])
        return self.times[way]

    def keep(self, way):
        self.kept.append(way)


def chosen(trial, *, remaining, taken=3, **facts):
    choice = Choice(Facts(**{**GPU, "planned_steps": remaining, **facts}))
    assert choice.due(taken)
    choice.choose(trial, taken=taken, remaining=remaining)
    return choice


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, [Way.GRAPHS, Way.BOTH]),
        ({"compile": False}, [Way.GRAPHS]),
        ({"cuda_graphs": False}, [Way.COMPILED]),
        ({"cuda_graphs": False, "compile": False}, []),
        ({"no_compiler": "no Triton"}, [Way.GRAPHS]),
        ({"refusal": "for a reason"}, []),
        ({"device": "cpu"}, []),
        ({"device": "mps"}, []),
    ],
)
def test_what_is_public_decides_what_is_tried(facts, found):
    tried, why = ways(Facts(**{**GPU, **facts}))
    assert list(tried) == found and bool(why) == (found != [Way.GRAPHS, Way.BOTH] and found != [Way.COMPILED])


def test_a_cpu_is_left_as_it_is_without_a_trial():
    choice = Choice(Facts(device="cpu", planned_steps=10**9))
    assert not any(choice.due(n) for n in (1, 10, 10**9)) and choice.way is Way.EAGER and not choice.open


def test_graphs_are_tried_first_and_a_run_that_is_too_short_is_not_compiled():
    trial = Trial()  # 100 operations: 9 seconds, and 2.5 ms a step to gain
    choice = chosen(trial, remaining=3599)
    assert trial.asked == [Way.EAGER, Way.GRAPHS] and trial.kept == [Way.GRAPHS]
    assert choice.line == (
        "Passes run as CUDA graphs: 3.0 times faster than eagerly, on synthetic rows (not compiled, because "
        "about 3600 steps would have to follow to repay it)."
    )
    assert not choice.due(10**9)


def test_a_run_that_repays_it_is_compiled():
    trial = Trial()
    choice = chosen(trial, remaining=3600)
    assert trial.asked == [Way.EAGER, Way.GRAPHS, Way.BOTH] and trial.kept == [Way.BOTH]
    assert choice.line == (
        "Passes run compiled, as CUDA graphs: 6.0 times faster than eagerly, on synthetic rows."
    )


@pytest.mark.parametrize(("both", "way"), [(0.0094, Way.BOTH), (0.0096, Way.GRAPHS), (0.04, Way.GRAPHS)])
def test_the_fastest_stays_if_it_is_faster_by_more_than_a_little(both, way):
    trial = Trial(both=both)
    assert chosen(trial, remaining=10**6).way is way and trial.kept == [way]


def test_nothing_is_kept_if_eager_passes_are_the_fastest():
    trial = Trial(graphs=0.031, both=0.05)
    choice = chosen(trial, remaining=10**6)
    assert trial.kept == [] and choice.way is Way.EAGER and not choice.due(10**9)
    assert choice.line == "Passes run eagerly: no other way is faster on synthetic rows."


def test_a_short_run_tries_nothing():
    trial = Trial()
    choice = chosen(trial, remaining=49)
    assert trial.asked == [] and "too short" in choice.line
    assert chosen(Trial(), remaining=50).way is Way.GRAPHS


def test_a_way_that_cannot_be_used_is_left_out_and_named():
    choice = chosen(Trial(both="it was compiled to something that does not agree"), remaining=10**6)
    assert choice.way is Way.GRAPHS
    assert choice.line.endswith(
        "(compiled, as CUDA graphs: it was compiled to something that does not agree)."
    )


def test_what_could_not_be_recorded_is_compiled_without_graphs():
    trial = Trial(graphs="the model reads a value")
    choice = chosen(trial, remaining=10**6)
    assert trial.asked == [Way.EAGER, Way.GRAPHS, Way.COMPILED] and choice.way is Way.COMPILED
    assert "as CUDA graphs: the model reads a value" in choice.line


def test_all_ways_may_fail():
    choice = chosen(Trial(graphs="a", compiled="b"), remaining=10**6)
    assert choice.line == "Passes run eagerly: as CUDA graphs: a; compiled: b."
    assert chosen(Trial(eager="c"), remaining=10**6).line == "Passes run eagerly: eagerly: c."


def test_a_model_that_draws_is_not_compiled():
    trial = Trial(draws=True)
    choice = chosen(trial, remaining=10**6)
    assert trial.asked == [Way.EAGER, Way.GRAPHS] and choice.way is Way.GRAPHS
    assert "draws random numbers" in choice.line


def test_what_the_steps_so_far_have_shown_may_refuse_it():
    trial = Trial()
    trial.refusal = "rows have another shape at most steps"
    choice = chosen(trial, remaining=10**6)
    assert trial.asked == [] and choice.line == "Passes run eagerly: rows have another shape at most steps."


def test_a_run_of_unknown_length_is_compiled_once_it_would_have_been_repaid():
    trial, choice = Trial(), Choice(Facts(**GPU))
    assert not choice.due(9)
    choice.choose(trial, taken=10, remaining=None)
    assert choice.way is Way.GRAPHS and "not compiled before step 3600" in choice.line
    assert not choice.due(3599) and choice.due(3600)
    choice.choose(trial, taken=3600, remaining=None)
    assert choice.way is Way.BOTH and trial.kept == [Way.GRAPHS, Way.BOTH]
    assert "not compiled" not in choice.line and not choice.due(10**9)
    assert trial.asked == [Way.EAGER, Way.GRAPHS, Way.BOTH]  # nothing is measured twice


def test_a_run_of_unknown_length_is_not_compiled_before_a_stated_step():
    trial, choice = Trial(operations=1), Choice(Facts(**GPU))
    choice.choose(trial, taken=10, remaining=None)
    assert "not compiled before step 1000" in choice.line and choice.due(1000)


def test_a_choice_can_be_given_up():
    choice = chosen(Trial(), remaining=10**6)
    choice.stay("rows have had too many shapes")
    assert choice.line == "Passes run eagerly: rows have had too many shapes." and not choice.open


def test_before_a_trial_the_line_says_that_there_will_be_one():
    assert "after the first steps" in Choice(Facts(**GPU)).line
