# SPDX-License-Identifier: Apache-2.0
"""Common categories and bounds are found; a category of one unit almost never is; the price is as stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.bought_domain import DomainPurchase, UnknownCategory, UnknownNumber
from sfumato.generative.tables.domain import Category, Number, UnknownDomainError
from sfumato.generative.tables.private_table import PrivateColumns
from sfumato.statistics.groups.key_discovery import KeyDiscovery, KeyThreshold
from sfumato.testing import seeded

COLUMNS = {
    "city": UnknownCategory(),
    "pay": UnknownNumber(bins=8, whole=True, largest=2.0**20),
    "sex": Category(values=["f", "m"]),
}
CELLS = {
    "city": ["Rome"] * 400 + ["Oslo"] * 300 + ["Tiny"] + [None, [1], float("nan"), 2.0],
    "pay": [*range(600, 1300), None, "word", float("inf"), 800, 900],
    "sex": ["f", "m"] * 352 + ["f"],
}


def bought(cells=None, rows_per_unit=1, epsilon=2.0, generator=None):
    purchase = DomainPurchase(columns=COLUMNS, epsilon=epsilon, delta=1e-6, rows_per_unit=rows_per_unit)
    return purchase.buy(PrivateColumns(cells or CELLS), generator=generator or seeded(0))


def test_common_categories_and_bounds_are_found():
    domain = bought()
    assert domain.columns["city"] == Category(values=("Oslo", "Rome"))
    pay = domain.columns["pay"]
    assert isinstance(pay, Number) and pay.whole and len(pay.edges) <= 10
    assert 256 <= pay.lower <= 600 and 1300 <= pay.upper < 4096
    assert domain.columns["sex"] is COLUMNS["sex"] and domain.names == tuple(COLUMNS)


def test_the_price_of_all_purchases_is_within_what_was_stated():
    for rows_per_unit in (1, 3):
        purchase = DomainPurchase(columns=COLUMNS, epsilon=0.5, delta=1e-6, rows_per_unit=rows_per_unit)
        assert price(purchase.event(), delta=1e-6).epsilon <= 0.5 * (1 + 1e-6)


def test_nothing_unknown_costs_nothing():
    purchase = DomainPurchase(columns={"sex": COLUMNS["sex"]}, epsilon=0.5, delta=1e-6)
    assert isinstance(purchase.event(), dp.NoOpDpEvent) and purchase.unknown == ()


def test_a_category_of_one_unit_is_almost_never_listed():
    cells = {**CELLS, "city": ["Rome"] * 3 + ["Tiny"] * 702}
    listed = [bought(cells, rows_per_unit=3, generator=seeded(n)).columns["city"].values for n in range(40)]
    assert all(values == ("Tiny",) for values in listed)  # three rows of one unit do not list Rome


@given(st.lists(st.sampled_from("abcd"), max_size=20), st.lists(st.sampled_from("abcde"), max_size=4))
def test_a_unit_moves_the_count_of_each_of_its_categories_by_one(rows, added):
    """The discovery counts units: its noise hides one more unit in each of at most k categories."""
    bound, seen = 4, []

    class Watching(KeyThreshold):
        def release(self, counts, *, generator=None):
            seen.append(counts)
            return np.zeros(len(counts), dtype=bool)

    purchase = DomainPurchase(
        columns={"city": UnknownCategory()}, epsilon=1.0, delta=1e-6, rows_per_unit=bound
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyDiscovery, "mechanism", lambda self: Watching(epsilon=1.0, delta=1e-6))
        for cells in ([*rows, "a"], [*rows, "a", *added]):
            purchase.buy(PrivateColumns({"city": cells}), generator=seeded(0))
    before = dict(zip(sorted({*rows, "a"}), seen[0], strict=True))
    after = dict(zip(sorted({*rows, "a", *added}), seen[1], strict=True))
    moved = [after[key] - before.get(key, 0) for key in after]
    assert set(moved) <= {0, 1} and sum(moved) <= bound


def test_too_few_rows_leave_missing_categories_and_the_widest_bounds():
    domain = bought({"city": ["Rome"], "pay": [3], "sex": ["f"]})
    assert domain.columns["city"] == Category(values=())
    assert domain.columns["pay"].upper == 2.0**20 and domain.columns["pay"].lower == -(2.0**20)


def test_an_empty_table_can_be_bought():
    domain = bought({"city": [], "pay": [], "sex": []})
    assert domain.columns["city"].size == 1


def test_the_most_categories_are_kept():
    columns = {"city": UnknownCategory(most=1)}
    purchase = DomainPurchase(columns=columns, epsilon=2.0, delta=1e-6)
    found = purchase.buy(PrivateColumns({"city": CELLS["city"]}), generator=seeded(0))
    assert found.columns["city"].values == ("Oslo",)


def test_whole_numbers_that_a_missing_cell_made_floats_are_the_same_categories():
    for cells in ([7] * 500, [7.0] * 499 + [np.nan], ["7"] * 500):
        purchase = DomainPurchase(columns={"code": UnknownCategory()}, epsilon=2.0, delta=1e-6)
        domain = purchase.buy(PrivateColumns({"code": cells}), generator=seeded(0))
        assert domain.columns["code"].values == ("7",)
        assert domain.encode({"code": cells})[0, 0] == 0


def test_neither_declared_nor_bought_is_an_error():
    with pytest.raises(UnknownDomainError, match="'city'"):
        DomainPurchase(columns={"city": "text"}, epsilon=0.5, delta=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: UnknownCategory(most=0),
        lambda: UnknownNumber(bins=0),
        lambda: UnknownNumber(largest=0),
        lambda: UnknownNumber(whole=True, largest=2.5),
        lambda: DomainPurchase(columns=COLUMNS, epsilon=0.5, delta=1e-6, rows_per_unit=0),
    ],
)
def test_wrong_parameters_are_refused(make):
    with pytest.raises(InvalidParameterError):
        make()
