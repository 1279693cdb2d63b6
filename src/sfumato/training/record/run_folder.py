# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: checkpoint, metrics, weights and statement.

A checkpoint is whole or absent: it is written beside the old one, flushed to disk, and moved into place. It
carries a fingerprint of every public setting; a checkpoint of another run is refused, and the differences are
named. One process at a time uses a folder. A checkpoint that is not the last one of its run is refused
(`run_ownership`).

Guarantee  Weights after noise are released by the event of the run. A checkpoint holds no noise: a resumed
           run draws fresh noise (with a seed, that of the step), never the noise of an earlier step. The
           order of a shuffled epoch is in it, which the event treats as known.
Failure    Files are read with `weights_only=True`, so a file cannot run code.
"""

import hashlib
import json
import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from sfumato import _files
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.training import distributed
from sfumato.training.record import fingerprints

__all__ = [
    "CheckpointError",
    "RunFolder",
    "random_state",
    "require_same_run",
    "restore_random_state",
    "taken_by_first",
]

FORMAT: Final = 5  # of checkpoints: another number for another layout
_SHORT: Final = 60  # characters of a setting that an error shows


class CheckpointError(SfumatoError, RuntimeError):
    """A run folder cannot be used as asked; nothing was spent."""


class RunFolder:
    """Where one run keeps its files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.pt"
        self.next = _files.part_of(self.checkpoint)
        self.claim = self.path / "claim"
        self.metrics = self.path / "metrics.jsonl"
        self.weights = self.path / "model.pt"
        self.report = self.path / "run.json"
        self.settings = self.path / "settings.json"  # of a run that was started from the command line

    @contextmanager
    def taken(self, *, resume: bool) -> Generator[None]:
        """Keep other processes out, for a new run or for the one that is here.

        The folder is looked at before anything is written: where a run cannot begin, or there is none to go
        on with, it stays as it was.
        """
        look = self._require_unfinished if resume else self._require_unused
        with self._usable():
            look()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self._locked()
        try:
            with self._usable():
                look()  # another process may have been faster
            yield
        finally:
            lock.release()

    def _locked(self) -> FileLock:
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:  # an OSError, too
            raise CheckpointError(
                f"another process trains in {str(self.path)!r}. Wait for it, or use another folder."
            ) from None
        return lock

    @contextmanager
    def _usable(self) -> Generator[None]:
        """Say it in a sentence where the system does not let the folder be read or written."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"the folder {str(self.path)!r} cannot be used: {error.strerror}. Give one that can be read "
                "and written."
            ) from error

    def _require_unused(self) -> None:
        """Raise if a run lives here already. Nothing is written."""
        held = f"{str(self.path)!r} holds a run already"
        if self.report.exists():
            raise CheckpointError(f"{held}, which is finished. Use another folder.")
        if self.checkpoint.exists():
            raise CheckpointError(f"{held}. Continue it with resume=True, or use another folder.")
        if self.weights.exists():  # of a run that could not say any more what it was
            raise CheckpointError(f"{held}, of which only weights are left. Use another folder.")

    def _require_unfinished(self) -> None:
        """Raise unless a run lives here that can go on. Nothing is written."""
        if self.report.exists():
            raise CheckpointError(
                f"the run in {str(self.path)!r} is finished: its weights are in {self.weights.name}, its "
                f"statement in {self.report.name}. Train in another folder."
            )
        if not self.checkpoint.exists():
            raise CheckpointError(f"there is no run in {str(self.path)!r} to resume. Leave resume=True out.")

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the place of the last one."""
        self.write_next(state)
        self.promote()

    def write_next(self, state: Mapping[str, Any]) -> None:
        """Bring a checkpoint to disk, beside the last one."""
        _files.write_synced(self.next, lambda file: torch.save({"format": FORMAT, **state}, file))

    def promote(self) -> None:
        """Put the checkpoint that `write_next` wrote in the place of the last one."""
        self.next.replace(self.checkpoint)
        _files.sync_folder(self.path)

    def load_next(self) -> dict[str, Any] | None:
        """Return the checkpoint beside the last one, if there is a whole one."""
        try:
            return self._state_in(self.next) if self.next.exists() else None
        except CheckpointError:
            return None

    def clear(self) -> None:
        """Take away what a run wrote that never began."""
        for place in (self.checkpoint, self.next, self.claim):
            place.unlink(missing_ok=True)

    def read_claim(self) -> str:
        """Return the claim of the last checkpoint, as the folder knows it; empty where it knows none."""
        return self.claim.read_text(encoding="ascii").strip() if self.claim.exists() else ""

    def write_claim(self, claim: str) -> None:
        """Keep the claim of the last checkpoint."""
        _files.write_whole(self.claim, f"{claim}\n".encode("ascii"))

    def exchange_claim(self, claim: str, *, known: str) -> None:
        """Keep another claim, unless the one that is here is not `known`."""
        if self.read_claim() != known:
            raise CheckpointError(
                f"the run in {str(self.path)!r} was continued by another process, so this one stops. Nothing "
                "of the steps since its last checkpoint was kept."
            )
        self.write_claim(claim)

    def load(self) -> dict[str, Any]:
        """Read the checkpoint of a run that is not finished."""
        self._require_unfinished()
        return self._state_in(self.checkpoint)

    def _state_in(self, place: Path) -> dict[str, Any]:
        state = self._read(place, "An optimizer or schedule with state of another kind cannot be resumed.")
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise CheckpointError(
                f"{str(place)!r} was written by another version of sfumato. Resume with that one."
            )
        return state

    def read_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of a finished run."""
        return self._read(self.weights, "Restore the file, or train again.")

    def _read(self, place: Path, advice: str) -> Any:
        try:
            return torch.load(place, weights_only=True, map_location="cpu")
        except Exception as error:  # torch raises many kinds for a file that is not one of its own
            raise CheckpointError(
                f"{str(place)!r} cannot be read ({type(error).__name__}): it is damaged, or holds "
                f"more than tensors, numbers and text. {advice}"
            ) from error

    def write_report(self, text: str) -> None:
        """Write what is said of a run, whole or not at all: where it is, the run is finished."""
        _files.write_whole(self.report, f"{text}\n".encode())

    def read_report(self) -> dict[str, Any]:
        """Return what a finished run says of itself; raise if it is not what the run wrote."""
        try:
            facts = json.loads(self.report.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"there is no finished run in {str(self.path)!r}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{str(self.report)!r} cannot be read ({type(error).__name__}).") from None
        if not isinstance(facts, dict) or not fingerprints.fits(facts):  # pyright: ignore[reportUnknownArgumentType]
            raise CheckpointError(
                f"{str(self.report)!r} was changed after the run, or is damaged: it does not fit its "
                "fingerprint. Restore it."
            )
        return facts  # pyright: ignore[reportUnknownVariableType] - just checked

    def require_metrics(self, history: Any) -> None:
        """Raise if the file of metrics has other rows than a finished run says. It may be missing."""
        try:
            same = self._read_metrics(most=2 * len(json.dumps(history)) + _SHORT) == history
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError):
            same = False
        if not same:
            raise CheckpointError(
                f"{str(self.metrics)!r} was changed after the run, or is damaged: its figures are not "
                f"those in {self.report.name}. Restore it, or delete it: {self.report.name} has all of them."
            )

    def _read_metrics(self, *, most: int) -> list[Any]:
        """Return the rows in the file of metrics, if it has at most so many bytes."""
        seen = self.metrics.stat()
        if not S_ISREG(seen.st_mode) or seen.st_size > most:  # another kind of file may have no end
            raise ValueError
        lines = self.metrics.read_text(encoding="utf-8").splitlines()
        return [json.loads(line, object_pairs_hook=_named_once) for line in lines]

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of a finished run."""
        _files.write_whole(self.weights, lambda file: torch.save(dict(weights), file))

    def settings_fingerprint(self) -> str | None:
        """Return the fingerprint of the settings that a run was started with; None where it kept none."""
        try:
            return hashlib.sha256(self.settings.read_bytes()).hexdigest()
        except FileNotFoundError:
            return None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; readers disagree on what a name means that is there twice."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


