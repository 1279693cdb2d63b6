# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato audit`: attack a run that `sfumato train` left in a folder.

Exit codes: 0 if the claim stands; 1 if it is false, or a check failed, whatever else could not be done; 2 if
that could not be found out; 3 if nothing was audited. A missing or damaged file is not evidence against a
claim, and a run without canaries has not passed. Files are compared with the fingerprints that the run left
(`fingerprints`). The audit in them must be complete: its scores, and each check, or why it was not made.
"""

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sfumato._torch import require_torch
from sfumato.accounting import Guarantee, Relation
from sfumato.cli.options import Json
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.errors import InvalidParameterError, SfumatoError

if TYPE_CHECKING:
    from sfumato.audit.evidence.results import AuditResult
    from sfumato.audit.runs.run_attack import AttackResult
    from sfumato.cli.settings import TrainSettings

__all__ = ["command"]

Answer = TypeVar("Answer")

_FILE = "run.json"
_NOT_AUDITED = 3  # exit code
_ADVICE = " Train again with --audit 1000 for a run that can be."
_MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # of values of other kinds
_MOST_ROWS = 10_000  # of each group that the membership attack compares


def command(
    run: Annotated[
        str, typer.Argument(help="The folder of a finished run, as --folder of sfumato train named it.")
    ],
    *,
    membership: Annotated[
        bool, typer.Option(help="Compare rows that were trained on with test rows, by their loss.")
    ] = True,
    report: Annotated[
        str | None, typer.Option(help="Write the page here. Default: audit.html in the folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack a run: show its claim beside what attacks prove, and write a page.

    Exits with 1 if the claim is false, and with 3 if the run has no canaries, so that nothing was audited.
    """
    require_torch()
    facts, claim, planted = _finished(run)
    from sfumato.audit.audit_page import audit_report
    from sfumato.audit.runs.run_attack import AttackResult

    if planted is None and not membership:
        raise InvalidParameterError(
            f"the run in {run!r} has no canaries. Train it with --audit 1000, or leave --no-membership out."
        )
    attempts = _Attempts(refuted=planted is not None and planted.refuted)
    with waiting("Attacking"):
        attempts.make(lambda: _require_evidence(run, facts, planted))
        losses = attempts.make(lambda: _membership(run, facts)) if membership else None
        found = AttackResult(claim=claim, canaries=planted, membership=losses)
        place = report if report is not None else str(Path(run) / "audit.html")
        title = f"Audit of {Path(run).name}"
        written = attempts.make(
            lambda: _write(place, audit_report(found, title=title, about=_about(run, facts)))
        )
    _show(found, written, attempts.failed, as_json=as_json)
    if not found.audited:
        raise typer.Exit(_NOT_AUDITED)
    if found.refuted:
        raise typer.Exit(1)


class _Attempts:
    """Work beside the verdict: where a claim is refuted, nothing that fails may hide that."""

    def __init__(self, *, refuted: bool) -> None:
        self._refuted = refuted
        self.failed: list[str] = []  # what could not be done, a sentence each

    def make(self, work: Callable[[], Answer]) -> Answer | None:
        try:
            return work()
        except Exception as error:  # of any kind: it is told after the verdict
            if not self._refuted:
                raise
            self.failed.append(str(error) if isinstance(error, SfumatoError) else repr(error))
            return None


def _show(found: "AttackResult", place: str | None, failed: Sequence[str], *, as_json: bool) -> None:
    told = _told(found, place)
    if as_json:
        canaries = found.canaries
        more = {
            "reasons": [] if canaries is None else canaries.reasons(),
            "not_checked": {} if canaries is None else {each.name: each.why for each in canaries.unchecked},
            "could_not_be_done": failed,
        }
        show_facts("Audit", told | more, as_json=True)
        return
    show_facts("Audit", told, as_json=False)
    show_text(found.statement())
    if not found.audited:
        show_text(f"\nNothing was audited.{_ADVICE if found.canaries is None else ''}")
    for said in failed:
        show_text(f"\nCould not be done: {said}")


def _finished(run: str) -> tuple[Any, Guarantee, "AuditResult | None"]:
    """Return what a finished run says of itself, what it claims, and what its canaries showed, if any."""
    from sfumato.audit.evidence.results import AuditResult

    facts = _read(run)
    _require_unchanged(run, facts)
    _require_steps(run, facts)
    try:
        claim, found = _claim(facts), facts.get("audit")
        planted = None if found is None else AuditResult.from_dict(found, claim)
    except _MALFORMED as error:
        raise _damaged(run, error) from error
    return facts, claim, planted


