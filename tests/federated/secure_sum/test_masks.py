# SPDX-License-Identifier: Apache-2.0
import base64
import functools
import os

import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from scipy.stats import chisquare

from sfumato.federated.secure_sum.masks import mask, packed, unpacked

ALPHA = 1e-6


@pytest.mark.parametrize("bits", [8, 12, 16, 24, 32])
def test_a_mask_is_uniform(bits):
    drawn = mask(b"s" * 32, purpose="own", session=b"1", count=2**16, bits=bits)
    assert drawn.min() >= 0 and drawn.max() < 2**bits
    for shift in (0, bits - 8):  # the lowest and the highest eight bits
        assert chisquare(np.bincount((drawn >> shift) & 255, minlength=256)).pvalue > ALPHA


def test_every_part_of_the_key_changes_the_mask():
    base = {"purpose": "own", "session": b"1", "count": 64, "bits": 16}
    masks = [
        mask(b"s" * 32, **base),
        mask(b"s" * 31 + b"t", **base),
        mask(b"s" * 32, **{**base, "purpose": "pair"}),
        mask(b"s" * 32, **{**base, "session": b"2"}),
    ]
    assert len({m.tobytes() for m in masks}) == 4
    assert (masks[0] == mask(b"s" * 32, **base)).all()


@pytest.mark.parametrize("bits", [10, 16, 20, 32])
def test_packing_keeps_residues(bits):
    residues = np.array([0, 1, 2**bits - 1])
    assert (unpacked(packed(residues, bits=bits), count=3, bits=bits) == residues).all()


def test_a_coordinate_of_16_bits_takes_two_bytes():
    assert len(packed(np.zeros(100, np.int64), bits=16)) == 200


@pytest.mark.parametrize("given", [b"", b"123", b"12345", b"\xff" * 6])
def test_bytes_that_are_no_residues_are_told(given):
    assert unpacked(given, count=3, bits=12) is None


def test_flowers_own_masks_repeat_for_different_seeds():
    """Why we do not use them: 32 bytes are folded into 32 bits, so masks can be found by trying."""
    seed, other = bytes(range(32)), bytes(range(4, 32)) + bytes(range(4))
    first, second = (pseudo_rand_gen(s, 2**16, [(100,)])[0] for s in (seed, other))
    assert seed != other and (first == second).all()
    assert set(pseudo_rand_gen(seed, 4, [(1000,)])[0].tolist()) == {0, 1, 2}  # and never the residue 3
    keys = [base64.urlsafe_b64encode(os.urandom(32)) for _ in range(200)]  # the form of a shared key
    folded = [functools.reduce(lambda a, b: a ^ b, np.frombuffer(key, "<u4").tolist()) for key in keys]
    assert not any(number & 0x80808080 for number in folded)  # four of the 32 bits are always 0
    ours = [mask(s, purpose="own", session=b"", count=100, bits=16) for s in (seed, other)]
    assert (ours[0] != ours[1]).any()
