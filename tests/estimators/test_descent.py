# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import kstest, norm

from sfumato.accounting import price
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.descent import descend, planned
from sfumato.testing import seeded

ALPHA = 1e-6
ONCE = planned(epsilon=1.0, delta=1e-5, steps=1, sampling_rate=1.0, relation=Relation.ADD_REMOVE)
OPTIONS = {"num_classes": 2, "public_size": 100, "delta": 1e-5, "learning_rate": 1.0}
anything = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 1)), min_size=1, max_size=6)


def run(**options):
    return planned(
        **{
            "epsilon": 1.0, "delta": 1e-5, "steps": 5, "sampling_rate": 1.0, "relation": Relation.ADD_REMOVE,
            **options,
        }
    )  # fmt: skip


def learned(rows, labels, *, learning_rate=1.0):
    return descend(
        rows, labels, run=run(), num_classes=2, public_size=100, delta=1e-5, learning_rate=learning_rate,
        generator=seeded(0),
    )  # fmt: skip


@pytest.mark.parametrize("sampling_rate", [0.1, 1.0])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_the_run_costs_what_was_asked_for(sampling_rate, relation):
    found = price(run(sampling_rate=sampling_rate, relation=relation).event(), delta=1e-5, relation=relation)
    assert 0.99 < found.upper <= 1.0


def test_one_more_row_moves_the_first_step_by_at_most_its_clipped_gradient():
    rows, labels = np.eye(3)[np.arange(30) % 3], np.arange(30) % 2
    with_row = descend(rows, labels, run=ONCE, generator=seeded(0), **OPTIONS)
    without = descend(rows[1:], labels[1:], run=ONCE, generator=seeded(0), **OPTIONS)
    assert np.linalg.norm(with_row - without) <= 1 / 100 * (1 + 1e-4)
    assert np.linalg.norm(with_row - without) > 0.5 / 100


def clipped_gradients(rows, labels, weights):
    """The slow version: one row after another, at some weights [classes, features]."""
    total = np.zeros_like(weights)
    for row, label in zip(rows, labels, strict=True):
        one = np.outer(softmax(weights @ row) - np.eye(len(weights))[label], row)
        total += one / max(1.0, np.linalg.norm(one))
    return total


@given(anything)
@settings(max_examples=8, deadline=None)
def test_any_row_moves_a_step_with_the_same_noise_by_at_most_the_clip_norm(table):
    rows, labels = np.array(table)[:, :2] / np.sqrt(2), np.array(table)[:, 2].astype(np.int64)
    first = descend(rows, labels, run=ONCE, generator=seeded(1), **OPTIONS)
    other = descend(rows[1:], labels[1:], run=ONCE, generator=seeded(1), **OPTIONS)
    assert np.linalg.norm(first - other) <= 1 / 100 * (1 + 1e-4)


def test_a_step_is_that_of_a_loop_over_the_rows():
    rows = np.random.default_rng(0).normal(size=(40, 3))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    labels = np.arange(40) % 3
    options = OPTIONS | {"num_classes": 3}
    learned = descend(rows, labels, run=ONCE, generator=seeded(2), **options)
    noise = descend(np.zeros((40, 3)), labels, run=ONCE, generator=seeded(2), **options)
    expected = -clipped_gradients(rows, labels, np.zeros((3, 3))) / 100
    assert learned - noise == pytest.approx(expected, abs=1e-6)


def test_a_step_has_the_noise_of_its_plan():
    noise = descend(
        np.zeros((1, 3000)), np.zeros(1, dtype=np.int64), run=ONCE, generator=seeded(3), **OPTIONS
    )
    stddev = 3.7306 / 100  # of (1, 1e-5), over the public size
    assert kstest(noise.ravel(), norm(scale=stddev).cdf).pvalue > ALPHA
    assert kstest(noise.ravel(), norm(scale=0.85 * stddev).cdf).pvalue < ALPHA


def test_rows_of_zeros_change_nothing():
    rows, labels = np.eye(3)[np.arange(30) % 3], np.arange(30) % 2
    more = learned(np.vstack([rows, np.zeros((4, 3))]), np.append(labels, [1, 0, 1, 1]))
    assert more == pytest.approx(learned(rows, labels), abs=1e-6)
