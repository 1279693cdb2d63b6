# SPDX-License-Identifier: Apache-2.0
"""How private data show themselves in a notebook: unit, budget and releases; no row, and no count of rows."""

from typing import TYPE_CHECKING

from sfumato.ledger.views import account_view

if TYPE_CHECKING:
    from sfumato.private.private_data import PrivateData

__all__ = ["data_view"]


def data_view(data: "PrivateData") -> str:
    """Return the account of private data, which is all that may be seen of them."""
    return account_view(data.account, title=f"Private data {data.account.name}")
