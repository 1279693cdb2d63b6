# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale
from sfumato.experiments.r5 import runs, tasks

QUICK = Scale(quick=True, device="cpu")


@pytest.fixture(scope="module")
def task():
    return tasks.images("mnist", QUICK)


def test_a_private_run_is_repeated_by_its_seed_and_states_its_guarantee(task):
    def run(seed):
        return runs.private_run(
            lambda: tasks.logistic(task),
            task,
            seed=seed,
            scale=QUICK,
            noise_multiplier=2.0,
            delta=1e-5,
            steps=3,
            expected_batch_size=50,
        )

    first, again, other = (dict(runs.summary(run(seed))) for seed in (1, 1, 2))
    assert first == again and first != other
    assert first["steps"] == 3 and first["noise_multiplier"] == 2.0 and first["epsilon"] > 0


def test_a_plain_run_learns_and_is_watched(task):
    found = runs.plain_run(
        lambda: tasks.logistic(task),
        task,
        seed=1,
        scale=QUICK,
        steps=20,
        batch_size=100,
        learning_rate=0.2,
        evaluate_every=10,
    )
    assert [point["step"] for point in found["history"]] == [10, 20]
    assert found["accuracy"] > 0.5 and found["history"][-1]["accuracy"] == found["accuracy"]


def test_means_are_told_apart_only_beyond_both_errors():
    assert runs.clearly_above([0.9, 0.91, 0.92], [0.8, 0.81, 0.82])
    assert not runs.clearly_above([0.9, 0.7, 0.8], [0.8, 0.6, 0.78])
    assert not runs.clearly_above([0.8, 0.81], [0.9, 0.91])
