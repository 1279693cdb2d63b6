# SPDX-License-Identifier: Apache-2.0
"""Golden values: what each question is charged as, and its answer with one seed. None may change unseen."""

import importlib
import inspect
import math
import pkgutil
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

from sfumato import statistics
from sfumato.accounting.events import DpEvent
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import STEPS, column_of, rows_of
from sfumato.statistics.groups.key_discovery import KeyDiscovery
from sfumato.statistics.matrices.covariance import Correlation, Covariance
from sfumato.statistics.matrices.principal_components import PrincipalComponents
from sfumato.statistics.query import Question
from sfumato.statistics.questions.clipped_values import ClippedShare
from sfumato.statistics.questions.counts import Count, Sum
from sfumato.statistics.questions.histograms import BinCounts, CategoryCounts
from sfumato.statistics.questions.many_quantiles import Quantiles
from sfumato.statistics.questions.means import Mean
from sfumato.statistics.questions.quantiles import Quantile
from sfumato.statistics.questions.stable_histograms import StableCounts
from sfumato.statistics.questions.thresholds import FirstAbove
from sfumato.statistics.questions.top_k import TopK
from sfumato.statistics.questions.variances import StandardDeviation, Variance
from sfumato.statistics.release import Covers, Interval
from sfumato.statistics.sources.tables import private_table
from sfumato.statistics.unbounded.bounds import AutomaticBounds
from sfumato.statistics.unbounded.coinpress_covariance import CoinPressCovariance
from sfumato.statistics.unbounded.coinpress_mean import CoinPressMean
from sfumato.statistics.unbounded.coinpress_means import CoinPressMeans
from sfumato.statistics.unbounded.karwa_vadhan import KarwaVadhanMean
from sfumato.testing import seeded

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

