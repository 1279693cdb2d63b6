# SPDX-License-Identifier: Apache-2.0
"""The errors of sfumato.

Each is a `SfumatoError` and also the builtin error that a caller would expect, so that both `except
SfumatoError` and `except ValueError` work. Messages say what is wrong and what to do. They show parameters,
never data.
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
    """Base class of all errors that sfumato raises on purpose."""


class InvalidParameterError(SfumatoError, ValueError):
    """A parameter is out of range. Nothing was computed or spent."""


class ColumnTypeError(InvalidParameterError):
    """A statistic does not fit the type of a column. Nothing was computed or spent.

    `in_options` is the same message with the names of command-line options, if they differ.
    """

    in_options: str | None = None


class RelationMismatchError(InvalidParameterError):
    """A release is stated for another neighboring relation than that of the account it is charged to."""


class UnsupportedEventError(SfumatoError, TypeError):
    """An accountant cannot price an event. Its state is unchanged."""


class UnsupportedModelError(SfumatoError, TypeError):
    """A model has a layer that mixes the examples of a batch, or an operation that cannot be made private."""


class UnsupportedUseError(UnsupportedModelError):
    """A parameter is used by an operation that the chosen gradient engine has no rule for."""


class NotPrivateError(UnsupportedModelError):
    """A model does something that cannot be private with any engine, so no other engine is tried."""


class MissingDependencyError(SfumatoError, ImportError):
    """A package that only some installs have is needed. The message names the extra that brings it."""


class CalibrationError(SfumatoError, ValueError):
    """No value of the free parameter meets the budget."""


class QueryFailedError(SfumatoError, RuntimeError):
    """Private data could not be read or computed on. The cost of the release stays spent."""


class BudgetExceededError(SfumatoError, RuntimeError):
    """A release would cost more than the remaining budget. The data was not read."""


class LedgerError(SfumatoError, RuntimeError):
    """A ledger cannot do what was requested."""


class ClaimedElsewhereError(LedgerError):
    """A release that was begun here continues elsewhere: one charge has one result."""


class LedgerCorruptError(LedgerError):
    """A ledger file is damaged, or its chain of hashes does not hold."""


class LedgerVersionError(LedgerError):
    """A ledger was written by a newer sfumato."""


class LedgerReadOnlyError(LedgerError, PermissionError):
    """A ledger is in a place that cannot be written."""
