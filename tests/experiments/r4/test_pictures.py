# SPDX-License-Identifier: Apache-2.0
import numpy as np

from sfumato.experiments.r4.pictures import as_gray, as_text


def test_a_grid_is_kept_up_to_sixteen_gray_levels():
    images = np.random.default_rng(0).random((23, 1, 8, 6))
    grid = np.array(as_gray(as_text(images)))
    assert grid.shape == (4 * 8, 5 * 6)
    assert np.abs(grid[:8, 6:12] - images[1, 0]).max() <= 0.5 / 15 + 1e-9  # the second image of the first row
    assert np.abs(grid[8:16, :6] - images[5, 0]).max() <= 0.5 / 15 + 1e-9  # the first of the second row
