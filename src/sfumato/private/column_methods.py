# SPDX-License-Identifier: Apache-2.0
"""Methods of `PrivateData` made from functions of `statistics`: a column's name takes the place of values."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from sfumato.private.private_data import PrivateData

__all__ = ["of_categories", "of_column", "of_rows"]

Arguments = ParamSpec("Arguments")
Answered = TypeVar("Answered")


def of_column(
    function: Callable[Concatenate[Any, Arguments], Answered],
) -> Callable[Concatenate["PrivateData", str, Arguments], Answered]:
    """Return a method that asks a function of `statistics` about a column of numbers."""

    @wraps(function)
    def method(
        self: "PrivateData", column: str, *args: Arguments.args, **terms: Arguments.kwargs
    ) -> Answered:
        return function(self.table[column], *args, **terms, **self.charged())  # type: ignore[arg-type]

    return method


def of_categories(
    function: Callable[Concatenate[Any, Arguments], Answered],
) -> Callable[Concatenate["PrivateData", str, Arguments], Answered]:
    """Return a method that asks a function of `statistics` about a column of categories."""

    @wraps(function)
    def method(
        self: "PrivateData", column: str, *args: Arguments.args, **terms: Arguments.kwargs
    ) -> Answered:
        return function(self.table.categories(column), *args, **terms, **self.charged())  # type: ignore[arg-type]

    return method


def of_rows(
    function: Callable[Concatenate[Any, Arguments], Answered],
) -> Callable[Concatenate["PrivateData", Sequence[str], Arguments], Answered]:
    """Return a method that asks a function of `statistics` about several columns."""

    @wraps(function)
    def method(
        self: "PrivateData", columns: Sequence[str], *args: Arguments.args, **terms: Arguments.kwargs
    ) -> Answered:
        return function(self.table.rows(*columns), *args, **terms, **self.charged())  # type: ignore[arg-type]

    return method