@contextmanager
def taken_by_first(folder: RunFolder | None, *, resume: bool) -> Generator[None]:
    """Let the first of all processes keep others out of a folder; a run may also have none."""
    if folder is None:
        if resume:
            raise InvalidParameterError("there is nothing to resume without a folder: pass folder=...")
        yield
        return
    with ExitStack() as held:
        distributed.first_decides(lambda: held.enter_context(folder.taken(resume=resume)))
        yield


def require_same_run(stored: Mapping[str, str], now: Mapping[str, str], folder: Path) -> None:
    """Raise if a checkpoint's public settings are not those of the run that wants to go on from it.

    >>> require_same_run({"steps": "10"}, {"steps": "20"}, Path("run"))
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: the checkpoint in 'run' is of another run: steps was 10 and ...
    """
    names = [name for name in {**stored, **now} if stored.get(name) != now.get(name)]
    if not names:
        return
    told = [_difference(name, stored.get(name, "absent"), now.get(name, "absent")) for name in names]
    raise InvalidParameterError(
        f"the checkpoint in {str(folder)!r} is of another run: {'; '.join(told)}. Resume with the settings "
        "it was started with, or train in another folder."
    )


def _difference(name: str, before: str, now: str) -> str:
    if max(len(before), len(now)) > _SHORT:
        return f"{name} differs"
    return f"{name} was {before} and is now {now}"


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return torch's own random state. Steps leave it alone (`private_draws`); no noise comes from it."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Let torch draw on from where a checkpoint was."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
