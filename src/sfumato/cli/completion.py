# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato completion`: the script by which a shell completes commands, flags and values.

The script is printed, and no file is written: the user decides where it goes. When Tab is pressed, the shell
runs `sfumato` with `_SFUMATO_COMPLETE` in its environment.
"""

import os
from enum import StrEnum
from typing import Annotated

import typer

# typer has them for an option of its own, which writes into the home folder; a test runs them in a real bash.
from typer.completion import (
    completion_init,  # pyright: ignore[reportPrivateImportUsage]
    get_completion_script,  # pyright: ignore[reportPrivateImportUsage]
)

from sfumato.cli.show import show_text

__all__ = ["command", "prepare"]

_VARIABLE = "_SFUMATO_COMPLETE"  # what the script of a shell sets when Tab is pressed


class Shell(StrEnum):
    """The shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def prepare() -> None:
    """Let typer answer shells as its scripts expect; if no shell asks, do nothing."""
    if _VARIABLE in os.environ:
        completion_init()


def command(
    shell: Annotated[Shell, typer.Argument(help="The shell to print the script for.", show_default=False)],
) -> None:
    """Print the script that lets a shell complete commands, flags and values when Tab is pressed.

    For this session of bash: eval "$(sfumato completion bash)". To keep it, add that line to ~/.bashrc. For
    zsh, add eval "$(sfumato completion zsh)" to ~/.zshrc, after the line with compinit. For fish, run sfumato
    completion fish > ~/.config/fish/completions/sfumato.fish.
    """
    show_text(get_completion_script(prog_name="sfumato", complete_var=_VARIABLE, shell=shell.value))
