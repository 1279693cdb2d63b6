# SPDX-License-Identifier: Apache-2.0
"""Rights in a PostgreSQL ledger that are wider than a team needs; read from the catalog, nothing is tried.

Not here  Superusers, the owner of the tables and members of their roles: no right binds them.
"""

from collections.abc import Iterator

from sfumato.cli.doctor.findings import Finding, State

__all__ = ["check_rights"]

AREA = "ledger"
# One row for each right that was given to a role other than the owner; the role 0 is everyone.
_GIVEN = """
SELECT c.relname, a.privilege_type, COALESCE(r.rolname, 'everyone')
FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE c.oid IN (to_regclass('sfumato_journal'), to_regclass('sfumato_head'), to_regclass('sfumato_schema'))
  AND a.grantee <> c.relowner
"""
_POLICIES = """
SELECT COUNT(*) FROM pg_class c JOIN pg_policy p ON p.polrelid = c.oid WHERE c.relrowsecurity AND (
  c.oid = to_regclass('sfumato_journal')
    AND p.polname IN ('sfumato_signed_by_the_role', 'sfumato_follows_the_last_row') AND NOT p.polpermissive
  OR c.oid = to_regclass('sfumato_head') AND p.polname = 'sfumato_move')
"""
_NEEDED = {
    "sfumato_journal": {"SELECT", "INSERT"},
    "sfumato_head": {"SELECT", "UPDATE"},
    "sfumato_schema": {"SELECT"},
}
_ADVICE = "Its owner runs what `sfumato ledger roles` prints for the roles of the team."


def check_rights(location: str) -> Iterator[Finding]:
    """Yield what is found about the rights of roles in a ledger.

    Args:
        location: The address of the ledger, which opens.

    Yields:
        Findings; one that all is well, if no right is too wide.
    """
    from sfumato.ledger import backends  # brings the database

    with backends.find(location).reading() as connection:
        given = [tuple(map(str, row)) for row in connection.exec_driver_sql(_GIVEN)]
        pinned = connection.exec_driver_sql(_POLICIES).scalar_one() == 3
    too_wide = sorted({(role, right, table) for table, right, role in given if right not in _NEEDED[table]})
    for role, right, table in too_wide:
        found = f"{role} has the right {right} on {table}, which no role of a team needs"
        yield Finding(area=AREA, name="rights", state=State.WARNING, found=found, advice=_ADVICE)
    writers = sorted(
        {role for table, right, role in given if (table, right) == ("sfumato_journal", "INSERT")}
    )
    if writers and not pinned:
        found = f"{', '.join(writers)}: each may open accounts, grant budget and sign with any name"
        yield Finding(area=AREA, name="rights", state=State.WARNING, found=found, advice=_ADVICE)
    elif not too_wide:
        found = "roles of the team sign with their own names" if writers else "nobody but the owner may write"
        yield Finding(area=AREA, name="rights", state=State.OK, found=found)
