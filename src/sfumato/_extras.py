# SPDX-License-Identifier: Apache-2.0
"""The one text that says how to install sfumato or one of its extras.

sfumato is on no package index, so `pip install` with its name alone finds nothing, or a package of somebody
else. What is installed comes from a checkout or from a wheel, and the text names both.
"""

__all__ = ["how_to_install"]


def how_to_install(extra: str | None = None) -> str:
    """Return the commands that install sfumato, or one of its extras, as the end of a message.

    Args:
        extra: The name of the extra. None is sfumato without extras.

    Returns:
        A sentence.

    >>> how_to_install("tables")
    'Run, in a checkout of sfumato: pip install -c constraints.txt ".[tables]" (from a wheel: pip install
    "FILE.whl[tables]").'
    """
    part = "" if extra is None else f"[{extra}]"
    checkout, wheel = f'pip install -c constraints.txt ".{part}"', f'pip install "FILE.whl{part}"'
    return f"Run, in a checkout of sfumato: {checkout} (from a wheel: {wheel})."
