# SPDX-License-Identifier: Apache-2.0
"""What is told of a command line that cannot be read, with the nearest word that could have been meant."""

import difflib
from collections.abc import Iterable

import click

__all__ = ["help_instead", "no_such_command", "told"]


def told(error: click.UsageError) -> str:
    """Return the paragraph about an error of a command line.

    Args:
        error: What was found wrong.

    Returns:
        The paragraph.
    """
    said = _said(error)
    asked = error.ctx.command_path if error.ctx is not None else "sfumato"
    return f"{said} `{asked} --help` shows what it takes."


def help_instead(error: click.UsageError) -> str | None:
    """Return the help page of several commands of which none was named, or None for any other error."""
    is_help = isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))
    return error.ctx.get_help() if is_help and error.ctx is not None else None


def no_such_command(name: str, known: Iterable[str], ctx: click.Context) -> click.UsageError:
    """Return the error about a command that there is not."""
    return click.UsageError(f"No such command {name!r}.{_nearest(name, known)}", ctx)


def _said(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        params = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
        known = [flag for each in params for flag in (*each.opts, *each.secondary_opts) if flag[0] == "-"]
        return f"No such option {error.option_name!r}.{_nearest(error.option_name, known)}"
    said = error.format_message()
    return f"{said.rstrip('.?')}{'?' if said.endswith('?') else '.'}{_nearest_choice(error)}"


def _nearest_choice(error: click.UsageError) -> str:
    """Return what one of a few words was probably meant to be."""
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    if not isinstance(kind, click.Choice):
        return ""
    given = error.message.partition("'")[2].partition("'")[0]  # the first word that is quoted
    return _nearest(given, map(str, kind.choices))


def _nearest(given: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest of some words was meant, or nothing.

    >>> _nearest("trian", ["train", "pate"]), _nearest("xyz", ["train"])
    (" Did you mean 'train'?", '')
    """
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
