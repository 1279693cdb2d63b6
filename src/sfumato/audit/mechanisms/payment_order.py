# SPDX-License-Identifier: Apache-2.0
"""Checks that data is read only after it was charged, and that charges are never undone, on a real ledger.

- `check_paid_first`: no row is read before a release of the account has begun; also if the account refuses
  the release, or the release fails.
- `check_stays_spent`: a release that fails while it reads data stays charged.
- `check_never_exceeds`: an account that is used until it refuses has admitted no more than its budget,
  counted here and not by the account itself.

Each raises `LeakError` if the order is broken. The checks are exact, without statistics. Only a release that
the code under test begins, and that is open when data is read, covers the read: neither what the account
held before, nor what was charged and finished for something else. What was admitted must fit the budget by
simple addition or, if the budget has a delta, by the tightest accountant there is (`accounting.price`).

Data is wrapped (`Watched`): every attribute, call, item, length, iteration or array of it counts as a read,
except for public names. At each read the ledger itself is queried, so it does not matter how the code under
test keeps its records.

Failure    Messages name attributes that were read, never their contents.
Not here   What the release computes (`replay`), and whether its noise is enough (`mechanism_attack`).
"""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting import composition
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.errors import BudgetExceededError, InvalidParameterError, UnsupportedEventError
from sfumato.ledger.account import Account
from sfumato.ledger.charge import Mechanism
from sfumato.ledger.state import Progress

__all__ = ["Watched", "check_never_exceeds", "check_paid_first", "check_stays_spent"]

Release = Callable[[Any, Account], object]  # watched data and account to what leaves

_PUBLIC = frozenset(
    {"name", "names", "privacy_unit", "contribution_bound", "schema"}
)  # of columns and tables
_SLACK = 1 + 1e-9  # of a budget: sums are rounded
_MOST = 10_000  # releases that an account is asked for


class _BrokenDataError(Exception):
    """Raised by data that is meant to fail when it is read."""


