# SPDX-License-Identifier: Apache-2.0
"""No estimator without a replay on neighbors: whoever adds one names the test of it here."""

import importlib.util
import inspect
from pathlib import Path

import pytest

from sfumato import estimators
from sfumato.estimators import PrivateEstimator

REPLAYED = {  # what one row moves, with the same noise: (file, test)
    **{
        name: [
            ("cell_noise", "test_one_row_of_anything_moves_each_part_within_its_reach"),
            ("cell_noise", "test_a_part_with_half_of_its_reach_is_noticed"),
        ]
        for name in (
            "DecisionTreeClassifier",
            "GaussianNB",
            "HistGradientBoostingClassifier",
            "KMeans",
            "RandomForestClassifier",
        )
    },
    "AdaSSP": [("linear", "test_one_row_moves_all_sums_of_ada_ssp_within_one_gaussian")],
    "LogisticRegression": [
        (
            "objective_perturbation",
            "test_neighbors_move_the_linear_term_by_no_more_than_the_noise_is_made_for",
        ),
        (
            "output_perturbation",
            "test_neighbors_move_a_release_with_the_same_noise_by_at_most_the_sensitivity",
        ),
        ("descent", "test_any_row_moves_a_step_with_the_same_noise_by_at_most_the_clip_norm"),
    ],
    "NoisyStats": [("linear", "test_one_row_moves_noisy_stats_within_its_sensitivity")],
    "PCA": [("preprocessing", "test_the_same_noise_moves_neighbors_apart_by_what_their_sums_differ")],
    "Search": [("search", "test_neighbors_reach_every_noise_of_a_search_within_its_sensitivity")],
    "StandardScaler": [
        ("preprocessing", "test_the_same_noise_moves_neighbors_apart_by_what_their_sums_differ")
    ],
    "TheilSen": [("linear", "test_one_row_moves_the_medians_of_theil_sen_within_their_sensitivity")],
    "TukeyEM": [("linear", "test_one_row_moves_the_margin_of_tukey_em_by_at_most_one")],
}
FREE = {  # classes that read a row at a time, and release nothing
    "Binarizer": [("row_steps", "test_a_row_depends_on_no_other_and_never_warns")],
    "Normalizer": [("row_steps", "test_a_row_depends_on_no_other_and_never_warns")],
}
NAMED = REPLAYED | FREE


def test_every_estimator_is_named_and_those_that_pay_are_replayed():
    classes = {name for name in estimators.__all__ if inspect.isclass(getattr(estimators, name))}
    assert set(NAMED) == classes - {"PrivateEstimator", "Advice"}
    assert {name for name in NAMED if issubclass(getattr(estimators, name), PrivateEstimator)} == set(
        REPLAYED
    )


def test_every_method_of_logistic_regression_is_replayed():
    assert len(REPLAYED["LogisticRegression"]) == len(estimators.logistic.METHODS)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_what_is_named_is_a_test(name):
    for file, test in NAMED[name]:
        path = Path(__file__).parent / f"test_{file}.py"
        spec = importlib.util.spec_from_file_location(f"named_{file}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert callable(getattr(module, test))
