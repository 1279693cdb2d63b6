# SPDX-License-Identifier: Apache-2.0
"""One release: charged before a row is read, right at a large epsilon, and the same for hostile values."""

import math
import warnings
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from sfumato import Budget, Ledger
from sfumato.accounting.price import price
from sfumato.audit.mechanisms.ledger_records import check_marked
from sfumato.audit.mechanisms.payment_order import check_paid_first, check_stays_spent
from sfumato.audit.mechanisms.replay import replay
from sfumato.errors import BudgetExceededError, InvalidParameterError, RelationMismatchError
from sfumato.generative.tables import adaptive_rounds
from sfumato.generative.tables.bought_domain import UnknownCategory, UnknownColumn, UnknownNumber
from sfumato.generative.tables.domain import Category, Domain, Number, UnknownDomainError
from sfumato.generative.tables.model.belief_propagation import ImpossibleError
from sfumato.generative.tables.noisy_marginals import NoisyMarginals
from sfumato.generative.tables.private_table import DeferredTable, PrivateRows
from sfumato.testing import seeded
from tests.generative.tables.test_adaptive_rounds import WATCH

DOMAIN = {
    "kind": Category(values=["a", "b", "c"]),
    "size": Number(lower=0, upper=9, bins=5, whole=True, missing=False),
    "flag": Category(values=[True, False], missing=False),
}
TERMS = {"domain": DOMAIN, "epsilon": 1.0, "delta": 1e-5, "progress": False}
SMALL = NoisyMarginals(rounds=3, iterations=20)


def skewed(rows, seed=0):
    """Return rows with rare values, ties and dependent columns."""
    draws = np.random.default_rng(seed)
    kind = draws.choice(["a", "b", "c"], p=[0.9, 0.09, 0.01], size=rows)
    size = np.where(kind == "a", 0, draws.integers(0, 10, rows))  # most sizes are equal
    return pd.DataFrame({"kind": kind, "size": size, "flag": size > 4})


def account_of(tmp_path, epsilon, **terms):
    stated = {"privacy_unit": "row", "budget": Budget(epsilon=epsilon, delta=1e-4), **terms}
    return Ledger(tmp_path / f"{epsilon}.db").open("a", **stated)


# --- missing values ---------------------------------------------------------------------------------------


def with_blanks(share, rows=4000):
    """Return a table of skewed categories, of which one column has a share of missing values."""
    draws = np.random.default_rng(1)
    found = {name: draws.choice(["x", "y", "z"], rows, p=[0.8, 0.15, 0.05]).tolist() for name in "abcd"}
    found["a"] = [None if place < share * rows else cell for place, cell in enumerate(found["a"])]
    return found


BLANKS = {name: Category(values=["x", "y", "z"]) for name in "abcd"}


def blanks(share, *, epsilon, seed=0):
    made = NoisyMarginals(rounds=4, iterations=20).fit(
        with_blanks(share), domain=BLANKS, epsilon=epsilon, delta=1e-6, progress=False, generator=seeded(seed)
    )
    return [float(made.marginal(name)[-1]) for name in "abcd"]


def test_complete_columns_stay_complete():
    """Each of 24 columns gets blanks with a chance of 2.3%; without the rule about half of them do."""
    found = [share for seed in range(6) for share in blanks(0.0, epsilon=1.0, seed=seed)]
    assert sum(share > 0 for share in found) <= 5


@pytest.mark.parametrize(
    ("share", "epsilon", "near"), [(0.3, 1.0, 0.03), (0.1, 1.0, 0.03), (0.002, 1000.0, 0.0002)]
)
def test_missing_values_that_can_be_seen_are_kept(share, epsilon, near):
    found = blanks(share, epsilon=epsilon)
    assert found[0] == pytest.approx(share, abs=near)


def test_rows_of_a_complete_column_cannot_be_asked_for_blanks():
    made = NoisyMarginals(rounds=2).fit(
        with_blanks(0.0), domain=BLANKS, epsilon=1000.0, delta=1e-6, progress=False, generator=seeded(0)
    )
    with pytest.raises(ImpossibleError, match="probability 0"):
        made.sample(3, given={"a": None})
    assert made.sample(500, seed=0)["a"].notna().all()


# --- right answers ----------------------------------------------------------------------------------------


def test_marginals_are_right_at_a_large_epsilon():
    table = skewed(20_000)
    made = NoisyMarginals(rounds=6).fit(table, **{**TERMS, "epsilon": 50.0})
    domain = Domain(DOMAIN)
    sample = domain.encode(made.sample(20_000, seed=0))
    truth = domain.encode(table)
    for pair in combinations(range(3), 2):
        shape = [domain.sizes[column] for column in pair]
        one, two = (
            np.bincount(
                np.ravel_multi_index(tuple(codes[:, c] for c in pair), shape), minlength=math.prod(shape)
            )
            for codes in (truth, sample)
        )
        assert np.abs(one - two).sum() / 2 / 20_000 < 0.01
        modeled = made.marginal([domain.names[column] for column in pair]).ravel()
        assert np.abs(one / 20_000 - modeled).sum() / 2 < 0.01
    assert abs(made.rows - 20_000) < 50


