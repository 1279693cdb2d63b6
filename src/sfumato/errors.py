# SPDX-License-Identifier: Apache-2.0
"""Every error sfumato raises on purpose.

Each is a `SfumatoError` and also the builtin error a caller would expect, so that both `except SfumatoError`
and `except ValueError` work. Messages say what was wrong, what was given and what to do next; they echo
parameters, never data.
"""

__all__ = [
    "BudgetExceededError",
    "CalibrationError",
    "ClaimedElsewhereError",
    "ColumnTypeError",
    "InvalidParameterError",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerReadOnlyError",
    "LedgerVersionError",
    "MissingDependencyError",
    "NotPrivateError",
    "QueryFailedError",
    "RelationMismatchError",
    "SfumatoError",
    "UnsupportedEventError",
    "UnsupportedModelError",
    "UnsupportedUseError",
]


class SfumatoError(Exception):
    """Base class of all errors raised on purpose by sfumato."""


class InvalidParameterError(SfumatoError, ValueError):
    """A parameter is outside the values that make sense; nothing was computed or spent."""


class ColumnTypeError(InvalidParameterError):
    """A question does not fit the type of a column; nothing was computed or spent.

    `in_options` is the same message in the words of the command line, where they differ.
    """

    in_options: str | None = None


class RelationMismatchError(InvalidParameterError):
    """A release is stated for another neighboring relation than the account it should be charged to."""


class UnsupportedEventError(SfumatoError, TypeError):
    """An accountant was given an event that it cannot price; its state is unchanged."""


class UnsupportedModelError(SfumatoError, TypeError):
    """A model has a layer that mixes the examples of a batch, or an operation that cannot be made private."""


class UnsupportedUseError(UnsupportedModelError):
    """A parameter is used by an operation that the chosen gradient engine has no rule for."""


class NotPrivateError(UnsupportedModelError):
    """What a model does cannot be private. No engine changes that, so none is tried in its place."""


class MissingDependencyError(SfumatoError, ImportError):
    """A package that only some installs have is needed. The message names the extra that brings it."""


class CalibrationError(SfumatoError, ValueError):
    """No value of the free parameter meets the budget."""


class QueryFailedError(SfumatoError, RuntimeError):
    """Private data could not be read or computed on; what the release cost stays spent."""


class BudgetExceededError(SfumatoError, RuntimeError):
    """A release would cost more than the budget has left; the data was not touched."""


class LedgerError(SfumatoError, RuntimeError):
    """A ledger cannot be used as asked."""


class ClaimedElsewhereError(LedgerError):
    """A release that was begun here goes on elsewhere: one charge has one result."""


class LedgerCorruptError(LedgerError):
    """A ledger file is damaged, or its chain of hashes does not hold."""


class LedgerVersionError(LedgerError):
    """A ledger was written by a newer sfumato."""


class LedgerReadOnlyError(LedgerError, PermissionError):
    """A ledger lies where it cannot be written."""
