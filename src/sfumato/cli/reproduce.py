# SPDX-License-Identifier: Apache-2.0
"""`sfumato reproduce`: make the tables and figures of the five reports again.

What it does is in `reproduction_run`, which is imported when the command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from sfumato._torch import require_torch
from sfumato.cli.completion_values import experiment_names
from sfumato.cli.options import Json

__all__ = ["command"]


def command(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of experiments, reports (r1 to r5), all, or Python files of your own. "
            "Default: list all.",
            show_default=False,
            metavar="[NAME]...",
            autocompletion=experiment_names,
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments, and run nothing.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data, few steps: whether it works, in minutes.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where results, figures and the page are kept.")] = Path(
        "reproduced"
    ),
    processes: Annotated[
        int | None, typer.Option(help="How many processes measure. Default: one for each core.", min=1)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where networks are trained, such as cuda. Default: a GPU if there is one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make tables and figures of the five reports again, with the honest epsilon beside the claimed one.

    What was measured is kept: an interrupted run goes on where it was if you run the same command again.
    """
    require_torch()
    from sfumato.cli import reproduction_run

    if listed or not names:
        reproduction_run.show_list(out, as_json=as_json)
        return
    reproduction_run.run(names, quick=quick, out=out, processes=processes, device=device, as_json=as_json)
