# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.training.fast.sizes import Sizes, sizes_for


@given(st.floats(0.1, 1e5), st.one_of(st.none(), st.integers(1, 5000)), st.integers(1, 8), st.booleans())
def test_a_batch_is_never_cut_and_the_middle_is_not_padded(expected, microbatch_size, ranks, coarse):
    sizes = sizes_for(expected, microbatch_size=microbatch_size, ranks=ranks, coarse=coarse)
    assert sizes.padding(sizes.middle) == 0 and 1 <= sizes.least <= sizes.middle
    for units in (1, 2, sizes.middle - 1, sizes.middle + 1, 3 * sizes.middle):
        if units >= 1 and (microbatch_size is None or units <= microbatch_size):
            size = units + sizes.padding(units)
            assert size >= max(units, sizes.least if sizes.most is None else 1)
            assert sizes.most is None or size <= max(sizes.most, units)


@pytest.mark.parametrize(("coarse", "most", "waste"), [(False, 6, 0.08), (True, 4, 0.15)])
@pytest.mark.parametrize("expected", [64, 256, 2048])
def test_a_few_sizes_serve_the_bulk_of_poisson_batches(expected, coarse, most, waste):
    drawn = np.random.default_rng(0).binomial(50 * expected, 1 / 50, size=3000)
    sizes = sizes_for(expected, microbatch_size=None, coarse=coarse)
    padded = drawn + np.array([sizes.padding(int(n)) for n in drawn])
    common = {size for size, count in zip(*np.unique(padded, return_counts=True), strict=True) if count > 15}
    assert len(common) <= most and padded.sum() / drawn.sum() < 1 + waste


def test_pieces_of_a_batch_have_at_most_a_few_sizes():
    sizes = sizes_for(1000, microbatch_size=128)
    assert {units + sizes.padding(units) for units in range(1, 129)} == {32, 64, 96, 128}
    sizes = sizes_for(1000, microbatch_size=128, coarse=True)
    assert {units + sizes.padding(units) for units in range(1, 129)} == {64, 128}


def test_each_rank_has_its_share():
    assert sizes_for(2048, microbatch_size=None, ranks=8).middle == 256


def test_nothing_is_padded_unless_told():
    assert [Sizes().padding(n) for n in (0, 1, 7, 100)] == [0, 0, 0, 0]
