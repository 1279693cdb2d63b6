# SPDX-License-Identifier: Apache-2.0
"""What PostgreSQL refuses a role after `role_rights`: each promise of the module, tried against a server."""

import dataclasses
import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sfumato.accounting.events import PureDpEvent
from sfumato.errors import InvalidParameterError, LedgerCorruptError, LedgerReadOnlyError
from sfumato.ledger import Account, Budget, Ledger, Progress, journal, role_rights
from sfumato.ledger.journal import Entry, Head
from sfumato.ledger.store import Store

BUDGET = Budget(epsilon=1, delta=1e-6)
As = Callable[[str], str]


def _run(url: str, sql: str) -> None:
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(sql)


@pytest.fixture
def names() -> dict[str, str]:
    """Give names of roles, new for each test: a server has its roles for all databases."""
    mark = uuid.uuid4().hex[:12]
    return {name: f'{name} "{mark}"' for name in ("ben", "cleo", "dora", "analysts", "stranger")}


@pytest.fixture
def at(postgresql_url: str, names: dict[str, str]) -> As:
    """Make a ledger in which Ben charges, Cleo too as an analyst, and Dora grants; give their addresses."""
    Ledger(postgresql_url, person="ada").open("visits", privacy_unit="patient", budget=BUDGET)
    quoted = {name: '"' + role.replace('"', '""') + '"' for name, role in names.items()}
    for name in ("ben", "cleo", "dora", "stranger"):
        _run(postgresql_url, f"CREATE ROLE {quoted[name]} LOGIN")
    _run(postgresql_url, f"CREATE ROLE {quoted['analysts']}")
    _run(postgresql_url, f"GRANT {quoted['analysts']} TO {quoted['cleo']}")
    _run(postgresql_url, role_rights(charging=[names["ben"], names["analysts"]], granting=[names["dora"]]))
    _run(postgresql_url, f"GRANT SELECT, INSERT ON sfumato_journal TO {quoted['stranger']}")
    _run(postgresql_url, f"GRANT SELECT, UPDATE ON sfumato_head TO {quoted['stranger']}")
    _run(postgresql_url, f"GRANT SELECT ON sfumato_schema TO {quoted['stranger']}")

    def address(name: str) -> str:
        return sa.make_url(postgresql_url).set(username=names[name]).render_as_string(hide_password=False)

    return address


def _visits(address: str, person: str | None = None) -> Account:
    return Ledger(address, person=person, create=False).account("visits")


def _reserve(account: Account):
    return account.reserve(PureDpEvent(0.1), relation="add-remove", purpose="mean cost")


def test_a_role_that_charges_charges_and_finishes_its_own_releases(at: As, names: dict[str, str]) -> None:
    for name in ("ben", "cleo", "dora"):
        account = _visits(at(name))
        with account.spend(PureDpEvent(0.1), relation="add-remove", purpose="mean cost"):
            pass
        _reserve(account).refund()
        run = _reserve(account)
        run.begin(claim="one")
        run.claim("two", known="one")
        run.commit(claim="two")
    found = _visits(at("ben"))
    assert {release.person for release in found.releases()} == {names[n] for n in ("ben", "cleo", "dora")}
    assert found.spent().epsilon == pytest.approx(0.6)


@pytest.mark.parametrize("name", ["ben", "cleo", "stranger"])
def test_who_only_charges_cannot_grant_or_open(at: As, name: str) -> None:
    ledger = Ledger(at(name), create=False)
    with pytest.raises(LedgerReadOnlyError, match=r"may not open accounts, grant budget"):
        ledger.account("visits").grant(epsilon=1, reason="more")
    with pytest.raises(LedgerReadOnlyError, match=r"may not open accounts, grant budget"):
        ledger.open("more", privacy_unit="patient", budget=BUDGET)
    assert ledger.account("visits").budget == BUDGET
    assert len(ledger.accounts()) == 1


def test_who_grants_grants_and_opens(at: As, names: dict[str, str]) -> None:
    ledger = Ledger(at("dora"), create=False)
    ledger.account("visits").grant(epsilon=1, reason="second study")
    ledger.open("staff", privacy_unit="employee", budget=BUDGET)
    assert _visits(at("ben")).budget.epsilon == 2
    assert [grant.person for grant in _visits(at("ben")).grants()] == [names["dora"]]


def test_a_role_that_is_not_named_writes_nothing(at: As) -> None:
    with pytest.raises(LedgerReadOnlyError, match="row-level security"):
        _reserve(_visits(at("stranger")))
    assert _visits(at("stranger")).spent().epsilon == 0  # it reads what its rights allow


