# SPDX-License-Identifier: Apache-2.0
"""Ask for it: the command line.

Tables for people, `--json` for programs. An error is one paragraph on standard error and exit code 2, never a
traceback. Flags are spelled as the glossary spells the words.
"""

import sys

from sfumato.errors import SfumatoError

__all__ = ["main"]


def main() -> None:
    """Run the `sfumato` command."""
    # Imported here, so that `import sfumato.cli` stays light.
    from sfumato.cli.app import app
    from sfumato.cli.show import show_error

    try:
        app()
    except SfumatoError as error:
        show_error(getattr(error, "in_options", None) or str(error))
        sys.exit(2)
