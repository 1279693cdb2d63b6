# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato synthesize`, made from the fields of `SynthesisSettings`.

What they do is in `synthesis_run`, which is imported when the command runs.
"""

from typing import Annotated, Any

import typer

from sfumato.cli.flags import give_flags
from sfumato.cli.help_pages import OUTPUT
from sfumato.cli.options import Json
from sfumato.cli.project.defaults import in_project
from sfumato.cli.synthesis_settings import SynthesisSettings

__all__ = ["command"]

DATA = (
    "What to learn from: digits, mnist, fashion-mnist or cifar10; or your own .npz file with arrays x "
    "and y, folder of images, CSV file or Parquet file."
)


def command(**given: Any) -> None:
    """Learn to generate images or rows from private ones; what is drawn costs nothing more.

    Options that you leave out use the defaults for that data set.
    """
    resume, as_json = given.pop("resume"), given.pop("as_json")
    settings = SynthesisSettings(**given)
    if not resume:
        settings = in_project(settings)
    if settings.is_table and not resume:
        from sfumato.cli import table_synthesis

        table_synthesis.run(settings, as_json=as_json)
    else:
        from sfumato.cli import synthesis_run

        synthesis_run.run(settings, resume=resume, as_json=as_json)


give_flags(
    command,
    SynthesisSettings,
    data=DATA,
    names=("digits", "mnist", "fashion-mnist", "cifar10"),
    more={
        "resume": (
            Annotated[
                bool,
                typer.Option(
                    "--resume",
                    help="Of images: continue the interrupted run in --out.",
                    rich_help_panel=OUTPUT,
                ),
            ],
            False,
        ),
        "as_json": (Json, False),
    },
)
