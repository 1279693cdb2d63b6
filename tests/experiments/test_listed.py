# SPDX-License-Identifier: Apache-2.0
"""Every table and figure of the reports has an experiment, and each one runs."""

import pytest

from sfumato.experiments import Scale, experiments


@pytest.mark.parametrize("name", list(experiments()))
def test_an_experiment_has_cases_at_both_scales_each_once(name):
    for scale in (Scale(quick=True), Scale()):
        cases = experiments()[name].experiment.cases(scale)
        keys = [tuple(sorted(case.items())) for case in cases]
        assert keys and len(set(keys)) == len(keys)