@pytest.mark.parametrize("rows", [300, 20_000])
def test_all_marginals_of_tied_and_skewed_columns_are_near_the_truth_without_noise(rows):
    draws = np.random.default_rng(1)
    rare = np.where(draws.random(rows) < 0.01, "rare", "usual")
    ties = draws.choice([0, 5, 9], rows, p=[0.98, 0.01, 0.01])
    both = np.where(rare == "rare", 9, ties)
    domain = Domain(
        {
            "rare": Category(values=["usual", "rare", "never"]),
            "ties": Number(lower=0, upper=9, bins=10, whole=True),
            "both": Number(lower=0, upper=9, bins=10, whole=True, missing=False),
            "even": Category(values=list(range(8)), missing=False),
        }
    )
    table = {"rare": rare, "ties": ties, "both": both, "even": draws.integers(0, 8, rows)}
    made = NoisyMarginals().fit(table, **{**TERMS, "domain": domain, "epsilon": 1000.0})
    codes, truth = domain.encode(made.sample(rows, seed=0)), domain.encode(table)
    for size in (1, 2):
        for columns in combinations(range(4), size):
            shape = [domain.sizes[column] for column in columns]
            one, two = (
                np.bincount(np.ravel_multi_index(tuple(t[:, columns].T), shape), minlength=math.prod(shape))
                for t in (codes, truth)
            )
            assert np.abs(one - two).sum() / 2 / rows < 0.03, columns


def test_a_target_brings_marginals_of_three_columns():
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 2, (2, 20_000))
    table = {"one": one, "two": two, "both": one ^ two}  # all pairs are independent
    domain = {name: Category(values=[0, 1], missing=False) for name in table}
    terms = {"epsilon": 50.0, "delta": 1e-5, "progress": False}
    made = NoisyMarginals(target="both", rounds=8).fit(table, domain=domain, **terms)
    assert made.marginal(["one", "two", "both"])[1, 1, 1] < 0.01


def test_rows_of_one_kind_only_are_learned():
    made = SMALL.fit({"kind": ["a"] * 3000}, **{**TERMS, "domain": {"kind": DOMAIN["kind"]}, "epsilon": 20.0})
    assert made.marginal("kind")[0] > 0.98


def test_the_guarantee_is_the_price_of_the_event_and_within_what_was_asked_for():
    made = SMALL.fit(skewed(300), **TERMS)
    claim = SMALL.claim(DOMAIN, epsilon=1.0, delta=1e-5)
    assert made.guarantee == price(claim.event(), delta=1e-5).guarantee("row")
    assert 0.999 < made.guarantee.epsilon <= 1.0


def test_unknown_columns_are_bought_in_the_same_release():
    table = skewed(6000)
    domain = {"kind": UnknownCategory(), "size": UnknownNumber(bins=4, whole=True), "flag": DOMAIN["flag"]}
    made = SMALL.fit(table, **{**TERMS, "domain": domain, "epsilon": 8.0})
    assert made.domain.columns["kind"].values == ("a", "b", "c")
    assert made.guarantee.epsilon <= 8.0 and "2 of the columns were found" in made.statement()
    plain = SMALL.claim(DOMAIN, epsilon=8.0, delta=1e-5)
    assert SMALL.claim(domain, epsilon=8.0, delta=1e-5).noise_multiplier > plain.noise_multiplier


def test_a_table_too_small_to_buy_anything_is_fitted():
    domain = {"kind": UnknownCategory(), "size": UnknownNumber(bins=4), "flag": DOMAIN["flag"]}
    for rows in (0, 3):
        made = SMALL.fit(skewed(10)[:rows], **{**TERMS, "domain": domain})
        assert len(made.sample(5, seed=0)) == 5


def test_rows_per_unit_without_units_is_a_statement_of_the_caller():
    made = SMALL.fit(skewed(100), **TERMS, rows_per_unit=3)
    assert made.guarantee.privacy_unit == "user" and "not checked" in made.statement()


# --- privacy ----------------------------------------------------------------------------------------------


def fitted(table, generator):
    made = SMALL.fit(table, **TERMS, generator=generator)
    return [made.model.total, *(values for _, values in sorted(made.model.potentials.items()))]


def test_only_outputs_of_mechanisms_leave_a_fit():
    table = skewed(200)
    replay(fitted, table, table.drop(index=[7]), watch=WATCH)


