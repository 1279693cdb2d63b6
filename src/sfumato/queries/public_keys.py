# SPDX-License-Identifier: Apache-2.0
"""Public keys as callers pass them: lists, domains of columns, or anything that can be read once."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, cast

from sfumato.errors import InvalidParameterError

__all__ = ["MOST_KEYS", "listed", "require_few"]

MOST_KEYS = 100_000


def listed(keys: Any) -> list[Any] | dict[str, list[Any]]:
    """Return keys that can be read more than once. Refuses what cannot be read, a text, and too many keys."""
    if isinstance(keys, Mapping):
        domains = cast(Mapping[str, Any], keys)
        return {name: _listed(domain) for name, domain in domains.items()}
    return _listed(keys)


def _listed(keys: Any) -> list[Any]:
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InvalidParameterError("keys must be a list of keys, as in keys=['Rome', 'Oslo'].")
    sized = len(cast(Any, keys)) if hasattr(keys, "__len__") else 0
    require_few(sized)
    found = list(itertools.islice(cast(Iterable[Any], keys), MOST_KEYS + 1))
    require_few(len(found))
    return found


def require_few(count: int) -> None:
    """Refuse more keys than one query answers."""
    if count > MOST_KEYS:
        raise InvalidParameterError(
            f"{count} keys were given, and at most {MOST_KEYS} are answered by one query: noise would hide "
            "groups that small. Use fewer or coarser keys, or keys=Discovered()."
        )
