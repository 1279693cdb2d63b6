# SPDX-License-Identifier: Apache-2.0
"""The quick bound is the size of a junction tree; what is admitted is counted exactly."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sfumato.generative.tables.model import tree_growth
from sfumato.generative.tables.model.junction_tree import junction_tree, tree_cells
from sfumato.generative.tables.model.tree_growth import TreeGrowth
from tests.generative.tables.model.test_junction_tree import graphs


@given(graphs(), st.data())
def test_the_bound_is_at_least_the_cells_of_the_wanted_clique_and_of_the_tree(graph, data):
    sizes, cliques = graph
    tree = junction_tree(sizes, cliques)
    wanted = tuple(sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3))))
    if tree.host(wanted) is not None:
        return
    found = tree_growth._Paths(tree, tuple(sizes)).cells_with(wanted)
    assert found >= tree_cells(sizes, cliques) + math.prod(sizes[column] for column in wanted)


@given(graphs(), st.data())
def test_what_is_admitted_is_within_the_limit(graph, data):
    sizes, cliques = graph
    growth, held = TreeGrowth(sizes), []
    for clique in cliques:
        limit = data.draw(st.integers(1, 200))
        if clique in growth.fitting([clique], most_cells=limit) and growth.admits(clique, most_cells=limit):
            hosted = junction_tree(sizes, held).host(clique) is not None
            growth.add(clique)
            held.append(clique)
            assert hosted or tree_cells(sizes, held) <= limit


def test_parts_without_a_shared_column_are_joined_by_a_clique_of_two():
    growth = TreeGrowth((2, 3, 5, 7))
    growth.add((0, 1))
    growth.add((2, 3))
    cells = 2 * 3 + 5 * 7
    found = tree_growth._Paths(junction_tree((2, 3, 5, 7), [(0, 1), (2, 3)]), (2, 3, 5, 7))
    assert found.cells_with((1, 2)) == cells + 3 * 5
    assert growth.admits((1, 2), most_cells=cells + 15) and not growth.admits((1, 2), most_cells=cells + 14)


def test_a_candidate_that_was_too_large_is_not_counted_again(monkeypatch):
    growth = TreeGrowth((9, 9, 9))
    assert growth.fitting([(0, 1), (0,)], most_cells=50) == [(0,)]
    monkeypatch.setattr(tree_growth, "tree_cells", lambda *_: 1 / 0)
    assert growth.fitting([(0, 1), (0,)], most_cells=60) == [(0,)]
