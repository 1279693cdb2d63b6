# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato doctor`: what is installed here, whether it works, and what to do where it does not.

Exit codes: 0 if nothing is broken, also with warnings; 1 if something is. Nothing is changed, and no private
value is read or shown: of a ledger, names and numbers of releases.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sfumato.cli.doctor.findings import Finding, State, checked
from sfumato.cli.options import Json, LedgerAt
from sfumato.cli.project.defaults import DEFAULT_LEDGER, LEDGER_VARIABLE
from sfumato.cli.quick_start import uncollected
from sfumato.cli.show import show_facts, show_table, show_text, waiting
from sfumato.errors import InvalidParameterError

__all__ = ["command"]


def command(
    *,
    ledger: LedgerAt = None,
    gpu: Annotated[
        bool | None,
        typer.Option(
            "--gpu/--no-gpu",
            help="Import PyTorch and ask it about GPUs, or not. Default: only where a GPU was found.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this install: versions, GPU, secure noise, data folders, settings and the health of a ledger.

    Exits with 1 if something is broken, and says what to do. Warnings exit with 0.
    """
    with waiting("Looking"), uncollected():
        findings = list(_found(ledger, gpu))
    broken = [each for each in findings if each.state is State.BROKEN]
    if as_json:
        told = {"ok": not broken, "checks": [each.to_dict() for each in findings]}
        show_facts("", told, as_json=True)
    else:
        _show(findings)
    if broken:
        raise typer.Exit(1)


def _found(ledger: str | None, gpu: bool | None) -> Iterator[Finding]:
    """Yield all findings; what each check needs is imported when it is made."""
    from sfumato.cli.doctor import folders, ledger_health, packages, secure_noise, settings_health
    from sfumato.cli.doctor import gpu as devices

    yield from checked(packages.AREA, packages.check)
    yield from checked(secure_noise.AREA, secure_noise.check)
    yield from checked(folders.AREA, folders.check)
    yield from checked(settings_health.AREA, settings_health.check)
    place, is_named = _ledger(ledger)
    yield from checked(ledger_health.AREA, lambda: ledger_health.check(place, is_named=is_named))
    yield from checked(devices.AREA, lambda: devices.check(ask_torch=gpu))


def _ledger(said: str | None) -> tuple[str, bool]:
    """Return where the ledger is, and whether it was named. A settings file that is wrong names none."""
    from sfumato.cli.project.settings_file import read_settings

    named = said or os.environ.get(LEDGER_VARIABLE)
    with contextlib.suppress(InvalidParameterError):  # told by the check of that file
        named = named or read_settings().ledger
    return named or DEFAULT_LEDGER, named is not None


_SHOWN = {State.OK: "ok", State.ABSENT: "-", State.WARNING: "WARNING", State.BROKEN: "BROKEN"}


def _show(findings: Sequence[Finding]) -> None:
    """Show a table, and below it what to do."""
    rows = [
        {"area": each.area, "check": each.name, "state": _SHOWN[each.state], "found": each.found}
        for each in findings
    ]
    show_table("sfumato doctor", rows)
    urgent = [each for each in findings if each.state in (State.BROKEN, State.WARNING)]
    for each in sorted(urgent, key=lambda one: one.state is not State.BROKEN):
        show_text(f"\n{_SHOWN[each.state]}  {each.area}, {each.name}: {each.found}.\n  {each.advice or ''}")
    broken = sum(each.state is State.BROKEN for each in findings)
    warnings = sum(each.state is State.WARNING for each in findings)
    show_text(f"\n{broken} broken, {warnings} warning{'' if warnings == 1 else 's'}.")
