# SPDX-License-Identifier: Apache-2.0
"""An event reaches an account only with the relation it was made for."""

import ast
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting.events import DpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, RelationMismatchError, UnsupportedEventError
from sfumato.ledger import Account, Ledger, Mechanism, charge
from sfumato.mechanisms import Laplace, RandomizedResponse, SmoothMedian
from sfumato.mechanisms.random import FastGenerator, SecureGenerator, study_note
from sfumato.testing import seeded

New = Callable[..., Account]

REPLACING = Laplace(scale=4.0, sensitivity=1.0, relation=Relation.REPLACE_ONE)
ADDING = Laplace(scale=4.0, sensitivity=1.0, relation=Relation.ADD_REMOVE)


def test_a_mechanism_is_charged_by_itself(new_account: New) -> None:
    account = new_account()
    account.reserve(ADDING, purpose="reserved")
    with account.spend(ADDING, purpose="spent"):
        pass
    account.reserve(ADDING, purpose="said twice", relation="add-remove")
    assert [release.event for release in account.releases()] == [ADDING.event()] * 3
    assert account.spent().epsilon == 0.75


def test_a_bare_event_must_say_its_relation(new_account: New, path: Path) -> None:
    account = new_account()
    with pytest.raises(InvalidParameterError, match=r"Pass the mechanism itself.*relation=\.\.\."):
        account.reserve(PureDpEvent(0.1), purpose="p")
    with (
        pytest.raises(InvalidParameterError, match="Pass the mechanism itself"),
        account.spend(PureDpEvent(0.1), purpose="p"),
    ):
        raise AssertionError("the block must not run")
    assert Ledger(path).head().count == 1


@pytest.mark.parametrize(
    "mechanism",
    [
        REPLACING,
        RandomizedResponse.calibrated(epsilon=0.5, num_buckets=3),
        SmoothMedian(epsilon=0.3, bounds=(0.0, 1.0)),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_a_mechanism_for_replaced_units_is_not_charged_to_an_add_remove_account(
    new_account: New, path: Path, mechanism: Mechanism
) -> None:
    account = new_account()
    ways: list[Callable[[], object]] = [
        lambda: account.reserve(mechanism, purpose="p"),
        lambda: account.admits(mechanism),
        lambda: account.calibrate(lambda _: mechanism),
    ]
    for way in ways:
        with pytest.raises(RelationMismatchError, match=r"stated for replace-one.*counts add-remove"):
            way()
    assert Ledger(path).head().count == 1


def test_a_relation_that_contradicts_the_mechanism_is_refused(new_account: New) -> None:
    account = new_account()
    with pytest.raises(RelationMismatchError, match="stated for replace-one neighbors, but relation="):
        account.reserve(REPLACING, purpose="p", relation=Relation.ADD_REMOVE)
    assert account.releases() == []


def test_what_is_neither_mechanism_nor_event_is_refused(new_account: New) -> None:
    class Vague:
        def event(self) -> DpEvent:
            return PureDpEvent(0.1)

    class Silent(Vague):
        relation = None

    class Wrong:
        relation = Relation.ADD_REMOVE

        def event(self) -> object:
            return "an event"

    account = new_account()
    for what in (Vague(), Wrong(), 0.1, None, PureDpEvent):
        with pytest.raises(UnsupportedEventError):
            account.reserve(what, purpose="p")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="unknown relation"):
        account.reserve(Silent(), purpose="p")  # type: ignore[arg-type]
    assert account.releases() == []


def _nested(levels: int) -> DpEvent:
    return reduce(lambda event, _: dp.ComposedDpEvent([event]), range(levels - 1), PureDpEvent(0.001))


@pytest.mark.parametrize(
    "event",
    [
        PureDpEvent(10**400),
        PureDpEvent(10**5000),
        dp.SelfComposedDpEvent(PureDpEvent(1e-170), 10**340),
        dp.ComposedDpEvent([dp.SelfComposedDpEvent(PureDpEvent(1e-170), 10**340)]),
        dp.SelfComposedDpEvent(dp.SelfComposedDpEvent(PureDpEvent(1e-170), 10**200), 10**200),
        _nested(2000),
        _nested(charge.DEEPEST + 1),
    ],
    ids=["number", "digits", "count", "inner count", "product of counts", "deep", "one too deep"],
)
def test_an_event_beyond_what_can_be_priced_is_refused_by_name(new_account: New, event: DpEvent) -> None:
    account = new_account()
    with pytest.raises(InvalidParameterError, match=r"too large|levels"):
        account.reserve(event, purpose="p", relation="add-remove")
    assert account.releases() == []


def test_the_deepest_event_that_is_charged_can_be_read_back(new_account: New, path: Path) -> None:
    new_account().reserve(_nested(charge.DEEPEST), purpose="p", relation="add-remove")
    assert Ledger(path).account("credit").spent().epsilon == 0.001


# --- for study only ----------------------------------------------------------------------------------------

GENERATORS = {
    "default": (lambda: None, False),
    "secure": (SecureGenerator, False),
    "seeded": (lambda: seeded(1), True),
    "fast": (FastGenerator, True),
    "fast and seeded": (lambda: FastGenerator(1), True),
    "part of a seeded one": (lambda: seeded(1).fork("noise", 2), True),
}


class Doubtful:
    """A generator of somebody's own that does not say clearly that it is secure."""

    secure, seeded = "of course", False


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_release_is_marked_by_where_its_noise_came_from(new_account: New, kind: str) -> None:
    make, marked = GENERATORS[kind]
    account, generator = new_account(), make()
    account.reserve(ADDING, purpose="reserved", generator=generator)
    with account.spend(ADDING, purpose="spent", generator=generator):
        pass
    assert [release.seeded for release in account.releases()] == [marked] * 2
    assert account.statement().seeded is marked
    assert ("for study only" in account.statement().text.lower()) is marked
    assert (study_note(generator) is not None) is marked  # what a release itself says agrees


def test_a_generator_that_is_not_clearly_secure_is_marked(new_account: New) -> None:
    account = new_account()
    account.reserve(ADDING, purpose="doubtful", generator=Doubtful())  # type: ignore[arg-type]  # on purpose
    assert account.releases()[0].seeded


# These charge nothing that noise is added to: they only ask what an account admits.
WITHOUT_NOISE = {"audit/mechanisms/payment_order.py"}


def test_every_charge_in_the_library_says_where_its_noise_comes_from() -> None:
    package = Path(charge.__file__).parents[1]
    silent = [
        f"{file.relative_to(package)}:{call.lineno}"
        for file in package.rglob("*.py")
        if file.relative_to(package).as_posix() not in WITHOUT_NOISE
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ("spend", "reserve") and (call.args or call.keywords)
        if "generator" not in {keyword.arg for keyword in call.keywords}
    ]
    assert silent == []
