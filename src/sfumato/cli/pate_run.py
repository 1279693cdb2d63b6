# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato pate`: from settings to answers, a student, their statement and their page.

Failure    Settings, files, the account and the places that the run writes to are checked before the charge.
           A folder that holds answers is refused unchanged: they were paid for.
"""

import json
from pathlib import Path
from typing import Any

from sfumato import _check, pate
from sfumato.accounting.default_delta import default_delta, delta_note
from sfumato.cli.aggregator_flags import aggregator_of
from sfumato.cli.pate_settings import PateSettings
from sfumato.cli.places import account_at, begin_page, require_apart
from sfumato.cli.project.defaults import in_project
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.cli.voting_data import VotingData, named_data, own_data
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account
from sfumato.pate.run import PateRun
from sfumato.pate.settings import VoteKeywords
from sfumato.testing import seeded

__all__ = ["run"]

_ROWS = ("example", "row")


def run(settings: PateSettings, *, as_json: bool) -> None:
    """Ask teachers, train a student, and show the result."""
    settings = in_project(settings)
    _require(settings)
    with waiting("Loading"):
        data = own_data(settings) if settings.is_own else named_data(settings)
    account = account_at(settings.ledger, settings.account, purpose=settings.purpose)
    _require_unit(settings, data, account)
    terms = _terms(settings, data, account)
    _require_places(settings)
    done = pate.train(
        data.teacher,
        data.student,
        data.rows,
        data.labels,
        public=data.public,
        classes=data.classes,
        student_public=data.student_public,
        evaluation=data.evaluation,
        **terms,
    )
    if settings.report is not None:
        _write_page(settings, data, done, account)
    _show(settings, data, done, as_json=as_json)


# --- before the run ---------------------------------------------------------------------------------------


def _require(settings: PateSettings) -> None:
    if settings.data is None:
        raise InvalidParameterError("pass what to learn: `sfumato pate digits --epsilon 8`.")
    if settings.epsilon is None:
        raise InvalidParameterError("pass how private all answers together must be: --epsilon.")
    _check.positive(epsilon=settings.epsilon)
    if settings.delta is not None:
        _check.delta(delta=settings.delta)
    for name in ("teachers", "queries", "audit", "contribution_bound"):
        if getattr(settings, name) is not None:
            _check.count(**{name: getattr(settings, name)})


def _require_unit(settings: PateSettings, data: VotingData, account: Account | None) -> None:
    """Raise if an account protects another unit than the data has; `--privacy-unit` names a column."""
    if settings.contribution_bound is not None and settings.privacy_unit is None and settings.is_own:
        raise InvalidParameterError(
            "--contribution-bound is for owners of several rows: pass --privacy-unit, their column, too."
        )
    if account is None or settings.privacy_unit is not None or account.privacy_unit in _ROWS:
        return
    whose = (
        "nothing says whose the rows are. Pass --privacy-unit, the column that names the owner of each row."
        if settings.is_own
        else f"a unit of {data.name} is one example. Give an account whose privacy unit is 'example'."
    )
    raise InvalidParameterError(
        f"account {account.name!r} protects one {account.privacy_unit!r}, but {whose}"
    )


def _unit(settings: PateSettings, data: VotingData, account: Account | None) -> str | None:
    """Return who is protected: an owner, or one row, in the word that the account has for it."""
    if settings.privacy_unit is None and account is not None:
        return account.privacy_unit
    return data.privacy_unit


def _terms(settings: PateSettings, data: VotingData, account: Account | None) -> VoteKeywords:
    """Return what the job is planned from, who pays, and where and how teachers learn."""
    aggregator, agreement = aggregator_of(settings, data.usual, teachers=data.teachers)
    purpose = settings.purpose or f"answers of teachers on {data.name} about public rows"
    return {
        "epsilon": settings.epsilon,
        "delta": _delta(settings, data, account),
        "teachers": data.teachers,
        "aggregator": aggregator,
        "queries": settings.queries,
        "agreement": agreement,
        "privacy_unit": _unit(settings, data, account),
        "account": account,
        "purpose": None if account is None else purpose,
        "folder": settings.folder,
        "workers": 1 if settings.workers is None else settings.workers,
        "audit": None if settings.audit is None else _canaries(settings.audit),
        "generator": None if settings.seed is None else seeded(settings.seed),
    }


def _canaries(count: int) -> Any:
    from sfumato.audit import VoteCanaries

    return VoteCanaries(count=count)


def _delta(settings: PateSettings, data: VotingData, account: Account | None) -> float:
    if settings.delta is not None:
        return settings.delta
    if account is not None:
        return account.budget.delta
    if data.public_size is None:
        raise InvalidParameterError(
            "pass --delta, the chance that the guarantee fails: less than 1 over the number of owners."
        )
    return default_delta(data.public_size)


def _require_places(settings: PateSettings) -> None:
    folder = None if settings.folder is None else Path(settings.folder)
    if folder is not None and (folder / "answers.npy").exists():
        raise InvalidParameterError(
            f"the folder {settings.folder!r} holds the answers of another job, which were paid for. Give "
            "another --folder."
        )
    require_apart(
        [
            ("--report", settings.report),
            ("--folder", folder),
            ("--folder", None if folder is None else folder / "answers.npy"),
        ],
        {
            "the private data": settings.data if settings.is_own else None,
            "the data of --public": settings.public,
            "the data of --evaluation": settings.evaluation,
            "the ledger": settings.ledger,
        },
    )
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".tried").touch()
            (folder / ".tried").unlink()
    except OSError as error:
        raise InvalidParameterError(
            f"nothing can be written to {settings.folder!r}: {error.strerror}. Give another --folder."
        ) from error
    if settings.report is not None:
        begin_page(settings.report)


# --- after the run ----------------------------------------------------------------------------------------


def _write_page(settings: PateSettings, data: VotingData, done: PateRun, account: Account | None) -> None:
    assert settings.report is not None
    done.report(
        settings.report,
        title=f"{data.name}, learned from private teachers",
        data=data.name,
        settings={name.replace("_", " "): value for name, value in _shown(settings, done).items()},
        ledger_statement=None if account is None else account.statement().text,
    )


def _shown(settings: PateSettings, done: PateRun) -> dict[str, Any]:
    """Return what was set and what was planned, all of it public."""
    planned = {"teachers": done.answers.facts["teachers"], "delta": done.guarantee.delta}
    return (
        settings.given()
        | planned
        | {"queries": done.answers.asked, "aggregator": done.answers.facts["aggregator"]}
    )


def _show(settings: PateSettings, data: VotingData, done: PateRun, *, as_json: bool) -> None:
    large = delta_note(done.guarantee.delta, data.public_size)
    if as_json:
        said = done.answers.record_note, done.answers.study_note, large
        told = {"data": data.name, "settings": settings.given()} | json.loads(done.to_json())
        told |= {"account": settings.account, "answers_per_class": done.answers.per_class}
        show_facts("", told | {"notes": [note for note in said if note is not None]}, as_json=True)
        return
    facts = {name: value for name, value in _facts(settings, data, done).items() if value is not None}
    show_facts(str(done.guarantee), facts, as_json=False)
    show_text(f"\n{done.statement()}")
    if large is not None:
        show_text(f"\nNote: {large}.")
    if settings.delta is None and settings.account is None:
        show_text(
            f"\nDelta was not given: {done.guarantee.delta:g} is the largest power of ten below one over the "
            f"public size, {data.public_size}."
        )


def _facts(settings: PateSettings, data: VotingData, done: PateRun) -> dict[str, Any]:
    answers = done.answers
    return {
        "data": data.name,
        "accuracy": None if done.accuracy is None else f"{done.accuracy:.1%}",
        "epsilon": done.guarantee.epsilon,
        "delta": done.guarantee.delta,
        "relation": done.guarantee.relation.value,
        "privacy_unit": done.guarantee.privacy_unit,
        "teachers": answers.facts["teachers"],
        "aggregator": answers.facts["aggregator"],
        "asked": answers.asked,
        "answered": answers.answered,
        "recorded": answers.account is not None and answers.record_note is None,
        "account": settings.account,
        "folder": settings.folder,
        "report": settings.report,
    }
