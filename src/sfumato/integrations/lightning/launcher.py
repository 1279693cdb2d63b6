# SPDX-License-Identifier: Apache-2.0
"""Sees what `Trainer.fit` was called with, before anything else happens.

Lightning looks up names such as `ckpt_path="last"` itself, and goes on without a word where there is no file:
a program that expects to continue would begin another run, with a charge of its own.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

from sfumato.errors import InvalidParameterError

__all__ = ["NO_CKPT_PATH", "Launcher"]

NO_CKPT_PATH: Final = (
    "A private run cannot be continued from a file of Lightning: one that is copied would give two runs for "
    "one charge. Pass PrivateStrategy(folder=..., resume=True), or load the weights into the module."
)


class Launcher:
    """Runs in this process, as Lightning does without a launcher."""

    @property
    def is_interactive_compatible(self) -> bool:
        """Whether it works in a notebook."""
        return True

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Run what the trainer was asked for.

        Args:
            function: What Lightning runs: that of `Trainer.fit`, or of another entry.
            *args: Its arguments.
            trainer: The trainer.
            **kwargs: Its arguments by name.

        Returns:
            What it returns.

        Raises:
            InvalidParameterError: If a fit was asked to continue from a file, by whatever name.
        """
        given = inspect.signature(function).bind(*args, **kwargs).arguments.get("ckpt_path")
        if trainer is not None and trainer.state.fn == "fit" and given is not None:
            raise InvalidParameterError(f"Trainer.fit got ckpt_path={str(given)!r}. {NO_CKPT_PATH}")
        return function(*args, **kwargs)

    def kill(self, signum: Any) -> None:
        """Do nothing: there are no other processes."""