def _damaged(run: str, error: Exception) -> InvalidParameterError:
    return InvalidParameterError(
        f"the file {str(Path(run) / _FILE)!r} is not what a finished run writes: it was changed, or is "
        f"damaged ({type(error).__name__}: {error}). Restore it, or train again."
    )


def _require_evidence(run: str, facts: Any, planted: "AuditResult | None") -> None:
    """Refuse a run that cannot pass: its weights are not those that were audited, or its audit has gaps."""
    _require_weights(run, facts)
    if planted is not None:
        _require_whole(run, planted)


def _require_whole(run: str, planted: "AuditResult") -> None:
    """Refuse what is said of an audit where part of it is missing: what is not there has not passed."""
    from sfumato.audit.evidence.results import CheckName

    told = {each.name for each in (*planted.checks, *planted.unchecked)}
    missing = [f"the check {name.value!r}" for name in CheckName if name not in told]
    missing += [] if planted.in_scores and planted.out_scores else ["the scores of canaries"]
    if missing:
        raise InvalidParameterError(
            f"the audit in {str(Path(run) / _FILE)!r} is not whole: {', '.join(missing)} is missing, so the "
            "claim has not passed. Restore the file, or train again."
        )


def _require_unchanged(run: str, facts: Any) -> None:
    """Refuse a run of another version, and one whose record is not what it left."""
    from sfumato.training.record import fingerprints

    if not isinstance(facts, dict):
        raise InvalidParameterError(
            f"the file {str(Path(run) / _FILE)!r} is not what a finished run writes: it is damaged. Restore "
            "it, or train again."
        )
    made_by, here = facts.get("code_version"), version("sfumato")  # pyright: ignore[reportUnknownMemberType]
    if made_by != here:
        told = "an earlier version" if made_by is None else f"version {made_by}"
        raise InvalidParameterError(
            f"{str(Path(run) / _FILE)!r} was written by {told} of sfumato, and this is {here}: what that "
            "audit tested is not known here. Audit the run with the version that made it, or train again."
        )
    if not fingerprints.fits(facts):
        raise InvalidParameterError(
            f"the file {str(Path(run) / _FILE)!r} was changed after the run: it does not fit its "
            "fingerprint, so nothing in it is evidence. Restore it, or train again."
        )


def _require_weights(run: str, facts: Any) -> None:
    """Refuse a run whose weights are not what it left."""
    from sfumato.training.record.run_folder import RunFolder

    folder = RunFolder(run)
    if not folder.weights.exists():
        raise InvalidParameterError(
            f"the weights of the run in {run!r} are gone: there is no {folder.weights.name}, which every "
            "finished run leaves, so nobody can tell what was audited. Restore the file, or train again."
        )
    if not _same_weights(folder.read_weights(), facts.get("weights")):
        raise InvalidParameterError(
            f"the weights in {run!r} were changed after the run: they are not those that were "
            "audited. Restore them, or train again."
        )


def _require_steps(run: str, facts: Any) -> None:
    """Refuse a run on secret labels that took no noisy steps: neither canaries nor losses attack it."""
    if "method" in facts and "noise" not in facts:
        raise InvalidParameterError(
            f"the run in {run!r} released labels once, by {facts['method']}, and has no noisy steps to "
            "attack: nothing was tested. Attack the method's `release` with sfumato.audit.audit_mechanism."
        )


def _same_weights(weights: Any, fingerprint: object) -> bool:
    from torch import Tensor

    from sfumato.training.record import fingerprints

    if not isinstance(weights, dict) or not all(isinstance(part, Tensor) for part in weights.values()):  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType,reportUnknownArgumentType] - a file may hold anything
        return False
    return fingerprints.fingerprint_of(weights) == fingerprint  # pyright: ignore[reportUnknownArgumentType] - just checked


def _about(run: str, facts: Any) -> dict[str, object]:
    """Return which run it is, for the page."""
    from sfumato.cli.settings import kept

    try:
        data = kept(run).data
        _require_settings(run, facts)
    except InvalidParameterError:  # other settings are no matter of canaries
        data = None
    try:
        return _described(facts, data)
    except _MALFORMED as error:
        raise _damaged(run, error) from error


def _described(facts: Any, data: str | None) -> dict[str, object]:
    noise = ", ".join(f"{multiplier:.6g} for {steps} steps" for multiplier, steps in facts["noise"])
    return {
        "data": data or "not said",
        "model": facts["model"],
        "noise multiplier": noise,
        "batches": facts["sampling"],
        "clipping": facts["clipping"],
        "steps": facts["steps"],
        "accountant": facts["accountant"],
        "version": facts["code_version"],
        "finished": facts["finished"],
        "fingerprint of the weights": facts["weights"],
        "fingerprint of this run": facts["sha256"],
    }


