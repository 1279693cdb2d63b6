# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato pate`, made from the fields of `PateSettings`.

What they do is in `pate_run`, which is imported when the command runs.
"""

from typing import Any

from sfumato.cli.flags import give_flags
from sfumato.cli.options import Json
from sfumato.cli.pate_settings import PateSettings
from sfumato.cli.settings import PUBLIC_SETS

__all__ = ["command"]

DATA = (
    "What to learn from: digits, breast-cancer, mnist, fashion-mnist, cifar10, credit-default or adult; or "
    "your own CSV or Parquet file."
)


def command(**given: Any) -> None:
    """Let teachers on private rows answer about public ones, and train a student from the answers.

    Options that you leave out use the defaults for that data set.
    """
    from sfumato.cli import pate_run

    as_json = given.pop("as_json")
    pate_run.run(PateSettings(**given), as_json=as_json)


give_flags(
    command,
    PateSettings,
    data=DATA,
    names=tuple(name for name in PUBLIC_SETS if name != "shakespeare"),
    more={"as_json": (Json, False)},
)
