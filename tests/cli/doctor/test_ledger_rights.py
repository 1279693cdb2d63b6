# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of rights in PostgreSQL, asked of a server."""

import sqlalchemy as sa

from sfumato import Budget, Ledger
from sfumato.cli.doctor import ledger_health
from sfumato.cli.doctor.findings import State
from sfumato.ledger import role_rights


def run(url, sql):
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(sql)


def rights(url):
    found = [each for each in ledger_health.check(url, is_named=True) if each.name == "rights"]
    return [(each.state, each.found) for each in found]


def test_rights_are_reported_until_they_are_no_wider_than_needed(postgresql_url):
    Ledger(postgresql_url).open("visits", privacy_unit="patient", budget=Budget(epsilon=1, delta=1e-6))
    assert rights(postgresql_url) == [(State.OK, "nobody but the owner may write")]
    name = sa.make_url(postgresql_url).database + "_ben"
    run(postgresql_url, f"CREATE ROLE {name} LOGIN")
    run(postgresql_url, f"GRANT SELECT, INSERT, DELETE ON sfumato_journal TO {name}")
    run(postgresql_url, "GRANT UPDATE ON sfumato_schema TO PUBLIC")
    wide = [
        (State.WARNING, "everyone has the right UPDATE on sfumato_schema, which no role of a team needs"),
        (State.WARNING, f"{name} has the right DELETE on sfumato_journal, which no role of a team needs"),
    ]
    unpinned = (State.WARNING, f"{name}: each may open accounts, grant budget and sign with any name")
    assert rights(postgresql_url) == [*wide, unpinned]
    run(postgresql_url, role_rights(charging=[name]))
    assert rights(postgresql_url) == wide[1:]
    run(postgresql_url, f"REVOKE DELETE ON sfumato_journal FROM {name}")
    good = (State.OK, "roles of the team sign with their own names")
    assert rights(postgresql_url) == [good]
    as_ben = sa.make_url(postgresql_url).set(username=name).render_as_string(hide_password=False)
    assert rights(as_ben) == [good]  # whoever asks: the catalog is readable for all
    for undo in (
        "DROP POLICY sfumato_move ON sfumato_head",
        "ALTER TABLE sfumato_journal DISABLE ROW LEVEL SECURITY",
    ):
        run(postgresql_url, role_rights(charging=[name]))
        run(postgresql_url, undo)
        assert rights(postgresql_url) == [unpinned]
