# SPDX-License-Identifier: Apache-2.0
"""The rights of a team in PostgreSQL, as SQL that the owner of the ledger's tables runs.

Guarantee  After the statements, PostgreSQL itself refuses what follows from every role that is neither the
           owner nor a superuser, whatever program it uses:
           a row that is signed with another name than the role it logged in with;
           a row that does not follow the last one, and a head that is not the last row;
           any row of a role that is not named;
           of a role that only charges: a row that opens an account or grants budget, and a begin, claim,
           commit or refund of a release that another role reserved.
Edge cases Roles may be groups: a right of a group is a right of its members. Who is in both lists may do
           both. Running newer statements replaces the lists of the older ones.
Not here   The owner and superusers, whom policies do not bind: they can change anything, and only a head that
           was noted elsewhere shows it. The price of a release: with SQL of its own, a role that charges can
           append a charge beyond the budget (`verify` names the account), or a row with a wrong hash, or hold
           the lock. The last two stop the ledger for everyone; none gives anyone more budget.
"""

from collections.abc import Iterable

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["role_rights"]

# `session_user` is who logged in; SET ROLE changes `current_user` alone.
_ONCE = """\
-- Run this as the owner of the tables, in one go; again, with all names, when the team changes.
BEGIN;

ALTER TABLE sfumato_journal ENABLE ROW LEVEL SECURITY;
ALTER TABLE sfumato_head ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS sfumato_read ON sfumato_journal;
DROP POLICY IF EXISTS sfumato_signed_by_the_role ON sfumato_journal;
DROP POLICY IF EXISTS sfumato_follows_the_last_row ON sfumato_journal;
DROP POLICY IF EXISTS sfumato_charge ON sfumato_journal;
DROP POLICY IF EXISTS sfumato_grant ON sfumato_journal;
DROP POLICY IF EXISTS sfumato_read ON sfumato_head;
DROP POLICY IF EXISTS sfumato_move ON sfumato_head;

-- Everyone whose rights allow it reads all rows: the chain of hashes is checked whole.
CREATE POLICY sfumato_read ON sfumato_journal FOR SELECT USING (true);
CREATE POLICY sfumato_read ON sfumato_head FOR SELECT USING (true);

-- Nobody signs with the name of another, or writes anywhere but at the end.
CREATE POLICY sfumato_signed_by_the_role ON sfumato_journal AS RESTRICTIVE FOR INSERT
  WITH CHECK (person = session_user::text);
CREATE POLICY sfumato_follows_the_last_row ON sfumato_journal AS RESTRICTIVE FOR INSERT
  WITH CHECK ((sequence, previous_hash) = (SELECT row_count + 1, row_hash FROM sfumato_head));
CREATE POLICY sfumato_move ON sfumato_head FOR UPDATE USING (true)
  WITH CHECK ((row_count, row_hash) =
    (SELECT sequence, row_hash FROM sfumato_journal ORDER BY sequence DESC LIMIT 1));
"""
_CHARGE = """
-- Who charges reserves, and goes on with what the same role reserved.
CREATE POLICY sfumato_charge ON sfumato_journal FOR INSERT TO {roles}
  WITH CHECK (kind = 'reserve' OR (kind IN ('begin', 'claim', 'commit', 'refund') AND EXISTS (
    SELECT 1 FROM sfumato_journal AS reserved
    WHERE reserved.sequence = sfumato_journal.reservation AND reserved.kind = 'reserve'
      AND reserved.account = sfumato_journal.account AND reserved.person = session_user::text)));
"""
_GRANT = """
-- Who grants may also open accounts, charge, and refund what others reserved and never began.
CREATE POLICY sfumato_grant ON sfumato_journal FOR INSERT TO {roles} WITH CHECK (true);
"""
_RIGHTS = """
REVOKE ALL ON sfumato_journal, sfumato_head, sfumato_schema FROM PUBLIC;
GRANT SELECT, INSERT ON sfumato_journal TO {roles};
GRANT SELECT, UPDATE ON sfumato_head TO {roles};
GRANT SELECT ON sfumato_schema TO {roles};

COMMIT;
"""


def role_rights(*, charging: Iterable[str], granting: Iterable[str] = ()) -> str:
    """Return the SQL that lets some roles of PostgreSQL charge, and others also open accounts and grant.

    Args:
        charging: The roles that only charge: they reserve, begin, commit and refund their own releases.
        granting: The roles that also open accounts, grant budget, and refund what others reserved. The owner
            of the tables needs no entry.

    Returns:
        The statements. The owner of the tables runs them.

    Raises:
        InvalidParameterError: If no role is named, or a name cannot be one of PostgreSQL.

    >>> print(role_rights(charging=["ben", "cleo"]).splitlines()[-4])
    GRANT SELECT, UPDATE ON sfumato_head TO "ben", "cleo";
    """
    lists = {"charging": _quoted(charging), "granting": _quoted(granting)}
    named = list(dict.fromkeys([*lists["charging"], *lists["granting"]]))
    if not named:
        raise InvalidParameterError("no role was given. Name at least one that charges or grants.")
    return "".join(
        [
            _ONCE,
            _CHARGE.format(roles=", ".join(lists["charging"])) if lists["charging"] else "",
            _GRANT.format(roles=", ".join(lists["granting"])) if lists["granting"] else "",
            _RIGHTS.format(roles=", ".join(named)),
        ]
    )


def _quoted(roles: Iterable[str]) -> list[str]:
    """Return names as SQL has them, in which no name can be anything but a name."""
    if isinstance(roles, str):
        raise InvalidParameterError(
            f"roles must be a list of names, but {roles!r} was given. Put it in a list."
        )
    quoted: list[str] = []
    for role in roles:
        _check.text(role=role)
        if "\0" in role or len(role.encode()) > _LONGEST:
            raise InvalidParameterError(
                f"a role of PostgreSQL has a name of at most {_LONGEST} bytes without NUL, but {role!a} was "
                "given."
            )
        quoted.append('"' + role.replace('"', '""') + '"')
    return quoted


_LONGEST = 63  # bytes: PostgreSQL cuts longer names off, and a name that is cut off is another one
