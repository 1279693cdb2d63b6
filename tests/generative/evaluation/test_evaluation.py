# SPDX-License-Identifier: Apache-2.0
"""The whole evaluation: of images and tables, of broken generators, as text and as JSON."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from sfumato.errors import InvalidParameterError
from sfumato.generative import UnknownCategory
from sfumato.generative.evaluation.evaluation import EvaluationSettings, evaluate
from sfumato.generative.evaluation.memorization import TrainingRows, copy_test, near_copies
from sfumato.generative.tables.domain import Category, Domain, Number
from sfumato.testing import seeded
from tests.test_extras import ran_without

FAST = EvaluationSettings(
    classifiers={"neighbors": [KNeighborsClassifier(3)], "logistic": [LogisticRegression(max_iter=50)]},
    map_rows=40,
    t_sne=False,
)
COLUMNS = {
    "age": Number(lower=0, upper=100, bins=(0, 30, 60, 100)),
    "sex": Category(values=("f", "m")),
    "sick": Category(values=(False, True)),
}

WITHOUT_TORCH = """
import numpy as np
from sklearn.linear_model import LogisticRegression
from sfumato.errors import MissingDependencyError
from sfumato.generative import Category, Number
from sfumato.generative.evaluation import EvaluationSettings, evaluate, image_network

x = np.linspace(0, 1, 60)
table = {"x": x, "y": np.where(x > 0.5, "high", "low")}
columns = {"x": Number(lower=0, upper=1, bins=2), "y": Category(values=("low", "high"))}
how = EvaluationSettings(classifiers={"logistic": [LogisticRegression()]}, map_rows=0)
assert evaluate(table, table, columns=columns, target="y", settings=how).scores[0].auroc == 1.0
try:
    image_network(shape=(1, 8, 8), classes=2)
except MissingDependencyError as error:
    assert ".[torch]" in str(error)
else:
    raise AssertionError