POISON = [None, math.inf, 10**400, "word", [1]]  # test_domain has more


@pytest.mark.parametrize("name", list(DOMAIN))
def test_a_row_of_poison_is_a_row_like_any_other(name):
    table = {column: cells.tolist() for column, cells in skewed(100).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for poison in POISON:
            row = {column: cells[0] for column, cells in table.items()} | {name: poison}
            poisoned = {column: [*cells, row[column]] for column, cells in table.items()}
            replay(fitted, poisoned, table, watch=WATCH)


HOSTILE = {
    "not a number": math.nan,
    "infinite": -math.inf,
    "huge": 10**400,
    "bytes": b"\xff\x00",
    "long text": "x" * 100_000,
    "half a character": "\ud800",
    "a list": [1],
    "complex": 1j,
    "a date": pd.Timestamp("2026-01-01"),
    "beyond 64 bits": 2**64,
}
EVERY_KIND = {
    "listed": Category(values=("tea",)),
    "number": Number(lower=0, upper=9, bins=3),
    "bought": UnknownCategory(),
    "bounded": UnknownNumber(),
    "anything": UnknownColumn(),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
@pytest.mark.parametrize("usual", ["tea", 3, None])
def test_no_cell_stops_a_fit_whatever_the_other_cells_are(kind, usual):
    cells = [*[usual] * 30, HOSTILE[kind]]
    terms = {**TERMS, "domain": EVERY_KIND, "generator": seeded(0)}
    for column in (cells, pd.Series(cells, dtype=object)):
        made = SMALL.fit(dict.fromkeys(EVERY_KIND, column), **terms)
        assert list(made.sample(2).columns) == list(EVERY_KIND)
    assert "x" * 300 not in str(made.domain.to_dict())


@pytest.mark.parametrize(
    ("table", "domain"),
    [
        ({"a": []}, {"a": Category(values=["x", "y"])}),
        ({"a": [], "b": []}, {"a": UnknownCategory(), "b": UnknownNumber()}),
        ({"a": ["x"]}, {"a": Category(values=["x"], missing=False)}),
        ({"a": [1.0] * 9, "b": ["x"] * 9}, {"a": Number(lower=1, upper=1.5, bins=1), "b": UnknownCategory()}),
        ({"a": ["z"] * 9}, {"a": Category(values=["x", "y"])}),
        ({"a": ["z"] * 9}, {"a": Category(values=["x", "y"], missing=False)}),
        ({"a": [None] * 9, "b": [None] * 9}, {"a": UnknownCategory(), "b": UnknownNumber()}),
    ],
    ids=["empty", "empty, bought", "one value", "constant", "never occurs", "the last one", "all missing"],
)
def test_a_table_without_information_has_a_generator(table, domain):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = NoisyMarginals().fit(table, **{**TERMS, "domain": domain})
    assert len(made.sample(5, seed=0)) == 5 and list(made.sample(1).columns) == list(domain)


def test_units_move_the_noise_and_are_bounded():
    table = skewed(60)
    units = np.repeat(np.arange(12), 5)

    def run(given, generator):
        frame, owners = given
        made = SMALL.fit(frame, **TERMS, units=owners, rows_per_unit=3, generator=generator)
        return [made.model.total, *(values for _, values in sorted(made.model.potentials.items()))]

    replay(run, (table, units), (table.iloc[5:], units[5:]), watch=WATCH)
    made = SMALL.fit(table, **TERMS, units=units, rows_per_unit=3)
    assert made.guarantee.privacy_unit == "user" and "at most 3 rows" in made.statement()


# --- payment ----------------------------------------------------------------------------------------------


def asked(read, account):
    table = DeferredTable(columns=tuple(DOMAIN), read=lambda: read())
    return SMALL.fit(table, **TERMS, account=account, purpose="a table for tests")


def rows_at_hand():
    return PrivateRows(table=skewed(50))


def test_nothing_is_read_before_the_charge_or_without_one(tmp_path):
    assert check_paid_first(asked, rows_at_hand, account_of(tmp_path, 2.0)) == 1
    assert check_paid_first(asked, rows_at_hand, account_of(tmp_path, 0.5)) == 0


def test_a_failing_read_stays_spent(tmp_path):
    check_stays_spent(asked, rows_at_hand, account_of(tmp_path, 2.0))


def test_an_error_after_the_charge_stays_spent(tmp_path, monkeypatch):
    def fail(*given, **named):
        raise MemoryError

    account = account_of(tmp_path, 2.0)
    monkeypatch.setattr(adaptive_rounds, "estimate", fail)
    with pytest.raises(MemoryError):
        asked(rows_at_hand, account)
    assert [one.spent for one in account.releases()] == [True]


def test_seeded_noise_is_marked_in_the_ledger(tmp_path):
    def release(account, generator):
        return SMALL.fit(skewed(50), **TERMS, account=account, purpose="a table", generator=generator)

    check_marked(release, account_of(tmp_path, 9.0))


def test_a_refused_budget_leaves_nothing_spent(tmp_path):
    account = account_of(tmp_path, 0.5)
    with pytest.raises(BudgetExceededError):
        asked(rows_at_hand, account)
    assert account.releases() == []


def test_one_fit_is_one_release_of_the_stated_epsilon(tmp_path):
    account = account_of(tmp_path, 1.0)
    made = asked(rows_at_hand, account)
    assert len(account.releases()) == 1 and made.account == "a"
    assert account.spent().epsilon <= 1.0 + 1e-9
    with pytest.raises(BudgetExceededError):
        asked(rows_at_hand, account)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"domain": {"kind": DOMAIN["kind"]}}, "not known"),
        ({"domain": {**DOMAIN, "city": DOMAIN["kind"]}}, "no column 'city'"),
        ({"domain": {**DOMAIN, "kind": None}}, "UnknownCategory"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.5}, "delta"),
        ({"rows_per_unit": 0}, "contribution_bound|rows_per_unit"),
        ({"privacy_unit": "person"}, "protects one 'row'"),
        ({"purpose": None}, "purpose"),
    ],
)
def test_what_is_public_and_wrong_is_refused_before_the_charge(tmp_path, changes, match):
    account = account_of(tmp_path, 3.0)
    given = {**TERMS, "account": account, "purpose": "a table", **changes}
    with pytest.raises(InvalidParameterError, match=match):
        SMALL.fit(skewed(20), **given)
    assert account.releases() == []


