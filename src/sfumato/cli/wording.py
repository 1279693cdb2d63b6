# SPDX-License-Identifier: Apache-2.0
"""Errors of the library with the options of the command line in place of Python's arguments.

`clip_norm must be` becomes `--clip-norm must be`, and `delta=...` becomes `--delta ...`, if the command has
such an option. Quoted names are columns, accounts or files of the user, and stay as they are.

Not here   Other changes of a message. A command that needs other advice than Python gives it itself, before
           it calls the library.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

__all__ = ["in_options", "options_of"]

# Arguments of Python whose option has another name.
_OTHERS = {
    "classes": "label",
    "edges": "edge",
    "categories": "category",
    "qs": "q",
    "features": "feature",
    "types": "type",
    "expected_cohort_size": "cohort",
    "quantile": "adaptive-quantile",
}
_PHRASES = {"table=...": "#TABLE behind its address"}  # advice that has no option
_TYPES = re.compile(r"types=\{'[^']*': '[^']*'(?:, '[^']*': '[^']*')*\}")
# Arguments of `sfumato sql` with a name in them.
_NAMED = {
    "bounds": (re.compile(r"bounds=\{'([^']*)': \(lower, upper\)\}"), "{0}=LOWER,UPPER"),
    "tables": (re.compile(r"tables=\{'([^']*)': frame\}"), "{0}={0}.csv"),
}
_QUOTED = re.compile(r"""('[^']*'|"[^"]*"|`[^`]*`)""")


def options_of(root: Any, words: Sequence[str]) -> dict[str, str]:
    """Return the options of the command that a line begins with, by the names of Python's arguments."""
    command = root
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    named = {
        parameter.name: next(flag for flag in parameter.opts if flag.startswith("--"))
        for parameter in command.params
        if any(flag.startswith("--") for flag in parameter.opts)
    }
    flags = set(named.values())
    others = {name: f"--{option}" for name, option in _OTHERS.items() if f"--{option}" in flags}
    return {name: flag for name, flag in named.items() if name != "help"} | others


def in_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message with the options of a command in place of arguments.

    >>> in_options("clip_norm must be above 0.", {"clip_norm": "--clip-norm"})
    '--clip-norm must be above 0.'
    >>> in_options("there is no column 'clip_norm'. Give delta=...", {"delta": "--delta"})
    "there is no column 'clip_norm'. Give --delta ..."
    >>> in_options("Declare it: types={'age': 'number'}.", {"types": "--type"})
    'Declare it: --type age=number.'
    >>> in_options("pass bounds={'age': (lower, upper)}.", {"bounds": "--bounds"})
    'pass --bounds age=LOWER,UPPER.'
    """
    if "types" in options:
        message = _TYPES.sub(lambda found: _as_flags(found[0], options["types"]), message)
    for name, (pattern, value) in _NAMED.items():
        if name in options:
            message = pattern.sub(partial(_as_flag, options[name], value), message)
    parts = _QUOTED.split(message)  # every second one is quoted
    parts[::2] = [_in_options(part, options) for part in parts[::2]]
    return "".join(parts)


def _as_flags(types: str, flag: str) -> str:
    """Return `types={'age': 'number'}` as flags; a name with a space is in quotes."""
    named = re.findall(r"'([^']*)': '([^']*)'", types)
    return " ".join(f"{flag} {shlex.quote(f'{name}={kind}')}" for name, kind in named)


def _as_flag(flag: str, value: str, found: re.Match[str]) -> str:
    return f"{flag} {shlex.quote(value.format(found[1]))}"


def _in_options(text: str, options: Mapping[str, str]) -> str:
    for phrase, here in _PHRASES.items():
        text = text.replace(phrase, here)
    for name in sorted(options, key=len, reverse=True):
        flag, word = options[name], re.escape(name)
        text = re.sub(rf"(?<![\w-]){word}=True\b", flag, text)
        text = re.sub(rf"(?<![\w-]){word}=(?=\S|$)", f"{flag} ", text)
        if "_" in name:
            text = re.sub(rf"(?<![\w.-]){word}(?![\w-])", flag, text)
        else:  # a word of English, too: only where it is what the sentence is about
            text = re.sub(rf"(?<![\w-]){word}(?= must\b)", flag, text)
            text = re.sub(
                rf"\b([Gg]ive|[Nn]eeds|[Ss]et|[Ll]eave|takes no) {word}(?![\w-])", rf"\1 {flag}", text
            )
    return text