"""


def pair(rows):
    return rows.features, rows.labels


def people(seed, rows=300):
    rng = np.random.default_rng(seed)
    ages = 100 * rng.random(rows)
    return pd.DataFrame({"age": ages, "sex": rng.choice(["f", "m"], rows), "sick": ages > 50})


@pytest.fixture(scope="module")
def found(thirds):
    test = copy_test(thirds[0].features, thirds[1].features)
    paid = near_copies(TrainingRows(rows=thirds[2].features), test, epsilon=1.0, generator=seeded(0))
    return evaluate(pair(thirds[0]), pair(thirds[1]), classes=10, settings=FAST, memorization=paid)


def test_images_are_measured_in_every_way(found):
    assert (found.rows, found.rows_left_out, found.holdout_rows) == (599, 0, 599)
    assert not found.collapse.collapsed and min(score.accuracy for score in found.scores) > 0.9
    assert len(found.fidelity) == 10 and found.frechet.distance < 2 * found.frechet.floor
    assert found.marginals is None and [each.method for each in found.maps] == ["principal components"]
    assert sorted(found.samples) == list(range(10)) and found.samples[3].shape == (8, 1, 8, 8)
    assert found.distances.copies_share < 0.05 and not found.memorization.memorized


def test_the_text_has_every_part(found):
    text = str(found)
    for part in (
        "599 public rows",
        "No sign of collapse",
        "neighbors",
        "AUROC",
        "coverage",
        "Inception",
        "no sign of",
    ):
        assert part in text
    assert len(found.table().splitlines()) == 3 + 1 + 1 + 10


def test_json_holds_every_figure_and_can_be_written(found, tmp_path):
    read = json.loads(found.to_json(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == read
    assert (
        read["scores"][0]["accuracy"] == found.scores[0].accuracy and len(read["maps"][0]["synthetic"]) == 40
    )
    assert read["memorization"]["epsilon"] == 1.0 and read["memorization"]["memorized"] is False
    assert read["memorization"]["near_and_far"] == list(found.memorization.release.value)
    assert "samples" not in read


def test_a_table_has_marginals_and_scores():
    found = evaluate(people(0), people(1), columns=COLUMNS, target="sick", settings=FAST)
    assert min(score.auroc for score in found.scores) > 0.95 and found.marginals.worst_two_way < 0.15
    assert found.samples == {} and not found.collapse.collapsed
    assert min(score.real_auroc for score in found.scores) > 0.95 and "(real rows" in found.table()
    read = json.loads(found.to_json())
    assert read["marginals"]["two_way"][0]["columns"] == ["age", "sex"]
    assert read["marginals"]["worst_two_way"] == found.marginals.worst_two_way


def test_a_table_without_a_target_has_no_scores():
    found = evaluate(people(0), people(1), columns=COLUMNS, settings=FAST)
    assert found.scores == () and found.frechet.distance < 0.1 and "Total-variation" in str(found)


def test_a_column_that_is_cut_off_is_a_finding():
    draws = np.random.default_rng(0)
    columns = {"age": Number(lower=0, upper=64)}
    holdout = {"age": draws.uniform(0, 90, 200)}
    synthetic = {"age": np.minimum(draws.uniform(0, 90, 200), 64)}
    quick = EvaluationSettings(t_sne=False, map_rows=0)
    found = evaluate(synthetic, holdout, columns=columns, settings=quick)
    assert found.collapse.findings[-1].sign.value == "column cut off" and "'age' is cut off" in str(found)
    assert found.to_dict()["collapse"][-1]["sign"] == "column cut off"
    wide = evaluate(synthetic, holdout, columns={"age": Number(lower=0, upper=90)}, settings=quick)
    assert "cut off" not in str(wide)


def test_a_table_without_a_holdout_has_shares_and_says_what_is_missing():
    found = evaluate(people(0), columns=Domain(COLUMNS), target="sick", settings=FAST)
    assert found.holdout_rows == 0 and not found.collapse.collapsed
    assert (found.scores, found.marginals, found.frechet, found.maps) == ((), None, None, ())
    assert found.shares["age"].values == ("0 to 30", "30 to 60", "60 to 100", "missing or other")
    assert sum(found.shares["sick"].synthetic) == pytest.approx(1) and found.shares["sick"].holdout is None
    assert "A holdout of them would add" in str(found) and "public rows." not in str(found).splitlines()[0]
    assert json.loads(found.to_json())["shares"]["sex"]["synthetic"][2] == 0.0


def test_images_without_a_holdout_are_looked_at_for_collapse(thirds):
    found = evaluate(pair(thirds[0]), classes=10, settings=FAST)
    assert found.holdout_rows == 0 and not found.collapse.collapsed and sorted(found.samples) == [*range(10)]


def test_a_generator_of_nan_is_reported_and_no_error(thirds):
    images = np.full_like(thirds[0].features, np.nan)
    found = evaluate((images, thirds[0].labels), pair(thirds[1]), classes=10, settings=FAST)
    assert found.collapse.collapsed and found.rows_left_out == 599 and found.scores == ()
    assert (
        "COLLAPSE: 599 of 599 synthetic rows" in str(found) and json.loads(found.to_json())["frechet"] is None
    )


def test_some_rows_of_nan_are_reported_and_left_out(thirds):
    images = thirds[0].features.copy()
    images[:100] = np.nan
    found = evaluate((images, thirds[0].labels), pair(thirds[1]), classes=10, settings=FAST)
    assert found.rows_left_out == 100 and found.scores[0].accuracy > 0.9 and found.collapse.collapsed


def test_a_collapsed_generator_is_reported(thirds):
    equal = np.repeat(thirds[2].features[:1], 599, axis=0)
    found = evaluate((equal, thirds[0].labels), pair(thirds[1]), classes=10, settings=FAST)
    assert found.collapse.collapsed and found.scores[1].accuracy < 0.2


def test_one_synthetic_row_is_a_result(thirds):
    found = evaluate(pair(thirds[0].take(np.array([0]))), pair(thirds[1]), classes=10, settings=FAST)
    assert found.rows == 1 and found.collapse.collapsed and found.scores[0].auroc == 0.5


def test_a_table_has_a_t_sne_map_on_demand_only():
    for asked, methods in ((None, ["principal components"]), (True, ["principal components", "t-SNE"])):
        how = EvaluationSettings(t_sne=asked, map_rows=30)
        found = evaluate(people(0, 60), people(1, 60), columns=COLUMNS, settings=how)
        assert [each.method for each in found.maps] == methods


def test_a_target_of_numbers_is_refused_with_a_way_out():
    with pytest.raises(InvalidParameterError, match="above a threshold"):
        evaluate(people(0), people(1), columns=COLUMNS, target="age", settings=FAST)


def test_a_t_sne_map_is_made_on_demand(thirds):
    how = EvaluationSettings(classifiers={}, map_rows=15)
    found = evaluate(pair(thirds[0]), pair(thirds[1]), classes=10, settings=how)
    assert [each.method for each in found.maps] == ["principal components", "t-SNE"]
    none = EvaluationSettings(classifiers={}, map_rows=0, samples=0)
    bare = evaluate(pair(thirds[0]), pair(thirds[1]), classes=10, settings=none)
    assert bare.maps == () and bare.scores == () and bare.samples == {}


def test_a_table_needs_neither_torch_nor_pandas(tmp_path):
    ran = ran_without("torch", "pandas", script=WITHOUT_TORCH, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "pass classes"),
        ({"classes": 10, "target": "x"}, "pass classes"),
        ({"columns": {}}, "a domain needs columns"),
        ({"columns": {"x": UnknownCategory()}}, "columns=generator"),
    ],
)
def test_what_is_missing_is_told(given, match):
    with pytest.raises(InvalidParameterError, match=match):
        evaluate({"x": [1]}, {"x": [1]}, **given)


def test_wrong_rows_are_refused(thirds):
    with pytest.raises(InvalidParameterError, match="as a pair"):
        evaluate(thirds[0].features, pair(thirds[1]), classes=10)
    with pytest.raises(InvalidParameterError, match="599 rows, but labels"):
        evaluate((thirds[0].features, [1, 2]), pair(thirds[1]), classes=10)
    with pytest.raises(InvalidParameterError, match="neighbors"):
        EvaluationSettings(neighbors=0)
