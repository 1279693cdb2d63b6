# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato federate`, made from the fields of `FederationSettings`.

What they do is in `federation_run`, which is imported when the command runs.
"""

from typing import Annotated, Any

import typer

from sfumato._torch import require_torch
from sfumato.cli.federation_settings import FederationSettings
from sfumato.cli.flags import give_flags
from sfumato.cli.help_pages import OUTPUT
from sfumato.cli.options import Json

__all__ = ["command"]


def command(**given: Any) -> None:
    """Simulate a federation: clients keep their rows, a server learns, and each client is protected.

    Options that you leave out use the defaults for that data set.
    """
    require_torch()
    from sfumato.cli import federation_run

    resume, as_json = given.pop("resume"), given.pop("as_json")
    federation_run.run(FederationSettings(**given), resume=resume, as_json=as_json)


give_flags(
    command,
    FederationSettings,
    data="What to learn from: digits, mnist, fashion-mnist or shakespeare.",
    names=("digits", "mnist", "fashion-mnist", "shakespeare"),
    more={
        "resume": (
            Annotated[
                bool,
                typer.Option(
                    "--resume",
                    help="Continue the run in --folder, which keeps its settings.",
                    rich_help_panel=OUTPUT,
                ),
            ],
            False,
        ),
        "as_json": (Json, False),
    },
)
