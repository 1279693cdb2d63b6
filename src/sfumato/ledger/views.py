# SPDX-License-Identifier: Apache-2.0
"""How a ledger and its accounts show themselves in a notebook.

What is spent is a bar; releases are a table with a day and no time of day, and without the persons who signed
them, because notebooks are passed on.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfumato import _notebook
from sfumato.accounting.guarantee import round_up
from sfumato.ledger.cards import releases_table

if TYPE_CHECKING:
    from sfumato.ledger.account import Account

__all__ = ["account_view", "ledger_view"]


def account_view(account: "Account", *, title: str | None = None) -> str:
    """Return an account: its unit, its budget, what is spent, and its releases."""
    told, left = account.statement(), account.remaining()
    listed = releases_table(told.releases, told.costs)
    facts = {
        **told.guarantee.shown(),
        "spent": f"epsilon {round_up(told.spent_epsilon):g}",
        "largest next run": f"epsilon {-round_up(-left.run_epsilon):g}" if left.run_epsilon > 0 else None,
        "largest next release": f"epsilon {-round_up(-left.epsilon):g}",
    }
    return _notebook.panel(
        f"Account {account.name}" if title is None else title,
        _notebook.warning("At least one release is for study only.") if told.seeded else "",
        _notebook.facts(facts),
        _notebook.share(told.fraction, label=f"{round_up(100 * told.fraction, 3):g}% of the budget is used"),
        _notebook.rows(listed.heads, listed.rows) if listed.rows else _notebook.paragraph("No releases yet."),
        "" if told.recorded else _notebook.note("This ledger is temporary: it ends with this process."),
    )


def ledger_view(location: str, accounts: Sequence["Account"]) -> str:
    """Return the accounts of a ledger."""
    heads = ("account", "protected", "budget", "spent", "releases")
    return _notebook.panel(f"Ledger {location}", _notebook.rows(heads, map(_row, accounts)))


def _row(account: "Account") -> tuple[object, ...]:
    counted = sum(release.spent for release in account.releases())
    spent = f"epsilon {round_up(account.spent().epsilon):g}"
    return (account.name, f"one {account.privacy_unit}", account.budget, spent, counted)
