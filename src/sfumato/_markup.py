# SPDX-License-Identifier: Apache-2.0
"""Text that HTML and XML show as it is. Rooms below the reports use it, too, so that it stands alone."""

import html

__all__ = ["escape", "visible"]


def escape(text: object) -> str:
    """Return text that HTML and XML show as it is; characters that no page can show are replaced.

    Args:
        text: The text, or an object that is converted to text.

    Returns:
        The escaped text.

    >>> escape('<b onload="x">')
    '&lt;b onload=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text), quote=True)


def visible(text: object) -> str:
    """Return text in which characters that no page can show are replaced.

    >>> visible("a\\0b")
    'a\\ufffdb'
    """
    return "".join(c if _shown(c) else "\ufffd" for c in str(text))


def _shown(character: str) -> bool:
    """Whether XML 1.0 allows a character (its production 2)."""
    code = ord(character)
    return character in "\t\n\r" or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
