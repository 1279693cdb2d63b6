# SPDX-License-Identifier: Apache-2.0
"""Options that are given twice, although a command takes them once: the first one would be ignored."""

from collections.abc import Sequence
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["require_once"]


def require_once(root: Any, words: Sequence[str]) -> None:
    """Raise if a line has an option twice that is no list.

    Args:
        root: The command of all commands.
        words: The words of the line.

    Raises:
        InvalidParameterError: If an option is repeated.
    """
    command, line = root, list(words)
    line = line[: line.index("--")] if "--" in line else line
    for word in line:
        command = getattr(command, "commands", {}).get(word, command)
    given = [word.partition("=")[0] for word in line if word.startswith("--")]
    for parameter in command.params:
        several = getattr(parameter, "multiple", False) or getattr(parameter, "count", False)
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        if not several and sum(given.count(flag) for flag in flags) > 1:
            raise InvalidParameterError(f"{flags[0]} was given twice, and counts once. Pass it once.")
