# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.key_shares import combine, split


@given(st.binary(max_size=64), st.integers(1, 6), st.integers(0, 3))
def test_enough_shares_give_the_secret(secret, threshold, more):
    holders = [1000 + 7 * i for i in range(threshold + more)]
    shares = split(secret, threshold=threshold, holders=holders)
    for chosen in itertools.islice(itertools.combinations(holders, threshold), 5):
        assert combine({h: shares[h] for h in chosen}, holders=holders) == secret


def test_too_few_shares_give_something_else():
    holders = list(range(5))
    shares = split(b"secret key", threshold=3, holders=holders)
    assert combine({h: shares[h] for h in (0, 1)}, holders=holders) != b"secret key"


def test_the_law_of_too_few_shares_does_not_depend_on_the_secret():
    for secret in (bytes(32), b"\xff" * 32):
        last = [split(secret, threshold=2, holders=[1, 2])[1][-1] for _ in range(5000)]
        assert chisquare(np.bincount(last, minlength=256)).pvalue > 1e-6


def test_a_share_that_was_changed_is_not_the_secret():
    holders = [1, 2, 3]
    shares = split(b"k" * 32, threshold=2, holders=holders)
    changed = {1: shares[1], 2: bytes(66)}
    assert combine(changed, holders=holders) != b"k" * 32
    assert combine({9: shares[1]}, holders=holders) is None  # nobody's share


@pytest.mark.parametrize(
    ("secret", "threshold", "holders"),
    [(b"x" * 65, 1, [1]), (b"x", 3, [1, 2]), (b"x", 0, [1]), (b"x", 1, [1, 1])],
)
def test_what_cannot_be_split_is_refused(secret, threshold, holders):
    with pytest.raises(InvalidParameterError):
        split(secret, threshold=threshold, holders=holders)
