# SPDX-License-Identifier: Apache-2.0
from sfumato.accounting import Relation
from sfumato.experiments import Scale
from sfumato.experiments.r1.altconv import EXPERIMENT, as_written

QUICK = Scale(quick=True, device="cpu")


def test_a_run_has_the_reports_noise_and_is_priced_for_a_replaced_label():
    run = as_written({"noise": 7.0, "seed": 11}, QUICK, steps=2)
    assert run.guarantee.relation is Relation.REPLACE_LABEL and run.training is not None
    assert run.training.mechanism.noise_multiplier(0) == 7.0 and run.training.mechanism.steps == 2


def test_an_epsilon_ends_a_run_before_it_is_exceeded():
    run = as_written({"noise": 0.7, "seed": 11}, QUICK, steps=4, epsilon=1.0)
    assert run.training is not None and run.training.mechanism.steps < 4 and run.guarantee.epsilon <= 1.0


def test_the_published_code_is_measured_too():
    case = next(case for case in EXPERIMENT.cases(QUICK) if case["way"] == "published code")
    found = EXPERIMENT.measure(case, QUICK)
    assert 0 <= found["accuracy"] <= 1 and found["epsilon"] > 1000
