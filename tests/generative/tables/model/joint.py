# SPDX-License-Identifier: Apache-2.0
"""Small random models, and their joint distribution by brute force."""

import numpy as np
from hypothesis import strategies as st

from sfumato.generative.tables.model.belief_propagation import aligned


@st.composite
def models(draw, scale):
    """Draw sizes and log-potentials of up to six columns."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    column = st.integers(0, len(sizes) - 1)
    cliques = draw(st.lists(st.sets(column, min_size=1, max_size=3), min_size=1, max_size=6))
    values = np.random.default_rng(draw(st.integers(0, 2**32)))
    return tuple(sizes), {
        columns: values.normal(scale=scale, size=[sizes[c] for c in columns])
        for columns in (tuple(sorted(each)) for each in cliques)
    }


def joint_of(sizes, potentials):
    """Return the joint distribution and the logarithm of its total."""
    logs = np.zeros(sizes)
    for columns, values in potentials.items():
        logs = logs + aligned(values, columns, tuple(range(len(sizes))))
    top = logs.max()
    joint = np.exp(logs - top)
    return joint / joint.sum(), top + np.log(joint.sum())
