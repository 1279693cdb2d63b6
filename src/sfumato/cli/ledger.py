# SPDX-License-Identifier: Apache-2.0
"""The commands `sfumato ledger init|show|grant|verify|statement|roles`, and planning within an account."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato import _json
from sfumato.accounting import Guarantee, Plan, Relation, dp_sgd, plan
from sfumato.accounting.default_delta import delta_note
from sfumato.cli.completion_values import accounts
from sfumato.cli.help_pages import App
from sfumato.cli.options import Json, LedgerAt, Name, Relations
from sfumato.cli.project.defaults import charged_to, ledger_at
from sfumato.cli.show import show_facts, show_table, show_text, waiting
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account, Budget, Grant, ReleaseRecord, role_rights

if TYPE_CHECKING:
    from sfumato.ledger import Ledger

__all__ = ["app", "plan_within"]

_ANY_DELTA = 1e-6  # of a plan of which only the sizes are read

app = App(help="Keep the durable record of what was spent: accounts, budgets and releases.")


@app.command(
    epilog="sfumato ledger init credit --privacy-unit client_id --epsilon 3 --delta 1e-6 "
    "--relation add-remove"
)
def init(
    name: Name,
    *,
    privacy_unit: Annotated[
        str, typer.Option(help="Who is protected: the name of a column, or a word such as example.")
    ],
    epsilon: Annotated[float, typer.Option(help="The epsilon of the budget: the most that may be spent.")],
    delta: Annotated[float, typer.Option(help="The delta of the budget; 0 for pure differential privacy.")],
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger: LedgerAt = None,
    as_json: Json = False,
) -> None:
    """Open an account with a budget, in a new ledger or one that exists."""
    from sfumato.ledger import Ledger  # brings the database

    account = Ledger(ledger_at(ledger)).open(
        name,
        privacy_unit=privacy_unit,
        budget=Budget(epsilon=epsilon, delta=delta),
        relation=Relation.parse(relation),
    )
    note = delta_note(delta)
    facts = _account_facts(account) | ({} if note is None else {"notes": [note]})
    show_facts(f"Account {name!r}", facts, as_json=as_json)


@app.command(epilog="sfumato ledger show credit --json")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An account, to list its releases. Default: all accounts.", autocompletion=accounts
        ),
    ] = None,
    *,
    ledger: LedgerAt = None,
    as_json: Json = False,
) -> None:
    """Show the accounts of a ledger, or one account's releases."""
    book = _existing(ledger)
    if name is None:
        _show_accounts(book, as_json=as_json)
        return
    account = book.account(name)
    with waiting("Pricing"):
        releases, grants = _releases(account), account.grants()
    if as_json:
        listed = {"releases": releases, "grants": [asdict(grant) for grant in grants]}
        show_facts("", _account_facts(account) | listed, as_json=True)
        return
    show_facts(f"Account {name!r}", _account_facts(account), as_json=False)
    show_table("Releases", [_release_row(release) for release in releases])
    if grants:
        show_table("Grants", [_grant_row(grant) for grant in grants])


@app.command(
    epilog='sfumato ledger grant credit --epsilon 1 --delta 0 --reason "second study, approved by the board"'
)
def grant(
    name: Name,
    *,
    epsilon: Annotated[float, typer.Option(help="Added to the budget's epsilon.")] = 0.0,
    delta: Annotated[float, typer.Option(help="Added to the budget's delta.")] = 0.0,
    reason: Annotated[str, typer.Option(help="Why the budget is raised; the ledger keeps it.")],
    ledger: LedgerAt = None,
    as_json: Json = False,
) -> None:
    """Raise the budget of an account."""
    account = _existing(ledger).account(name)
    account.grant(epsilon=epsilon, delta=delta, reason=reason)
    show_facts(f"Account {name!r}", _account_facts(account), as_json=as_json)


@app.command(epilog="sfumato ledger verify --ledger ledger.db")
def verify(
    *,
    head: Annotated[
        str | None, typer.Option(help="COUNT:HASH as a statement printed it: all of it must still be there.")
    ] = None,
    ledger: LedgerAt = None,
    as_json: Json = False,
) -> None:
    """Check every row and the chain of hashes that ties them together."""
    book = _existing(ledger)
    with waiting("Reading every row"):
        found = book.verify(head=head)
    head = str(found.head)
    facts = {
        "holds": True,
        **({"head": head} if as_json else {}),
        "accounts": list(found.accounts),
        "overspent": list(found.overspent),
    }
    show_facts(f"Ledger {book.location}", facts, as_json=as_json)
    if not as_json:
        show_text(f"head {head}")  # outside of the table, which would break it in a narrow terminal