def test_shapes_that_are_wrong_are_refused_before_the_charge(tmp_path):
    account = account_of(tmp_path, 3.0)
    table = {name: cells.tolist() for name, cells in skewed(20).items()}
    paid = {**TERMS, "account": account, "purpose": "a table"}
    with pytest.raises(InvalidParameterError, match="same number of rows"):
        SMALL.fit({**table, "kind": ["a"]}, **paid)
    with pytest.raises(InvalidParameterError, match="one entry for each row"):
        SMALL.fit(table, **paid, units=[1, 2])
    with pytest.raises(InvalidParameterError, match="list"):
        SMALL.fit({**table, "kind": 7}, **paid)
    assert account.releases() == []


def test_a_purpose_without_an_account_is_refused():
    with pytest.raises(InvalidParameterError, match="account"):
        SMALL.fit(skewed(20), **TERMS, purpose="a table")


def test_an_unknown_target_is_refused():
    with pytest.raises(InvalidParameterError, match="target"):
        NoisyMarginals(target="city").fit(skewed(20), **TERMS)


def test_an_account_of_people_wants_units(tmp_path):
    account = account_of(tmp_path, 3.0, privacy_unit="person")
    with pytest.raises(InvalidParameterError, match="whose the rows are"):
        asked(rows_at_hand, account)


def test_an_account_of_another_relation_is_refused(tmp_path):
    account = account_of(tmp_path, 3.0, relation="replace-one")
    with pytest.raises(RelationMismatchError):
        asked(rows_at_hand, account)
    assert account.releases() == []


def test_seeded_noise_is_marked_for_study():
    made = SMALL.fit(skewed(50), **TERMS, generator=seeded(0))
    assert "For study only: the noise was seeded" in made.statement()


def test_an_unknown_domain_names_its_column():
    with pytest.raises(UnknownDomainError, match="'extra'"):
        SMALL.fit(skewed(20).assign(extra=1), **TERMS)


@pytest.mark.parametrize(
    "changes",
    [
        {"degree": 0},
        {"rounds": 0},
        {"model_size_mb": 0},
        {"selection_share": 1.0},
        {"first_share": 0.0},
        {"domain_share": math.nan},
        {"iterations": 0},
    ],
)
def test_wrong_settings_are_refused(changes):
    with pytest.raises(InvalidParameterError):
        NoisyMarginals(**changes)


@pytest.mark.parametrize(("unknown", "share"), [(1, 0.1), (6, 0.2), (40, 0.4)])
def test_more_unknown_columns_take_a_larger_share_and_the_price_is_the_same(unknown, share):
    domain = {f"c{number}": UnknownCategory() for number in range(unknown)}
    claim = NoisyMarginals().claim(domain, epsilon=2.0, delta=1e-6)
    assert (
        claim.purchase == NoisyMarginals(domain_share=share).claim(domain, epsilon=2.0, delta=1e-6).purchase
    )
    assert 1.99 < price(claim.event(), delta=1e-6).epsilon <= 2.0