@pytest.mark.parametrize("name", ["ben", "cleo", "dora"])
def test_nobody_signs_with_the_name_of_another(at: As, names: dict[str, str], name: str) -> None:
    for person in ("ada", names["stranger"], names["analysts"]):
        with pytest.raises(LedgerReadOnlyError, match=r"sfumato_signed_by_the_role.*leave the person out"):
            _reserve(_visits(at(name), person))


def test_a_reservation_is_touched_by_its_role_alone_and_refunded_by_who_grants(at: As) -> None:
    reservation = _reserve(_visits(at("ben")))
    for step in ("refund", "begin"):
        with pytest.raises(LedgerReadOnlyError, match="change what others reserved"):
            getattr(_visits(at("cleo")).reservation(reservation.number), step)()
    reservation.begin()
    with pytest.raises(LedgerReadOnlyError, match="change what others reserved"):
        _visits(at("cleo")).reservation(reservation.number).commit()
    assert reservation.release.progress is Progress.BEGUN
    unused = _reserve(_visits(at("ben")))
    _visits(at("dora")).reservation(unused.number).refund()
    assert unused.release.progress is Progress.REFUNDED


@pytest.mark.parametrize("name", ["ben", "cleo", "dora", "stranger"])
def test_the_head_is_the_last_row_whoever_writes_it(at: As, name: str) -> None:
    _reserve(_visits(at("ben")))
    for change in ("row_count = 1", "row_count = 99", f"row_hash = '{'a' * 64}'"):
        with pytest.raises(sa.exc.ProgrammingError, match="sfumato_head"):
            _run(at(name), f"UPDATE sfumato_head SET {change}")
    with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
        _run(at(name), "DELETE FROM sfumato_head")
    with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
        _run(at(name), "UPDATE sfumato_journal SET purpose = 'other'")
    assert _visits(at("ben")).spent().epsilon == pytest.approx(0.1)


def test_a_row_goes_to_the_end_or_nowhere(at: As, names: dict[str, str]) -> None:
    store = Store(at("ben"), create=False)
    entry = Entry(
        account="visits", kind="reserve", person=names["ben"], code_version="1", written_at="now",
        relation="add-remove", event='{"epsilon": 0.1, "type": "PureDpEvent"}', purpose="by hand",
    )  # fmt: skip
    with store.reading() as connection:
        head = store.head(connection)
    right = journal.seal(entry, head)
    wrong = [
        journal.seal(entry, Head(head.count + 5, head.hash)),
        journal.seal(entry, Head(head.count, "a" * 64)),
        dataclasses.replace(right, person="ada"),
        dataclasses.replace(right, kind="grant", terms='{"delta": 0, "epsilon": 9}'),
    ]
    for row in wrong:
        with pytest.raises(LedgerReadOnlyError), store.writing() as connection:
            store.append(connection, row)
    with store.writing() as connection:
        store.append(connection, right)
    assert _visits(at("cleo")).spent().epsilon == pytest.approx(0.1)


def test_a_damaged_head_is_repaired_by_the_documented_statement(at: As, postgresql_url: str) -> None:
    _reserve(_visits(at("ben")))
    ledger = Ledger(postgresql_url, create=False)
    noted = ledger.head()
    _run(postgresql_url, "UPDATE sfumato_head SET row_count = 99")
    with pytest.raises(LedgerCorruptError, match="its head says row 99"):
        Ledger(at("ben"), create=False)
    _run(
        postgresql_url,
        "UPDATE sfumato_head SET (row_count, row_hash) = "
        "(SELECT sequence, row_hash FROM sfumato_journal ORDER BY sequence DESC LIMIT 1)",
    )
    assert Ledger(at("ben"), create=False).verify(head=noted).head == noted


def test_the_statements_can_run_again_with_another_team(
    at: As, postgresql_url: str, names: dict[str, str]
) -> None:
    _run(postgresql_url, role_rights(charging=[names["dora"]]))
    with pytest.raises(LedgerReadOnlyError, match="row-level security"):
        _reserve(_visits(at("ben")))
    with pytest.raises(LedgerReadOnlyError, match="row-level security"):
        _visits(at("dora")).grant(epsilon=1, reason="more")
    _reserve(_visits(at("dora")))


def test_the_owner_is_not_bound(at: As, postgresql_url: str) -> None:
    owner = _visits(postgresql_url, "ada")
    owner.grant(epsilon=1, reason="second study")
    _reserve(owner).refund()


def test_names_that_no_role_has_are_refused() -> None:
    for roles in ([""], ["a\0b"], ["x" * 64], "ben", [3]):
        with pytest.raises(InvalidParameterError):
            role_rights(charging=roles)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="no role was given"):
        role_rights(charging=[])
    assert '"a""; DROP TABLE x; --"' in role_rights(charging=['a"; DROP TABLE x; --'])
