# SPDX-License-Identifier: Apache-2.0
"""The YAML header of a model card: plain values, written so that YAML 1.1 and 1.2 read them alike.

Text is in double quotes, so that YAML reads it as text whatever it says. A float always has a point: YAML 1.1
reads 1e-05 as text.

Failure    A value that is neither text, a number, true, false, a list nor a mapping is refused.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sfumato import _json
from sfumato.errors import InvalidParameterError

__all__ = ["written"]


def written(values: Mapping[str, Any]) -> str:
    """Return named values as the header of a Markdown file.

    >>> print(written({"tags": ["a"], "privacy": {"delta": 1e-05}}), end="")
    ---
    tags:
    - "a"
    privacy:
      delta: 1.0e-05
    ---
    """
    return "\n".join(["---", *_lines(values, ""), "---", ""])


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{indent}{name}:"
            yield from (f"{indent}- {_scalar(each)}" for each in value)  # pyright: ignore[reportUnknownVariableType]
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{"".join(map(_written, _json.text(value)))}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    raise InvalidParameterError(f"the header of a card holds plain values, not a {type(value).__name__}.")


def _written(character: str) -> str:
    """Return a character as it stands between double quotes; YAML allows printable ones alone."""
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _float(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    said = repr(value)
    return said if "." in said else said.replace("e", ".0e")