VALUES = [i / 400 for i in range(400)]
NAMES = ["tea"] * 250 + ["coffee"] * 150
PAIRS = [[i / 400, (i * 7 % 400) / 400] for i in range(400)]
UNIT, BOX = (0.0, 1.0), {"columns": ("a", "b"), "bounds": ((0.0, 1.0), (0.0, 1.0))}
RHO = {"rho": 0.5, "delta": 1e-6}
LOOSE = {"bounds": ((-9.0, 9.0),) * 2, "stddev": (0.3, 0.3), **RHO}
TABLE = private_table(pd.DataFrame({"drink": NAMES, "x": VALUES}))
GROUPS = TABLE.group_by("drink", keys=["tea", "coffee"])
VISITS = private_table(pd.DataFrame({"who": [i // 2 for i in range(400)]}), privacy_unit="who")
LEFT_OUT = VISITS.left_out_share(epsilon=0.5, most_rows=4)

# class: question, its data, its event, its answer with seed 0 (in nine digits)
GOLDEN = {
    "AutomaticBounds": (
        AutomaticBounds(epsilon=0.5),
        column_of(VALUES),
        "DiscreteLaplace(0.5, 1)",
        [0.0625, 1.0],
    ),
    "BinCounts": (
        BinCounts(edges=(0, 0.5, 1), epsilon=0.5),
        column_of(VALUES),
        "DiscreteLaplace(0.5, 1)",
        {"counts": [201, 205], "edges": [0.0, 0.5, 1.0], "categories": None},
    ),
    "CategoryCounts": (
        CategoryCounts(categories=("tea", "milk"), epsilon=0.5),
        categories_of(NAMES),
        "DiscreteLaplace(0.5, 1)",
        {"counts": [251, 5], "edges": None, "categories": ["tea", "milk"]},
    ),
    "ClippedShare": (
        ClippedShare(bounds=(0, 0.5), epsilon=0.5),
        column_of(VALUES),
        "DiscreteLaplace(0.5, 1)",
        0.502463054,
    ),
    "CoinPressCovariance": (
        CoinPressCovariance(**LOOSE),
        rows_of(PAIRS),
        (
            "Composed([SelfComposed(Gaussian(8.07572853), 3), Gaussian(2.69190951), Gaussian(7.905694"
            "15), SelfComposed(Gaussian(3.87298335), 3), Gaussian(1.29099445)])"
        ),
        [[0.07835151, 0.00970013827], [0.00970013827, 0.087063855]],
    ),
    "CoinPressMean": (
        CoinPressMean(terms=CoinPressMeans(bounds=((-9.0, 9.0),), stddev=(0.3,), **RHO)),
        column_of(VALUES),
        ("Composed([SelfComposed(Gaussian(3.61157559), 3), Gaussian(1.20385853), Gaussian(3.53553391)])"),
        0.495376919,
    ),
    "CoinPressMeans": (
        CoinPressMeans(**LOOSE),
        rows_of(PAIRS),
        ("Composed([SelfComposed(Gaussian(3.61157559), 3), Gaussian(1.20385853), Gaussian(3.53553391)])"),
        [0.495076378, 0.501916145],
    ),
    "Correlation": (
        Correlation(**BOX, **RHO),
        rows_of(PAIRS),
        "Gaussian(1)",
        [[1.0, 0.164386196], [0.164386196, 1.0]],
    ),
    "Count": (Count(epsilon=0.5), column_of(VALUES), "DiscreteLaplace(0.5, 1)", 401),
    "Covariance": (
        Covariance(**BOX, **RHO),
        rows_of(PAIRS),
        "Gaussian(1)",
        [[0.085072075, 0.0138303659], [0.0138303659, 0.0832050375]],
    ),
    "FirstAbove": (
        FirstAbove(ranges=((0, 0.1), (0, 0.9)), threshold=200.0, counted=True, epsilon=0.5),
        column_of(VALUES),
        "SparseVector(0.166666667, 0.166666667, 0.166666667)",
        [{"lower": 0.0, "upper": 0.9, "count": 370.175982}],
    ),
    "GroupCount": (
        GROUPS.count(epsilon=0.5).question,
        GROUPS,
        "DiscreteLaplace(0.5, 1)",
        {"tea": 251.0, "coffee": 155.0},
    ),
    "GroupMean": (
        GROUPS.mean("x", bounds=UNIT, epsilon=0.5).question,
        GROUPS,
        "DiscreteLaplace(3.17891439e-07, 1572864)",
        {"tea": 0.322970471, "coffee": 0.818485399},
    ),
    "GroupSum": (
        GROUPS.sum("x", bounds=UNIT, epsilon=0.5).question,
        GROUPS,
        "DiscreteLaplace(9.53674316e-07, 524288)",
        {"tea": 78.6423607, "coffee": 126.478962},
    ),
    "KarwaVadhanMean": (
        KarwaVadhanMean(bounds=(-9.0, 9.0), stddev=0.3, **RHO),
        column_of(VALUES),
        "Composed([Gaussian(2.02030509), Gaussian(1.16642369), Gaussian(7.07106781)])",
        0.501189851,
    ),
    "KeyDiscovery": (
        KeyDiscovery(columns=("drink",), epsilon=0.5, delta=1e-6),
        TABLE.keys("drink", epsilon=0.5, delta=1e-6).data,
        "Approximate(0.5, 9.12729479e-07)",
        ["coffee", "tea"],
    ),
    "LeftOutShare": (
        LEFT_OUT.question,
        LEFT_OUT.data,
        "DiscreteLaplace(0.125, 4)",
        0.478835979,
    ),
    "Mean": (
        Mean(bounds=UNIT, epsilon=0.5),
        column_of(VALUES),
        "DiscreteLaplace(2.38418579e-07, 2097152)",
        0.503647651,
    ),
    "PrincipalComponents": (
        PrincipalComponents(components=1, **BOX, **RHO),
        rows_of(PAIRS),
        "Gaussian(1)",
        {
            "mean": [0.496884301, 0.500377635],
            "components": [[0.730528756, 0.682881934]],
            "explained_variance": [0.0980003916],
            "explained_variance_ratio": [0.582375049],
            "noise_level": 0.00448882418,
        },
    ),
    "Quantile": (
        Quantile(q=0.5, bounds=UNIT, epsilon=0.5),
        column_of(VALUES),
        "Exponential(0.5)",
        0.497272729,
    ),
    "Quantiles": (
        Quantiles(qs=(0.25, 0.75), bounds=UNIT, epsilon=0.5),
        column_of(VALUES),
        "SelfComposed(Exponential(0.25), 2)",
        [0.259757122, 0.744772729],
    ),
    "RowCount": (TABLE.count(epsilon=0.5).question, TABLE.owned, "DiscreteLaplace(0.5, 1)", 401.0),
    "StableCounts": (
        StableCounts(epsilon=0.5, delta=1e-6),
        categories_of(NAMES),
        "Composed([DiscreteLaplace(0.5, 1), Approximate(0, 1e-06)])",
        {"counts": [255, 151], "edges": None, "categories": ["tea", "coffee"]},
    ),
    "StandardDeviation": (
        StandardDeviation(bounds=UNIT, epsilon=0.5),
        column_of(VALUES),
        "DiscreteLaplace(1.1920929e-07, 4194304)",
        0.293778244,
    ),
    "Sum": (
        Sum(bounds=UNIT, epsilon=0.5),
        column_of(VALUES),
        "DiscreteLaplace(4.76837158e-07, 1048576)",
        198.665775,
    ),
    "TopK": (
        TopK(k=1, categories=("coffee", "tea"), epsilon=0.5),
        categories_of(NAMES),
        "Pure(0.5)",
        ["tea"],
    ),
    "Variance": (
        Variance(bounds=UNIT, epsilon=0.5, delta=1e-6),
        column_of(VALUES),
        "Gaussian(8.05761848)",
        0.0748262406,
    ),
}


def written(value: object) -> object:
    """An answer as plain numbers and names."""
    if isinstance(value, np.ndarray):
        return [written(part) for part in value.tolist()]
    if isinstance(value, list | tuple):
        return [written(part) for part in value]
    if isinstance(value, dict):
        return {name: written(part) for name, part in value.items()}
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return {name: written(getattr(value, name)) for name in fields}
    return float(f"{value:.9g}") if isinstance(value, float) else value


def charged(event: DpEvent) -> str:
    """An event in short, its numbers in nine digits."""
    short = re.sub(r"DpEvent|\w+=", "", repr(event))
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.9g}", short)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_question_is_charged_and_answered_as_it_always_was(name):
    question, data, event, value = GOLDEN[name]
    assert type(question).__name__ == name
    assert charged(question.event()) == event
    assert written(question.answer(data, generator=seeded(0)).value) == value


# --- the same noise, from the formulas of the papers --------------------------------------------------------


def analytic_delta(stddev: float, epsilon: float, sensitivity: float) -> float:
    """Balle and Wang 2018, arXiv:1805.06530, theorem 5: the delta of Gaussian noise at an epsilon."""
    a, b = sensitivity / (2 * stddev), epsilon * stddev / sensitivity
    return float(ndtr(a - b) - math.exp(epsilon) * ndtr(-a - b))


@pytest.mark.parametrize("bound", [1, 3])
def test_laplace_noise_is_as_large_as_the_reach_over_epsilon(bound):
    # Ghosh, Roughgarden, Sundararajan 2009: whole noise of exp(-epsilon / reach) for each step.
    given = {"epsilon": 0.5, "contribution_bound": bound}
    reaches = {
        Count(**given): bound,
        BinCounts(edges=(0, 1, 2), **given): bound,
        Sum(bounds=(-1, 3), **given): None,
        Mean(bounds=UNIT, **given): bound * 2 * STEPS,  # shares of a row are whole parts of 2^21
        Variance(bounds=UNIT, **given): bound * 4 * STEPS,
    }
    for question, reach in reaches.items():
        event = question.event()
        assert event.noise_parameter * event.sensitivity == pytest.approx(0.5)
        assert reach is None or event.sensitivity == reach


def test_gaussian_noise_is_the_least_that_the_exact_curve_allows():
    for make, parts in ((Mean, 2), (Variance, 4)):
        stddev = make(bounds=UNIT, epsilon=0.5, delta=1e-6).event().noise_multiplier * parts * STEPS
        assert analytic_delta(stddev, 0.5, parts * STEPS) == pytest.approx(1e-6, rel=1e-3)


def test_concentrated_noise_has_the_rho_that_was_asked_for():
    # Bun and Steinke 2016: noise of stddev s on what a unit moves by d is (d^2 / 2 s^2)-zCDP.
    for question in (Covariance(**BOX, **RHO), Correlation(**BOX, **RHO)):
        assert 1 / (2 * question.event().noise_multiplier ** 2) == pytest.approx(0.5)


# --- intervals --------------------------------------------------------------------------------------------

WITHOUT = {
    "AutomaticBounds", "CoinPressCovariance", "KeyDiscovery", "PrincipalComponents", "Quantile", "Quantiles",
    "TopK",
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_every_interval_says_what_it_covers(name):
    question, data, _, _ = GOLDEN[name]
    found = question.answer(data, generator=seeded(0)).interval
    intervals = [found] if isinstance(found, Interval) else list(found or ())
    expected = set() if name in WITHOUT else {(Covers.NOISE,)}
    assert {interval.covers for interval in intervals} == expected


# --- nothing is left out ----------------------------------------------------------------------------------

MEANS = "questions/test_bounded_terms.py::test_replayed_on_a_neighbor_only_the_noise_comes_out"
GROUPED = "groups/test_group_statistics.py::test_replayed_without_a_unit_only_noise_leaves"
REPLAYED = {
    "AutomaticBounds": "unbounded/test_bounds.py::test_replayed_on_a_neighbor_only_the_noise_comes_out",
    "BinCounts": "questions/test_histograms.py::test_replayed_on_a_neighbor_bins_let_out_their_noise_alone",
    "CategoryCounts": (
        "questions/test_histograms.py::test_replayed_on_a_neighbor_categories_let_out_their_noise_alone"
    ),
    "ClippedShare": MEANS,
    "CoinPressCovariance": (
        "unbounded/test_coinpress_covariance.py::test_the_covariance_is_replayed_on_neighbors"
    ),
    "CoinPressMean": "unbounded/test_coinpress_mean.py::test_the_mean_of_a_column_is_replayed_on_neighbors",
    "CoinPressMeans": "unbounded/test_coinpress_means.py::test_the_mean_of_rows_is_replayed_on_neighbors",
    "Correlation": "matrices/test_noisy_products.py::test_the_matrix_is_replayed_on_neighbors",
    "Count": "questions/test_counts.py::test_replayed_on_a_neighbor_a_count_lets_out_its_noise_alone",
    "Covariance": "matrices/test_noisy_products.py::test_the_matrix_is_replayed_on_neighbors",
    "FirstAbove": "questions/test_thresholds.py::test_replayed_on_a_neighbor_only_the_run_comes_out",
    "GroupCount": GROUPED,
    "GroupMean": GROUPED,
    "GroupSum": GROUPED,
    "KarwaVadhanMean": "unbounded/test_karwa_vadhan.py::test_the_mean_is_replayed_on_neighbors",
    "KeyDiscovery": (
        "groups/test_key_discovery.py::test_with_the_same_noise_a_unit_changes_only_keys_of_its_own"
    ),
    "LeftOutShare": "questions/test_left_out_rows.py::test_replayed_without_a_unit_only_noise_leaves",
    "Mean": MEANS,
    "PrincipalComponents": "matrices/test_principal_components.py::test_components_are_replayed_on_neighbors",
    "Quantile": "questions/test_quantiles.py::test_a_quantile_is_replayed_on_neighbors",
    "Quantiles": "questions/test_many_quantiles.py::test_all_draws_of_halving_together_stay_within_epsilon",
    "RowCount": (
        "sources/test_private_tables.py::test_the_count_replayed_without_a_unit_lets_only_noise_leave"
    ),
    "StableCounts": (
        "questions/test_stable_histograms.py::"
        "test_replayed_on_neighbors_with_the_same_categories_stable_counts_let_out_noise_alone"
    ),
    "StandardDeviation": MEANS,
    "Sum": "questions/test_counts.py::test_replayed_on_a_neighbor_a_sum_lets_out_its_noise_alone",
    "TopK": "questions/test_top_k.py::test_replayed_on_a_neighbor_only_the_selection_comes_out",
    "Variance": MEANS,
}


def questions() -> set[str]:
    """The names of all classes of the package that can be charged and answered."""
    found = pkgutil.walk_packages(statistics.__path__, prefix=f"{statistics.__name__}.")
    modules = [importlib.import_module(module.name) for module in found]
    classes = [kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)]
    ours = [kind for kind in classes if kind.__module__.startswith(statistics.__name__)]
    return {k.__name__ for k in ours if hasattr(k, "event") and hasattr(k, "answer")} - {Question.__name__}


def test_every_question_is_replayed_on_neighbors_and_has_a_golden_value():
    assert questions() == set(REPLAYED) == set(GOLDEN)
    for name, place in REPLAYED.items():
        file, test = place.split("::")
        text = (Path(__file__).parent / file).read_text()
        assert f"def {test}(" in text, f"{name} is not replayed"
