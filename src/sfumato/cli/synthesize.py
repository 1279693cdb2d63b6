# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato synthesize`, made from the fields of `SynthesisSettings`.

What they do is in `synthesis_run`, which is imported when the command runs.
"""

from typing import Any

from sfumato.cli.flags import give_flags
from sfumato.cli.options import Json
from sfumato.cli.synthesis_settings import SynthesisSettings

__all__ = ["command"]

DATA = "digits, mnist, fashion-mnist or cifar10; or your own .npz file with arrays x and y."


def command(**given: Any) -> None:
    """Learn to generate images from private ones; what is drawn from the generator costs nothing more.

    Options that you leave out use the defaults for that data set.
    """
    from sfumato.cli import synthesis_run

    as_json = given.pop("as_json")
    synthesis_run.run(SynthesisSettings(**given), as_json=as_json)


give_flags(command, SynthesisSettings, data=DATA, more={"as_json": (Json, False)})
