# SPDX-License-Identifier: Apache-2.0
"""Whether the address of a ledger has a password, which no file of a project may hold."""

import re

__all__ = ["has_password"]

_BEFORE_HOST = re.compile(r"^[\w+.-]+://[^/?#]*:[^/?#]+@")  # scheme://user:password@
_IN_QUERY = re.compile(r"[?&](?:pass\w*|pwd)=", re.IGNORECASE)


def has_password(address: str) -> bool:
    """Return whether an address has a password.

    Args:
        address: The address.

    Returns:
        Whether it has one; a doubt counts as yes.

    >>> has_password("postgresql://ann@host/db"), has_password("postgresql://ann:secret@host/db")
    (False, True)
    """
    return bool(_BEFORE_HOST.search(address) or _IN_QUERY.search(address) or address.count("@") > 1)
