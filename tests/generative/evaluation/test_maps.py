# SPDX-License-Identifier: Apache-2.0
"""Maps: axes of the holdout, places for both kinds, and no failure on rows without variance."""

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.maps import pca_map, t_sne_map
from sfumato.generative.evaluation.rows import labeled_rows


def test_the_components_are_those_of_the_holdout():
    rng = np.random.default_rng(0)
    holdout = labeled_rows(rng.normal(size=(300, 3)) * [10, 3, 0.1], [0] * 300, classes=1)
    synthetic = labeled_rows([[20.0, 0, 0], [0, 6, 0], [0, 0, 100]], [0] * 3, classes=1)
    found = pca_map(synthetic, holdout)
    assert np.allclose(
        np.abs(found.synthetic - found.synthetic[2]).round(0), [[20, 0], [0, 6], [0, 0]], atol=3
    )
    assert found.explained[0] == pytest.approx(100 / 109, abs=0.03)
    assert found.holdout.shape == (300, 2) and found.holdout_labels.shape == (300,)


def test_at_most_so_many_rows_are_placed(thirds):
    found = pca_map(thirds[0], thirds[1], rows=50)
    assert found.holdout.shape == found.synthetic.shape == (50, 2)
    assert set(found.synthetic_labels) <= set(range(10))


@pytest.mark.parametrize("width", [1, 2])
def test_rows_of_one_value_and_constant_rows_have_places(width):
    rows = labeled_rows(np.ones((6, width)), [0] * 6, classes=1)
    assert np.array_equal(pca_map(rows, rows).synthetic, np.zeros((6, 2)))
    assert np.isfinite(t_sne_map(rows, rows).synthetic).all()
    alone = rows.take(np.array([0]))
    assert pca_map(alone, alone).holdout.shape == (1, 2) and t_sne_map(alone, alone) is None


def test_t_sne_keeps_groups_apart_and_repeats():
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(20, 5)), rng.normal(size=(20, 5)) + 50
    holdout = labeled_rows(np.concatenate([near, far]), [0] * 20 + [1] * 20, classes=2)
    synthetic = labeled_rows(near + 0.01, [0] * 20, classes=2)
    found = t_sne_map(synthetic, holdout)
    ours = found.synthetic.mean(axis=0)
    same, other = (found.holdout[found.holdout_labels == k].mean(axis=0) for k in (0, 1))
    assert np.linalg.norm(ours - same) < 0.5 * np.linalg.norm(ours - other)
    assert np.array_equal(found.synthetic, t_sne_map(synthetic, holdout).synthetic)
    assert found.explained is None and found.method == "t-SNE"


def test_wrong_rows_are_refused(thirds):
    with pytest.raises(InvalidParameterError, match="rows must be"):
        pca_map(thirds[0], thirds[1], rows=0)
    broken = labeled_rows([[np.nan]], [0], classes=1)
    with pytest.raises(InvalidParameterError, match="synthetic rows hold"):
        pca_map(broken, labeled_rows([[1.0]], [0], classes=1))
