# SPDX-License-Identifier: Apache-2.0
"""Every given clique is inside a clique of the tree, and each column's cliques are connected."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sfumato.generative.tables.model.junction_tree import JunctionTree, junction_tree, tree_cells

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@st.composite
def graphs(draw):
    sizes = draw(SIZES)
    column = st.integers(0, len(sizes) - 1)
    cliques = draw(st.lists(st.sets(column, min_size=1, max_size=3), max_size=8))
    return sizes, [tuple(sorted(each)) for each in cliques]


@given(graphs())
def test_every_clique_is_inside_a_clique_of_the_tree(graph):
    sizes, cliques = graph
    tree = junction_tree(sizes, cliques)
    for clique in [*cliques, *((column,) for column in range(len(sizes)))]:
        place = tree.host(clique)
        assert place is not None and set(clique) <= set(tree.cliques[place])


@given(graphs())
def test_the_cliques_of_a_column_are_connected(graph):
    tree = junction_tree(*graph)
    for column in range(len(graph[0])):
        holding = {place for place, clique in enumerate(tree.cliques) if column in clique}
        joined = sum(tree.parents[place] in holding for place in holding)
        assert joined == len(holding) - 1  # a tree on so many nodes has one edge less


@given(graphs())
def test_parents_stand_before_their_children_and_there_is_one_root(graph):
    tree = junction_tree(*graph)
    assert tree.parents[0] == -1
    assert all(0 <= parent < place for place, parent in enumerate(tree.parents) if place)


@given(graphs())
def test_the_cells_are_those_of_the_tree(graph):
    sizes, cliques = graph
    tree = junction_tree(sizes, cliques)
    assert tree_cells(sizes, cliques) == sum(math.prod(sizes[c] for c in each) for each in tree.cliques)


def test_a_cycle_is_triangulated():
    tree = junction_tree([2] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert [len(each) for each in tree.cliques] == [3, 3] and len(tree.separators[1]) == 2


def test_nobody_hosts_columns_that_are_in_no_clique_together():
    tree = JunctionTree(((0, 1), (1, 2)), (-1, 0))
    assert tree.host((0, 2)) is None and tree.neighbors == ((1,), (0,))
