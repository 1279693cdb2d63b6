# SPDX-License-Identifier: Apache-2.0
"""A table of usual rows and extreme ones, opened in the three ways that questions need."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table

from .engines import Engine
from .kinds import Kind

__all__ = ["ROWS", "Table", "made"]

ROWS = 48
_OTHERS = 1000  # who owns extreme rows


@dataclass
class Table:
    """A source of rows with a number of who owns them, a text k, a float x and a value v of some type."""

    kind: Kind
    source: Any

    @cached_property
    def rows(self) -> PrivateTable:
        """Each row is a unit."""
        return private_table(self.source)

    @cached_property
    def owned(self) -> PrivateTable:
        """A number says whose a row is."""
        return private_table(self.source, privacy_unit="who", contribution_bound=2)

    @cached_property
    def by_value(self) -> PrivateTable:
        """The value itself says whose a row is."""
        return private_table(self.source, privacy_unit="v", contribution_bound=2)


def made(
    engine: Engine, kind: Kind, extreme: Sequence[Any] = (), *, usual: int = ROWS, copies: int = 1
) -> Table:
    """Return a table of so many usual rows, and of extreme ones: each value in so many, of a unit each."""
    rows = [(i // 2, f"k{i % 3}", i % 5, kind.usual[i % len(kind.usual)]) for i in range(usual)]
    strange = [value for value in extreme for _ in range(copies)]
    rows += [(_OTHERS + i, "k0", 1, value) for i, value in enumerate(strange)]
    return Table(kind, engine.source(kind, rows))
