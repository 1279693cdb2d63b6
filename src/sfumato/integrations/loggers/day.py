# SPDX-License-Identifier: Apache-2.0
"""The one time that loggers write: the beginning of a day.

How long a step takes depends on private rows (docs/sharp-edges.md, "Time"). Stores of figures have a place
for the time of each figure, which cannot be left empty, so all figures of a run get the same one.
"""

from datetime import UTC, datetime

from sfumato._extras import how_to_install
from sfumato.errors import MissingDependencyError

__all__ = ["begin_of_day", "missing"]


def begin_of_day() -> int:
    """Return the seconds from 1970 to the beginning of this day, in universal time.

    >>> begin_of_day() % 86_400
    0
    """
    return int(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp())


def missing(package: str, name: str) -> MissingDependencyError:
    """Return the error for a package that is not installed."""
    return MissingDependencyError(f"{name} needs the package {package}. {how_to_install('loggers')}")
