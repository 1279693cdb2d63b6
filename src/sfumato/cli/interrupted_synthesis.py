# SPDX-License-Identifier: Apache-2.0
"""Which interrupted runs of `sfumato synthesize` can go on, and with which settings.

A DP-GAN or DP-CGAN goes on from its checkpoint. A generator that was saved before its images were drawn is
drawn from, by whatever method it was made. Nothing is charged again.
"""

from pathlib import Path
from typing import Final

from sfumato.cli.settings import kept, require_same
from sfumato.cli.synthesis_settings import SynthesisSettings
from sfumato.errors import InvalidParameterError
from sfumato.generative.generator import GENERATOR

__all__ = ["IMAGES", "require_unused", "resumed"]

IMAGES: Final = "images.npz"  # of a finished run
_RESUMABLE: Final = ("dp-cgan", "dp-gan")
_FREE: Final = ("out", "count", "evaluation", "device", "ledger", "report")  # may be others than before


def resumed(said: SynthesisSettings, *, default: str) -> SynthesisSettings:
    """Return the settings of the run in a folder, with flags that may change; raise if it cannot go on.

    Args:
        said: The flags.
        default: The method of a run that names none.
    """
    if said.out is None:
        raise InvalidParameterError("there is nothing to resume without --out.")
    if said.is_table or (Path(said.out).suffix in (".csv", ".parquet") and not Path(said.out).is_dir()):
        raise InvalidParameterError(
            "a generator of rows cannot be resumed: what an interrupted run was charged is spent. Draw in "
            "Python from the file NAME.generator.npz, if it is beside --out; or leave --resume out to "
            "begin again, which is charged anew."
        )
    before = kept(said.out, SynthesisSettings)
    if not before.given():
        raise InvalidParameterError(f"there is no run in {said.out!r} to resume. Leave --resume out.")
    require_same(said, before, folder=said.out, free=_FREE)
    _require_unfinished(Path(said.out), before.method or default)
    return said.over(before)


def _require_unfinished(folder: Path, method: str) -> None:
    if (folder / GENERATOR).exists():
        if (folder / IMAGES).exists():
            raise InvalidParameterError(
                f"the run in {str(folder)!r} is finished: there is nothing to resume."
            )
    elif method not in _RESUMABLE:
        raise InvalidParameterError(
            f"the method {method} cannot be resumed: what the interrupted run was charged is spent. Leave "
            "--resume out to begin again, which is charged anew."
        )
    elif not _has_run(folder):
        raise InvalidParameterError(
            f"the run in {str(folder)!r} did not take a step: there is nothing to resume. Leave --resume out."
        )


def require_unused(folder: Path) -> None:
    """Raise if a folder holds a generator, or a run that may still become one. Nothing is written."""
    if (folder / GENERATOR).exists():
        raise InvalidParameterError(
            f"the folder {str(folder)!r} holds another generator, which was paid for. Give another --out."
        )
    if _has_run(folder):
        how = (
            f"Continue it with `sfumato synthesize --resume --out {folder}`"
            if kept(folder, SynthesisSettings).given()
            else "Continue it in Python, with fit(..., resume=True)"
        )
        raise InvalidParameterError(
            f"the folder {str(folder)!r} holds a run that was paid for and is not finished. {how}, or give "
            "another --out."
        )


def _has_run(folder: Path) -> bool:
    """Return whether the training of a GAN began here."""
    return any((folder / "training" / name).exists() for name in ("checkpoint.pt", "run.json", "model.pt"))
