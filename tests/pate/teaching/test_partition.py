# SPDX-License-Identifier: Apache-2.0
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from sfumato.errors import InvalidParameterError
from sfumato.pate import Partition
from sfumato.testing import seeded

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed

names = st.one_of(st.integers(), st.text(), st.floats(), st.none(), st.booleans(), st.binary())
keys = st.binary(min_size=32, max_size=32)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)
nonsense = st.one_of(st.integers(), st.floats(), st.none(), st.text(), st.just([1]), st.just(10**400))


def teachers_of(assigned, row):
    rows, teachers = assigned
    return teachers[rows == row].tolist()


@given(keys, sizes, st.lists(names, max_size=20))
def test_every_row_goes_to_one_teacher_and_all_rows_of_a_unit_to_the_same(key, teachers, units):
    partition = Partition(teachers=teachers, key=key)
    twice = partition.assign([*units, *units])
    for row in range(len(units)):
        assert len(teachers_of(twice, row)) == 1
        assert teachers_of(twice, row) == teachers_of(twice, row + len(units))
        assert 0 <= teachers_of(twice, row)[0] < teachers[0]


@given(keys, st.lists(names, min_size=1, max_size=12), st.lists(names, max_size=12), st.data())
def test_other_units_never_move_a_unit(key, units, others, data):
    partition = Partition(teachers=(7, 5), key=key)
    groups = data.draw(st.lists(st.integers(0, 1), min_size=len(units), max_size=len(units)))
    copies = data.draw(st.lists(st.integers(0, 5), min_size=len(units), max_size=len(units)))
    alone = partition.assign(units[:1], groups=groups[:1], copies=copies[:1])
    known = [other for other in others if other != units[0] and other == other and other is not None]
    together = partition.assign(
        [units[0], *known], groups=[groups[0]] + [1] * len(known), copies=[copies[0]] + [2] * len(known)
    )
    assert teachers_of(alone, 0) == teachers_of(together, 0)


@given(keys, st.integers(1, 9), st.data())
def test_a_unit_with_copies_is_in_exactly_as_many_different_teachers(key, deck, data):
    copies = data.draw(st.integers(1, deck))
    assigned = Partition(teachers=(3, deck), key=key).assign(["a"] * 2, groups=[1, 1], copies=[copies] * 2)
    first, second = teachers_of(assigned, 0), teachers_of(assigned, 1)
    assert first == second and len(set(first)) == len(first) == copies
    assert all(3 <= teacher < 3 + deck for teacher in first)


@given(keys, st.lists(st.tuples(names, nonsense, nonsense), max_size=12))
def test_no_private_value_raises_or_leaves_the_teachers_of_its_group(key, values):
    partition = Partition(teachers=(4, 6), key=key)
    units, groups, copies = ([value[i] for value in values] for i in range(3))
    rows, teachers = partition.assign(units, groups=groups, copies=copies)
    assert len(rows) == len(teachers) and ((teachers >= 0) & (teachers < 10)).all()
    assert len(set(zip(rows.tolist(), teachers.tolist(), strict=True))) == len(rows)


def test_rows_of_a_unit_that_disagree_are_treated_by_the_strictest():
    partition = Partition(teachers=(5, 6), key=bytes(32))
    rows, teachers = partition.assign(["a", "a"], groups=[1, 0], copies=[3, 2])
    assert len(rows) == 4 and (teachers < 5).all()


@pytest.mark.parametrize("group", [2, -1, None, "1", float("nan"), 0.5, 10**400, [1]])
def test_a_group_that_does_not_exist_is_the_strictest(group):
    assert Partition(teachers=(5, 6), key=bytes(32)).assign(["a"], groups=[group])[1][0] < 5


@pytest.mark.parametrize(
    ("copies", "expected"), [(99, 4), (2.9, 2), (-3, 0), (None, 0), (float("nan"), 0), ("2", 0), (True, 1)]
)
def test_copies_of_one_row_are_limited_and_never_refused(copies, expected):
    assert len(Partition(teachers=(4,), key=bytes(32)).assign(["a"], copies=[copies])[0]) == expected


def test_missing_units_are_one_unit_together():
    partition = Partition(teachers=(1000,), key=bytes(32))
    _, teachers = partition.assign(
        [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), [1], object()]
    )
    assert len(set(teachers.tolist())) == 1


def test_numbers_text_and_truth_are_different_units():
    partition = Partition(teachers=(10**9,), key=bytes(32))
    _, teachers = partition.assign([1, "1", 1.5, True, None, b"1"])
    assert len(set(teachers.tolist())) == 6


def pvalue(partition, units, copies=1):
    _, teachers = partition.assign(units, copies=copies)
    return chisquare(np.bincount(teachers, minlength=partition.total)).pvalue