@app.command(epilog="sfumato ledger statement credit")
def statement(name: Name, *, ledger: LedgerAt = None, as_json: Json = False) -> None:
    """Write the paragraphs for an auditor."""
    account = _existing(ledger).account(name)
    with waiting("Writing"):
        written = account.statement()
    show_text(written.to_json() if as_json else written.text)


@app.command(epilog="sfumato ledger roles --charging ben --charging cleo --granting ada")
def roles(
    *,
    charging: Annotated[
        list[str] | None,
        typer.Option(
            help="A role of PostgreSQL that only charges; repeat for more.",
            metavar="ROLE",
            show_default=False,
        ),
    ] = None,
    granting: Annotated[
        list[str] | None,
        typer.Option(
            help="A role that also opens accounts and grants budget; repeat for more.",
            metavar="ROLE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the SQL that gives the roles of a team their rights in a PostgreSQL ledger."""
    show_text(role_rights(charging=charging or [], granting=granting or []).rstrip())


def plan_within(
    ledger: str | None, name: str | None, epsilon: float | None, delta: float | None, terms: dict[str, Any]
) -> Plan:
    """Find the least noise of a run that an account would still admit; its budget gives epsilon and delta."""
    ledger, name = charged_to(ledger, name)
    if ledger is None or name is None:
        raise InvalidParameterError("give both --ledger and --account to plan within an account, or neither.")
    if epsilon is not None or delta is not None or terms["noise_multiplier"] is not None:
        raise InvalidParameterError(
            "--ledger takes epsilon and delta from the account and finds the noise multiplier: "
            "leave out --epsilon, --delta and --noise-multiplier."
        )
    account = _existing(ledger).account(name)
    # A first plan without noise of its own reads the sizes; then the account's filter decides the noise.
    trial: dict[str, Any] = terms | {"noise_multiplier": 1.0}
    sizes = plan(delta=_ANY_DELTA, relation=account.relation, **trial)
    noise = account.calibrate(
        lambda s: dp_sgd(noise_multiplier=s, sampling_rate=sizes.sampling_rate, steps=sizes.steps)
    )
    return plan(
        delta=account.budget.delta,
        noise_multiplier=noise,
        sampling_rate=sizes.sampling_rate,
        steps=sizes.steps,
        relation=account.relation,
        given=account.event(),
    )


def _existing(location: str | None) -> "Ledger":
    """Open a ledger that exists: asking about one must not make one."""
    from sfumato.ledger import Ledger

    return Ledger(ledger_at(location), create=False)


def _account_facts(account: Account) -> dict[str, Any]:
    remaining = account.remaining()
    return {
        "account": account.name,
        "privacy_unit": account.privacy_unit,
        "relation": account.relation.value,
        "budget_epsilon": account.budget.epsilon,
        "budget_delta": account.budget.delta,
        "spent_epsilon": account.spent().epsilon,
        "largest_next_run_epsilon": remaining.run_epsilon,
        "largest_next_epsilon": remaining.epsilon,
        "releases": sum(release.spent for release in account.releases()),
    }


def _show_accounts(book: "Ledger", *, as_json: bool) -> None:
    accounts = [_account_facts(account) for account in book.accounts()]
    if as_json:
        show_text(_json.dumps(accounts))
        return
    shown = ("account", "privacy_unit", "budget_epsilon", "budget_delta", "spent_epsilon", "releases")
    rows = [{name: facts[name] for name in shown} for facts in accounts]
    show_table(f"Accounts of {book.location}", rows)


def _releases(account: Account) -> list[dict[str, Any]]:
    """Return the releases of an account, numbered as statements number them."""
    both = zip(account.releases(), account.costs(), strict=False)  # one more may have come in between
    return [_release_facts(number, *one) for number, one in enumerate(both, start=1)]


def _release_facts(number: int, release: ReleaseRecord, cost: Guarantee) -> dict[str, Any]:
    return {
        "number": number,
        "reservation": release.reservation,
        "reserved_at": release.reserved_at,
        "person": release.person,
        "purpose": release.purpose,
        "epsilon": cost.epsilon,
        "delta": cost.delta,
        "event": json.loads(release.event_json),
        "progress": release.progress.value,
        "seeded": release.seeded,
    }


def _release_row(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what of a release fits into a line; the rest is in the JSON and in the statement."""
    return {
        "number": facts["number"],
        "date": facts["reserved_at"][:10],
        "person": facts["person"],
        "purpose": facts["purpose"],
        "epsilon": facts["epsilon"],
        "delta": facts["delta"],
        "state": f"{facts['progress']}, for study only" if facts["seeded"] else facts["progress"],
    }


def _grant_row(grant: Grant) -> dict[str, Any]:
    return {
        "date": grant.written_at[:10],
        "person": grant.person,
        "reason": grant.reason,
        "epsilon": grant.epsilon,
        "delta": grant.delta,
    }
