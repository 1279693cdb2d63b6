# SPDX-License-Identifier: Apache-2.0
"""The types of columns, as flags give them."""

from sfumato.errors import InvalidParameterError

__all__ = ["column_types"]


def column_types(given: list[str]) -> dict[str, str]:
    """Return types by column, from COLUMN=TYPE and from TOML files; what is said later holds."""
    from sfumato.statistics.sources.schema import read_types

    found: dict[str, str] = {}
    for each in given:
        name, equals, kind = each.rpartition("=")
        if not equals and not each.endswith(".toml"):
            raise InvalidParameterError(
                f"--type {each} declares nothing: give COLUMN=TYPE, such as --type age=number, or a file of "
                "types that ends in .toml."
            )
        found |= {name: kind} if equals else read_types(each)
    return found
