# SPDX-License-Identifier: Apache-2.0
"""`sfumato.toml`, the settings of a project: which ledger, account, privacy unit and data commands use.

Failure    An unknown key is an error that names the nearest known one; so is a value of the wrong kind. A
           misspelled privacy setting is never ignored.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato import _check
from sfumato.cli.settings import checked
from sfumato.errors import InvalidParameterError

__all__ = ["FILE_NAME", "ProjectSettings", "read_settings"]

FILE_NAME = "sfumato.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSettings:
    """What the file says; None where it says nothing."""

    ledger: str | None = None  # a path, relative to the folder of the file, or an address
    account: str | None = None
    privacy_unit: str | None = None
    data: str | None = None  # the file to which types and bounds belong
    types: dict[str, Any] | None = None
    bounds: dict[str, Any] | None = None

    @property
    def type_options(self) -> list[str]:
        """The types as the option `--type` takes them."""
        return [f"{name}={kind}" for name, kind in (self.types or {}).items()]

    def bounds_of(self, column: str) -> tuple[float, float] | None:
        """Return the public bounds of a column, if the file has some."""
        found = (self.bounds or {}).get(column)
        return None if found is None else (float(found[0]), float(found[1]))


def read_settings(folder: str | Path = ".") -> ProjectSettings:
    """Return the settings of a folder; none if there is no file.

    Args:
        folder: The folder, without the folders above it.

    Returns:
        The settings.

    Raises:
        InvalidParameterError: If the file cannot be read, or something in it is wrong.
    """
    path = Path(folder) / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ProjectSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameterError(f"the file {str(path)!r} cannot be read: {error}.") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameterError(f"the file {str(path)!r} is not TOML: {error}.") from error
    settings = checked(found, str(path), ProjectSettings)
    _require_types(settings, str(path))
    _require_bounds(settings, str(path))
    return settings


def _require_types(settings: ProjectSettings, where: str) -> None:
    for name, kind in (settings.types or {}).items():
        if not isinstance(kind, str):
            raise InvalidParameterError(
                f'the type of column {name!r} in {where!r} must be a text such as "number", but {kind!r} was '
                "given."
            )


def _require_bounds(settings: ProjectSettings, where: str) -> None:
    for name, pair in (settings.bounds or {}).items():
        try:
            _check.bounds(bounds=pair)
        except InvalidParameterError:
            raise InvalidParameterError(
                f"the bounds of column {name!r} in {where!r} must be two numbers, [lower, upper], with the "
                f"lower one first, but {pair!r} was given."
            ) from None
