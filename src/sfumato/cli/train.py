# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato train`, made from the fields of `TrainSettings`.

What they do is in `training_run`, which is imported when the command runs.
"""

from typing import Annotated, Any

import typer

from sfumato._torch import require_torch
from sfumato.cli.flags import give_flags
from sfumato.cli.help_pages import OUTPUT
from sfumato.cli.options import Json
from sfumato.cli.settings import PUBLIC_SETS, TrainSettings

__all__ = ["command"]

DATA = (
    f"What to learn from: {', '.join(PUBLIC_SETS)}; or your own CSV, Parquet or .npz file, or a folder of "
    "images."
)


def command(**given: Any) -> None:
    """Train a network to a budget, on a public data set or on your own data.

    Options that you leave out use the defaults for that data set.
    """
    require_torch()
    from sfumato.cli import training_run

    resume, config, as_json = given.pop("resume"), given.pop("config"), given.pop("as_json")
    training_run.run(TrainSettings(**given), config=config, resume=resume, as_json=as_json)


give_flags(
    command,
    TrainSettings,
    data=DATA,
    names=PUBLIC_SETS,
    more={
        "resume": (
            Annotated[
                bool,
                typer.Option("--resume", help="Continue the run in --folder.", rich_help_panel=OUTPUT),
            ],
            False,
        ),
        "config": (
            Annotated[
                str | None,
                typer.Option(help="A TOML file with these and more settings; flags go before it."),
            ],
            None,
        ),
        "as_json": (Json, False),
    },
)