def test_teachers_are_equally_likely():
    partition = Partition.draw(20, seeded(1))
    assert pvalue(partition, range(40_000)) > ALPHA
    assert pvalue(partition, range(40_000), copies=1) > ALPHA
    skewed = [f"{i}" for i in range(40_000)] + ["0"] * 400  # 1% of the rows are one unit: the test has power
    assert pvalue(partition, skewed) < ALPHA


def test_every_set_of_copies_is_equally_likely():
    rows, teachers = Partition.draw(5, seeded(2)).assign(rows=20_000, copies=2)
    pairs = np.sort(teachers[np.argsort(rows, kind="stable")].reshape(-1, 2), axis=1)
    _, counts = np.unique(pairs[:, 0] * 5 + pairs[:, 1], return_counts=True)
    assert len(counts) == 10 and chisquare(counts).pvalue > ALPHA
    counts[0] += 600
    assert chisquare(counts).pvalue < ALPHA


def test_two_units_are_assigned_independently():
    partition = Partition.draw(4, seeded(3))
    _, ordered = partition.assign(rows=40_000)
    rows, teachers = partition.assign(rows=40_000)
    teachers = teachers[np.argsort(rows)]
    assert chisquare(np.bincount(teachers[::2] * 4 + teachers[1::2], minlength=16)).pvalue > ALPHA
    assert chisquare(np.bincount(ordered[::2] * 4 + ordered[1::2], minlength=16)).pvalue < ALPHA


def test_the_same_key_repeats_the_partition_and_another_does_not():
    first, second = Partition.draw(50), Partition.draw(50)
    again = Partition(teachers=first.teachers, key=first.key)
    assert (first.assign(rows=200)[0] == again.assign(rows=200)[0]).all()
    assert first.fingerprint == again.fingerprint != second.fingerprint
    assert (first.assign(rows=200)[0] != second.assign(rows=200)[0]).any()


def shuffled(key, token, deck):
    """The slow, obvious version: a whole deck, shuffled card after card by the hash."""
    cards = list(range(deck))
    for place in range(deck):
        drawn = hashlib.blake2b(
            token, key=key, digest_size=16, salt=place.to_bytes(16, "big"), person=b"pate teacher"
        ).digest()
        other = place + int.from_bytes(drawn, "big") % (deck - place)
        cards[place], cards[other] = cards[other], cards[place]
    return cards


@given(keys, st.integers(0, 10**6), st.integers(1, 12), st.data())
def test_the_assignment_is_that_of_a_deck_shuffled_by_a_keyed_hash(key, unit, deck, data):
    """Caches and resumed runs depend on it: it must be the same in every version."""
    copies = data.draw(st.integers(1, deck))
    _, teachers = Partition(teachers=(deck,), key=key).assign([unit], copies=copies)
    assert teachers.tolist() == sorted(shuffled(key, b"i%x" % unit, deck)[:copies])


def test_nothing_shown_holds_the_key():
    partition = Partition.draw((3, 4))
    assert repr(partition) == "Partition(teachers=(3, 4))"
    assert partition.key.hex() not in partition.fingerprint and len(partition.fingerprint) == 64
    assert partition.fingerprint != Partition(teachers=(4, 3), key=partition.key).fingerprint


def test_groups_of_teachers_follow_one_another():
    partition = Partition(teachers=(2, 3), key=bytes(32))
    assert partition.total == 5 and partition.group_of.tolist() == [0, 0, 1, 1, 1]


def test_no_rows_give_no_assignment():
    rows, teachers = Partition.draw(3).assign([])
    assert rows.shape == teachers.shape == (0,)


def test_a_drawn_key_can_be_repeated_from_a_seed():
    assert Partition.draw(3, seeded(1)) == Partition.draw([3], seeded(1)) != Partition.draw(3, seeded(2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Partition(teachers=(), key=bytes(32)),
        lambda: Partition(teachers=(0,), key=bytes(32)),
        lambda: Partition(teachers=3, key=bytes(32)),
        lambda: Partition(teachers=(3,), key=bytes(31)),
        lambda: Partition(teachers=(3,), key="k" * 32),
        lambda: Partition.draw(2.5),
        lambda: Partition.draw(3).assign(),
        lambda: Partition.draw(3).assign([1], rows=1),
        lambda: Partition.draw(3).assign(np.zeros((2, 2))),
        lambda: Partition.draw(3).assign([1, 2], groups=[0]),
        lambda: Partition.draw(3).assign([1, 2], copies=[1]),
        lambda: Partition.draw(3).assign([1, 2], copies=4),
        lambda: Partition.draw((3, 2)).assign([1, 2], copies=3),
        lambda: Partition.draw(3).assign([1, 2], copies=0),
    ],
)
def test_wrong_settings_and_shapes_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        wrong()
