# SPDX-License-Identifier: Apache-2.0
from sfumato.experiments import by_setting, shown


def test_values_are_grouped_by_setting_in_the_order_they_come():
    rows = [{"noise": n, "way": "a", "seed": s, "right": n + s} for s in (0, 1) for n in (5, 2)]
    assert by_setting(rows, "noise", value="right") == {5: [5, 6], 2: [2, 3]}
    assert by_setting(rows, "noise", "way", value="right") == {(5, "a"): [5, 6], (2, "a"): [2, 3]}


def test_a_value_that_could_not_be_measured_is_left_out():
    assert by_setting([{"x": 1, "y": None}, {"x": 1, "y": 2.0}], "x", value="y") == {1: [2.0]}


def test_a_cell_shows_the_mean_and_its_error_if_there_are_several_values():
    assert shown([0.9123], percent=True) == "91.23"
    assert shown([1.0, 3.0], digits=1) == "2.0 ± 12.7"  # t of one degree of freedom: 12.7