class Watched:
    """Private data that reports every read before it happens.

    >>> seen = []
    >>> column = Watched([1.0, 2.0], seen.append, public=("name",))
    >>> len(column), column[0], seen
    (2, 1.0, ['__len__', '__getitem__'])
    """

    def __init__(
        self, data: Any, on_read: Callable[[str], None], *, public: Collection[str] = _PUBLIC
    ) -> None:
        self._data, self._on_read, self._public = data, on_read, frozenset(public)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._data, name)  # what the data has not, it has not here either
        if name in self._public:
            return found
        if callable(found):  # to ask whether there is a method is no read, to call it is one

            def call(*given: Any, **named: Any) -> Any:
                self._on_read(name)
                return found(*given, **named)

            return call
        self._on_read(name)
        return found

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._on_read("__call__")
        return self._data(*given, **named)

    def __len__(self) -> int:
        self._on_read("__len__")
        return len(self._data)

    def __getitem__(self, place: Any) -> Any:
        self._on_read("__getitem__")
        return self._data[place]

    def __iter__(self) -> Iterator[Any]:
        self._on_read("__iter__")
        return iter(self._data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._on_read("__array__")
        return np.array(self._data, dtype=dtype)


def check_paid_first(
    release: Release, data: Any, account: Account, *, public: Collection[str] = _PUBLIC
) -> int:
    """Check that data is read only while a release of its own has begun.

    Use an account that can pay, and then one that cannot: a release that is refused must not have read data.
    Other errors of the release are raised unchanged, unless data was read without a charge before.

    Args:
        release: Called as `release(data, account)`. It must compute from that data and charge that account.
        data: The data.
        account: The account to charge.
        public: The names of attributes that are public and may be read at any time.

    Returns:
        The number of reads.

    Raises:
        LeakError: If data was read without a charge.
        InvalidParameterError: If nothing was read, so that nothing was checked.

    >>> import tempfile
    >>> from sfumato import Budget, Ledger
    >>> from sfumato.statistics import count
    >>> from sfumato.statistics.columns.columns import column_of
    >>> budget = Budget(epsilon=1, delta=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     account = Ledger(f"{folder}/a.db").open("a", privacy_unit="row", budget=budget)
    ...     check_paid_first(lambda data, account: count(data, epsilon=0.5, account=account),
    ...                      column_of([1.0, 2.0]), account)
    1
    """
    paid, unpaid = list[str](), list[str]()
    before = _numbers(account)

    def on_read(name: str) -> None:  # recorded, as an error raised here could be caught by the release
        (paid if _begun(account, before) else unpaid).append(name)

    failed: Exception | None = None
    try:
        release(Watched(data, on_read, public=public), account)
    except Exception as error:
        failed = error
    if unpaid:
        raise LeakError(
            f"data was read ({unpaid[0]}) although nothing was charged for it and begun"
        ) from failed
    refused = isinstance(failed, BudgetExceededError)
    if failed is not None and not refused:
        raise failed
    if not (paid or refused):
        raise InvalidParameterError(
            "the release read nothing of the data it was given, so nothing was checked. Let it compute from "
            "the data that it is passed."
        )
    return len(paid)


def check_stays_spent(
    release: Release, data: Any, account: Account, *, public: Collection[str] = _PUBLIC
) -> None:
    """Check that a release that fails while it reads data stays charged.

    The charge must be that of the releases that had begun when data was read; another one does not count.

    Args:
        release: Called as `release(data, account)`. It must compute from that data and charge that account.
        data: The data.
        account: The account to charge.
        public: The names of attributes that are public and may be read at any time.

    Raises:
        LeakError: If the failed release is not charged.
        InvalidParameterError: If nothing was read, so that nothing was checked.
    """
    before = _numbers(account)
    paying: list[set[int]] = []  # at each read, what was begun

    def on_read(name: str) -> None:
        paying.append(_begun(account, before))
        raise _BrokenDataError("for an audit: this data cannot be read")

    try:
        release(Watched(data, on_read, public=public), account)
    except Exception as error:  # whatever a failed read becomes on its way out
        _require_touched(bool(paying), error)
    _require_touched(bool(paying), None)
    spent = {one.reservation for one in account.releases() if one.spent}
    if not all(begun and begun <= spent for begun in paying):
        raise LeakError(
            "a release that failed after data was read is not charged: it was given back, was never begun "
            "so that it can be, or was free"
        )


def check_never_exceeds(
    account: Account, mechanism: Mechanism | DpEvent, *, relation: Any = None, most: int = _MOST
) -> int:
    """Use an account until it refuses, and check that it admitted no more than its budget.

    Releases are left at every stage: reserved, begun, committed. The account spends everything it has: open
    one for this.

    Args:
        account: The account. Its budget is used up.
        mechanism: What each release is charged for.
        relation: The relation of the mechanism, if it is an event.
        most: The largest number of releases to try.

    Returns:
        The number of releases that were admitted.

    Raises:
        LeakError: If all releases together exceed the budget.
        InvalidParameterError: If the first release was refused, or the budget was not used up.
    """
    _check.count(most=most)
    event = mechanism if isinstance(mechanism, DpEvent) else mechanism.event()
    before = [one.event for one in account.releases() if one.spent]
    admitted = 0
    try:
        while admitted < most:
            reservation = account.reserve(mechanism, purpose="audit of the budget", relation=relation)
            admitted += 1
            if admitted % 3:
                reservation.begin()
            if admitted % 3 == 2:
                reservation.commit()
            _require_within(compose(*before, dp.SelfComposedDpEvent(event, admitted)), account)
    except BudgetExceededError:
        if admitted:
            return admitted
        raise InvalidParameterError(
            "the first release was refused, so nothing was checked. Use a cheaper mechanism."
        ) from None
    raise InvalidParameterError(
        f"{most} releases did not use up the budget. Use a more expensive mechanism, or pass a larger `most`."
    )


def _require_within(whole: DpEvent, account: Account) -> None:
    budget, relation = account.budget, account.relation
    spent = _by_sum(whole, delta=budget.delta, relation=relation)
    if spent > budget.epsilon * _SLACK and budget.delta > 0:  # then the sum is not all that may admit
        spent = min(spent, price(whole, delta=budget.delta, relation=relation).epsilon)
    if not spent <= budget.epsilon * _SLACK:
        raise LeakError(
            f"releases of epsilon {spent:g} together were admitted to a budget of {budget.epsilon:g}"
        )


def _by_sum(whole: DpEvent, *, delta: float, relation: Relation) -> float:
    """Return the epsilon by simple addition; infinite if a part has none, such as Gaussian noise."""
    try:
        return composition.basic_epsilon(whole, delta=delta, relation=relation)
    except UnsupportedEventError:
        return math.inf


def _require_touched(touched: bool, error: Exception | None) -> None:
    if not touched:
        raise InvalidParameterError(
            "the release ended before it read the data it was given, so nothing was checked. Give it an "
            "account that can pay, and let it compute from the data that it is passed."
        ) from error


def _numbers(account: Account) -> set[int]:
    return {one.reservation for one in account.releases()}


def _begun(account: Account, before: Collection[int]) -> set[int]:
    """Return the releases that have begun and are not finished, except those that were there before."""
    begun = (one.reservation for one in account.releases() if one.progress is Progress.BEGUN)
    return {number for number in begun if number not in before}
