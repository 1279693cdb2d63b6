# SPDX-License-Identifier: Apache-2.0
"""The checks of `sfumato train` and `sfumato federate` before a run is charged.

Settings, files and folders are checked here, and the page is tried: a run whose result could not be shown
would be spent for nothing. A folder is inspected before anything is written. A folder that holds a finished
run, or that another process trains in, is refused unchanged. An existing page is replaced only by a complete
one.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from sfumato.accounting.default_delta import default_delta
from sfumato.cli.federation_settings import FederationSettings
from sfumato.cli.own_data import OwnData
from sfumato.cli.places import account_at, begin_page, require_apart
from sfumato.cli.settings import TrainSettings, keep, kept, read_config
from sfumato.datasets import Dataset
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account
from sfumato.training import distributed
from sfumato.training.record.run_folder import RunFolder

__all__ = ["account_of", "begin", "merged", "require_run", "run_writes", "take_places", "with_delta"]


def merged(said: TrainSettings, *, config: str | None, resume: bool) -> TrainSettings:
    """Return what the flags say, else the file, else the folder of a run to go on with."""
    settings = said if config is None else said.over(read_config(config))
    if not resume:
        return settings
    if settings.folder is None:
        raise InvalidParameterError("there is nothing to resume without --folder.")
    found = settings.over(kept(settings.folder))
    if found.data is None:
        require_run(settings.folder)
    return found


def require_run(folder: str) -> None:
    """Raise unless a run was begun in a folder."""
    place = RunFolder(folder)
    if not (place.checkpoint.exists() or place.report.exists()):
        raise InvalidParameterError(f"there is no run in {folder!r} to resume. Leave --resume out.")


def account_of(settings: TrainSettings) -> Account | None:
    """Return the account to charge, if one is named."""
    return account_at(settings.ledger, settings.account, purpose=settings.purpose)


def with_delta(settings: TrainSettings, data: Dataset | OwnData, account: Account | None) -> TrainSettings:
    """Return the settings with a delta: their own, else that of the account or of the data's size."""
    if settings.delta is not None:
        return settings
    delta = default_delta(data.public_size) if account is None else account.budget.delta
    return TrainSettings(delta=delta).over(settings)


def begin(settings: TrainSettings, *, resume: bool) -> None:
    """Try the places that the run will write to, after a look at what they hold.

    Of several processes, on one machine or on many, the first does: all would write to the same places.
    """
    if distributed.global_rank() != 0:
        return
    read = {
        "the private data": settings.data if settings.is_own else None,
        "the data of --evaluation": settings.evaluation,
        "the ledger": settings.ledger,
    }
    take_places(settings, read, resume=resume)


def take_places(
    settings: TrainSettings | FederationSettings, read: Mapping[str, str | None], *, resume: bool
) -> None:
    """Try a folder and a page, and keep the settings of a new run in the folder.

    Args:
        settings: The settings, with the folder and the page, if there are any.
        read: Files and folders that are read, by what the command calls them.
        resume: Whether the run in the folder goes on.
    """
    require_apart(run_writes(settings.folder, settings.report), read)
    folder = None if settings.folder is None else RunFolder(settings.folder)
    with nullcontext() if folder is None else folder.taken(resume=resume):
        if settings.report is not None:
            begin_page(settings.report)
        if folder is not None and not resume:
            _keep(settings, folder)


def run_writes(folder: str | None, report: str | None) -> list[tuple[str, str | Path | None]]:
    """Return what a run with a folder and a page writes, with the option that asks for it."""
    written: list[tuple[str, str | Path | None]] = [("--report", report), ("--folder", folder)]
    if folder is None:
        return written
    run = RunFolder(folder)
    files = (run.checkpoint, run.next, run.claim, run.metrics, run.weights, run.report, run.settings)
    return [*written, *(("--folder", file) for file in files)]


def _keep(settings: TrainSettings | FederationSettings, folder: RunFolder) -> None:
    try:
        keep(settings, folder.path)
    except OSError as error:
        raise InvalidParameterError(
            f"the settings cannot be written to {str(folder.path)!r}: {error.strerror}. Give another "
            "--folder."
        ) from error
