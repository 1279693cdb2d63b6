# SPDX-License-Identifier: Apache-2.0
"""The same noise on two neighbors cancels: what is left is what the neighbor moved."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sfumato import mechanisms as m
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.errors import InvalidParameterError

ROWS = np.array([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])


def clipped_sum(rows, generator, scale=1.0):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    total = (rows / np.maximum(norms, 1.0)).sum(axis=0)
    return scale * total + m.gaussian((2,), stddev=3.0, generator=generator).numpy()


def test_the_same_noise_cancels_and_leaves_what_the_neighbor_moved():
    assert check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=1.0) == pytest.approx(1.0, abs=1e-5)
    moved = check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=1.4, order=1)
    assert moved == pytest.approx(1.4, abs=1e-5)
    moved = check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=0.8, order=np.inf)
    assert moved == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize(
    ("release", "says"),
    [
        (lambda rows, g: clipped_sum(rows, g, scale=1.01), "by 1.01, but the stated sensitivity is 1"),
        (lambda rows, g: clipped_sum(rows, g) * len(rows), "moves the output"),
        (lambda rows, g: m.gaussian((len(rows),), stddev=1.0, generator=g).numpy(), "different shapes"),
        (lambda rows, g: None if len(rows) < 3 else clipped_sum(rows, g), "different shapes"),
    ],
    ids=["scale", "size", "shape", "none"],
)
def test_a_sum_that_moves_too_far_is_found(release, says):
    with pytest.raises(LeakError, match=says):
        check_sensitivity(release, ROWS, ROWS[1:], sensitivity=1.0)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_a_large_output_hides_nothing_that_its_type_can_tell(offset):
    def large(value, generator):
        return offset + value + m.gaussian((1,), stddev=1.0, generator=generator, dtype=torch.float64).numpy()

    assert check_sensitivity(large, 0.0, 1.0, sensitivity=1.0) == pytest.approx(1.0, abs=1e-6)
    for moved in (1.001, 90.0):
        with pytest.raises(LeakError, match="moves the output"):
            check_sensitivity(large, 0.0, moved, sensitivity=1.0)


@dataclass(frozen=True)
class Part:
    numbers: Any


@pytest.mark.parametrize(
    "shape",
    [
        lambda found: found,
        lambda found: found.numpy(),
        lambda found: (1.0, found),
        lambda found: {"a": found},
        lambda found: Part(found),
        lambda found: found.numpy()[0],
    ],
    ids=["tensor", "array", "tuple", "dict", "dataclass", "scalar"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_type_too_coarse_to_judge_is_refused(shape, dtype):
    def coarse(value, generator):
        noise = m.gaussian((1,), stddev=1.0, generator=generator)
        return shape((value + noise).to(dtype))

    precise = torch.finfo(dtype).eps * 1e-2  # so that 1% of the sensitivity is less than what is rounded
    with pytest.raises(InvalidParameterError, match="Return float64"):
        check_sensitivity(coarse, 0.0, 0.0, sensitivity=precise)
    assert check_sensitivity(coarse, 0.0, 0.5, sensitivity=10.0) == pytest.approx(0.5, abs=0.01)


def test_an_infinite_output_is_found_on_either_side():
    def total(values, generator):
        return sum(values) + float(m.gaussian((1,), stddev=1.0, generator=generator)[0])

    for data, neighbor in (([0.0], [math.inf]), ([math.inf], [0.0]), ([math.inf], [math.inf])):
        with pytest.raises(LeakError, match="moves the output"):
            check_sensitivity(total, data, neighbor, sensitivity=1.0)


def test_a_sensitivity_that_is_none_is_refused():
    with pytest.raises(InvalidParameterError, match="sensitivity must be"):
        check_sensitivity(clipped_sum, ROWS, ROWS[1:], sensitivity=0.0)


def test_noise_from_elsewhere_is_not_judged():
    own = np.random.default_rng(0)
    with pytest.raises(InvalidParameterError, match="different answers on the same data"):
        check_sensitivity(lambda rows, generator: sum(rows) + own.normal(), [1.0], [1.0, 1.0], sensitivity=1)


def test_the_last_digits_of_a_computation_may_differ_from_run_to_run():
    own = np.random.default_rng(0)

    def release(rows, generator):
        return sum(rows) + 1e-6 * own.uniform()

    assert check_sensitivity(release, [1.0], [1.0, 1.0], sensitivity=1.001) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(InvalidParameterError, match="different answers on the same data"):
        check_sensitivity(release, [1.0], [1.0, 1.0], sensitivity=1e-6)


def test_each_run_gets_data_of_its_own():
    def release(rows, generator):  # hides what it did from the next run
        answer = sum(rows)
        rows[:] = [min(row, 1.0) for row in rows]
        return answer

    rows = [0.5, 9.0]
    with pytest.raises(LeakError, match="moves the output by 9"):
        check_sensitivity(release, rows, rows[:1], sensitivity=1)
    assert rows == [0.5, 9.0]