def _read(run: str) -> Any:
    place = Path(run) / _FILE
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidParameterError(
            f"there is no finished run in {run!r}: train one with sfumato train DATA --folder {run} --audit "
            "1000."
        ) from None
    except NotADirectoryError:
        raise InvalidParameterError(
            f"{run!r} is a file, and not the folder of a run. Pass the folder that sfumato train "
            "was given by --folder."
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidParameterError(
            f"the file {str(place)!r} cannot be read: {reason.lower()}. Make it readable, or train again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"the file {str(place)!r} cannot be read, because it is not JSON: it was changed, or is damaged. "
            "Restore it, or train again."
        ) from error


def _claim(facts: Any) -> Guarantee:
    return Guarantee(
        epsilon=_number(facts["epsilon"]),
        delta=_number(facts["delta"]),
        relation=Relation.parse(facts["relation"]),
        privacy_unit=facts["privacy_unit"],
    )


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)  # whole numbers may be too large for one


def _require_settings(run: str, facts: Any) -> None:
    """Refuse settings that are not those of the run: they may name other data."""
    from sfumato.training.record.run_folder import RunFolder

    if RunFolder(run).settings_fingerprint() != facts.get("settings_sha256"):
        raise InvalidParameterError(
            f"the settings in {run!r} were changed after the run, so nobody can tell what data it was "
            "trained on. Restore them, or pass --no-membership."
        )


def _membership(run: str, facts: Any) -> Any:
    """Return how well losses of the finished model tell training rows from test rows."""
    from sfumato.audit.evidence.roc import Roc
    from sfumato.audit.models.shadow_models import loss_scores
    from sfumato.cli.settings import kept
    from sfumato.datasets import load
    from sfumato.training.models.networks import loss_for

    settings = kept(run)
    _require_settings(run, facts)
    if settings.private == "labels":
        raise InvalidParameterError(
            f"the features of the run in {run!r} are public, and so is who was in it: there is nothing to "
            "find by losses. Pass --no-membership to audit its canaries."
        )
    if settings.is_own:
        raise InvalidParameterError(
            f"the run in {run!r} was trained on your own data. Rows of a public set alone are compared here: "
            "pass --no-membership to audit its canaries, or call sfumato.audit.attack in Python with members "
            "and others."
        )
    if settings.data is None:
        raise InvalidParameterError(
            f"the run in {run!r} does not say what data it was trained on, so rows cannot be compared. Pass "
            "--no-membership, or call sfumato.audit.attack in Python."
        )
    data = load(settings.data)
    model = _model(run, settings, data)
    groups = ((part.features[:_MOST_ROWS], part.labels[:_MOST_ROWS]) for part in (data.train, data.test))
    scores = [loss_scores(model, rows, loss=loss_for(data)) for rows in groups]
    return Roc(*scores, name="membership by loss")


def _model(run: str, settings: "TrainSettings", data: Any) -> Any:
    """Return the finished model, as the run's settings say it was made."""
    from sfumato.training.models.networks import model_for
    from sfumato.training.record.run_folder import RunFolder

    weights = RunFolder(run).read_weights()
    try:
        model = model_for(data, str(settings.model), width=settings.width or 1)
        model.load_state_dict(weights)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise InvalidParameterError(
            f"the weights in {run!r} are not of the model that its settings name ({settings.model!r}, width "
            f"{settings.width or 1}): one of the two files was changed. Restore it, or pass --no-membership."
        ) from error
    return model


def _write(place: str, html: str) -> str:
    """Write the page, and return where it is."""
    from sfumato.report.html import write_report

    try:
        write_report(place, html)
    except OSError as error:
        raise InvalidParameterError(
            f"the page {place!r} cannot be written: {error.strerror}. Give another --report."
        ) from error
    return place


def _told(found: "AttackResult", place: str | None) -> dict[str, Any]:
    best = None if found.canaries is None else found.canaries.best
    area = None if found.membership is None else found.membership.area_interval()
    return {
        "claimed_epsilon": found.claim.epsilon,
        "delta": found.claim.delta,
        "lower_bound": None if best is None else best.epsilon,
        "confidence": None if best is None else best.confidence,
        "audited": found.audited,
        "refuted": found.refuted if found.audited else None,
        "membership_area": None if area is None else area.value,
        "membership_area_low": None if area is None else area.low,
        "report": place,
    }
