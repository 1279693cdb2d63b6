# SPDX-License-Identifier: Apache-2.0
"""Ask for it: the command line.

Tables for people, `--json` for programs. An error is one paragraph on standard error and exit code 2, in the
words of the command line, never a traceback. Flags are spelled as the glossary spells the words.
"""

import sys
from collections.abc import Callable
from typing import Any

from sfumato.cli.quick_start import uncollected
from sfumato.errors import SfumatoError

__all__ = ["main"]


def main() -> None:
    """Run the `sfumato` command."""
    with uncollected():  # imported here, so that `import sfumato.cli` stays light
        import click
        import typer.main

        from sfumato.cli.app import app
        from sfumato.cli.completion import prepare
        from sfumato.cli.mistakes import help_instead, told
        from sfumato.cli.repeated_options import require_once
        from sfumato.cli.show import show_error
        from sfumato.cli.wording import in_options, options_of

    prepare()
    root = typer.main.get_command(app)
    root.invoke = _noting(root.invoke, show_error)  # pyright: ignore[reportAttributeAccessIssue] - of the same form
    try:
        require_once(root, sys.argv[1:])
        sys.exit(root.main(prog_name="sfumato", standalone_mode=False))
    except SfumatoError as error:
        said = getattr(error, "in_options", None) or str(error)
        show_error(in_options(said, options_of(root, sys.argv[1:])))
    except click.UsageError as error:
        if (page := help_instead(error)) is None:
            show_error(told(error))
        else:
            click.echo(page)
    except click.Abort:
        show_error("interrupted.")
    sys.exit(2)


def _noting(invoke: Callable[[Any], Any], show: Callable[[str], None]) -> Callable[[Any], Any]:
    """Return `invoke`, which at an interrupt shows what is said of a run that was paid for."""

    def run(context: Any) -> Any:
        try:
            return invoke(context)
        except KeyboardInterrupt as error:
            notes = " ".join(["interrupted.", *getattr(error, "__notes__", ())])
            show(notes.replace("resume=True", "--resume"))
            raise

    return run
