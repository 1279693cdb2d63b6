# SPDX-License-Identifier: Apache-2.0
"""One charge for each result, and a mark on noise that protects nobody: what a ledger must show.

Checks     `check_one_result`  of several attempts to finish what was charged once, one gives a result.
           `check_marked`      a release with noise that can be repeated or computed is marked in the ledger.
           Each raises `LeakError` where the record is wrong, for certain, without statistics.
Counted    Results that are equal are one result: the same weights twice tell no more than once.
Not here   Whether anything was read before it was paid for (`audit.mechanisms.payment_order`).
"""

from collections.abc import Callable, Sequence

from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import FastGenerator, Generator, SeededGenerator

__all__ = ["check_marked", "check_one_result"]


def check_one_result(attempts: Sequence[Callable[[], object]], account: Account) -> int:
    """Make all attempts; raise `LeakError` if they give more results than the account has releases.

    Return how many attempts gave a result. An attempt that raises a `SfumatoError` was refused. Results are
    compared by `==`. Use an account that holds nothing but what the attempts go on with.
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
        raise LeakError(f"{len(different)} different results were had for {charged} charge(s)")
    if not results:
        raise InvalidParameterError("every attempt was refused, so nothing was checked.")
    return len(results)


def check_marked(release: Callable[[Account, Generator], object], account: Account) -> int:
    """Release with noise that protects nobody; raise `LeakError` unless the ledger says so each time.

    Return how many releases were charged. `release(account, generator)` must draw its noise from the
    generator that it is given, and charge the account.

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
