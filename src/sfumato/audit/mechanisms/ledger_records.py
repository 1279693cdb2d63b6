# SPDX-License-Identifier: Apache-2.0
"""Checks of the records of a ledger: a charge for each result, marks on weak noise, and what is stated of it.

- `check_one_result`: of several attempts to finish what was charged once, only one gives a result.
- `check_marked`: a release whose noise can be repeated or computed is marked in the ledger.
- `check_stated`: a guarantee is no better than what the account was charged for it.

Each raises `LeakError` if the record is wrong. The checks are exact, without statistics. Results that are
equal count as one result: the same weights twice reveal no more than once.

Not here   Whether anything was read before it was charged (`audit.mechanisms.payment_order`).
"""

from collections.abc import Callable, Sequence

from sfumato.accounting import composition
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import FastGenerator, Generator, SeededGenerator

__all__ = ["check_marked", "check_one_result", "check_stated"]

_SLACK = 1e-3  # relative: accountants round


def check_one_result(attempts: Sequence[Callable[[], object]], account: Account) -> int:
    """Check that attempts give no more different results than the account has releases.

    An attempt that raises a `SfumatoError` was refused. Results are compared by `==`.

    Args:
        attempts: Functions without arguments, each of which tries to get a result.
        account: The account that is charged. It must hold only the releases of these attempts.

    Returns:
        The number of attempts that gave a result.

    Raises:
        LeakError: If there are more different results than charges.
        InvalidParameterError: If every attempt was refused, so that nothing was checked.
    """
    results = list[object]()
    for attempt in attempts:
        try:
            results.append(attempt())
        except SfumatoError:
            continue
    charged = sum(release.spent for release in account.releases())
    different = [result for place, result in enumerate(results) if result not in results[:place]]
    if len(different) > charged:
        raise LeakError(f"{len(different)} different results were released for {charged} charge(s)")
    if not results:
        raise InvalidParameterError("every attempt was refused, so nothing was checked.")
    return len(results)


def check_marked(release: Callable[[Account, Generator], object], account: Account) -> int:
    """Check that releases with noise that does not protect are marked in the ledger.

    Args:
        release: Called as `release(account, generator)`. It must draw its noise from that generator and
            charge the account.
        account: An account that can pay for three releases.

    Returns:
        The number of releases that were charged.

    Raises:
        LeakError: If a release with seeded or non-cryptographic noise is not marked.
        InvalidParameterError: If nothing was charged, so that nothing was checked.

    >>> import tempfile
    >>> from sfumato import Budget, Ledger
    >>> from sfumato.statistics import count
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget(epsilon=9, delta=0)
    ...     account = Ledger(f"{folder}/a.db").open("a", privacy_unit="row", budget=budget)
    ...     check_marked(lambda a, g: count([1.0], epsilon=0.5, account=a, generator=g), account)
    3
    """
    before = {one.reservation for one in account.releases()}
    for generator in (FastGenerator(), FastGenerator(0), SeededGenerator(0)):
        release(account, generator)
    charged = [one for one in account.releases() if one.reservation not in before]
    if not charged:
        raise InvalidParameterError("nothing was charged, so nothing was checked. Charge the account given.")
    if not all(one.seeded for one in charged):
        raise LeakError("a release whose noise was seeded, or not cryptographic, is not marked in the ledger")
    return len(charged)


def check_stated(guarantee: Guarantee, account: Account) -> float:
    """Check that what is stated of a result is no better than what was charged for it.

    Args:
        guarantee: What the result states.
        account: The account that was charged. It must hold only the releases of this result.

    Returns:
        The epsilon of all charges together, at the delta of the guarantee.

    Raises:
        LeakError: If the charges cost more than the guarantee says, or it names another relation or unit.
        InvalidParameterError: If nothing was charged, so that nothing was checked.

    >>> import tempfile
    >>> from sfumato import Budget, Ledger
    >>> from sfumato.statistics import count
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget(epsilon=9, delta=0)
    ...     account = Ledger(f"{folder}/a.db").open("a", privacy_unit="row", budget=budget)
    ...     found = count([1.0], epsilon=0.5, account=account)
    ...     round(check_stated(found.guarantee, account), 6)
    0.5
    """
    charged = [one.event for one in account.releases() if one.spent]
    if not charged:
        raise InvalidParameterError("nothing was charged, so nothing was checked. Charge the account given.")
    named = (guarantee.relation, guarantee.privacy_unit)
    if named != (account.relation, account.privacy_unit):
        raise LeakError("the guarantee names another relation or privacy unit than the account that paid")
    spent = _epsilon(compose(*charged), guarantee)
    if not spent <= guarantee.epsilon * (1 + _SLACK):
        raise LeakError(f"epsilon {spent:g} was charged, but {guarantee.epsilon:g} is stated")
    return spent


def _epsilon(whole: DpEvent, guarantee: Guarantee) -> float:
    if guarantee.delta == 0:
        return composition.basic_epsilon(whole, delta=0.0, relation=guarantee.relation)
    return price(whole, delta=guarantee.delta, relation=guarantee.relation).epsilon
