# SPDX-License-Identifier: Apache-2.0
"""Versions of Python and of packages, against the ranges in the metadata of the installed sfumato.

Packages are found and not imported. An extra is installed if all packages that it names are. A core package
outside its range is broken, because what a release costs was tested with those in it; one of an extra is a
warning.
"""

import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sfumato._extras import how_to_install
from sfumato.cli.doctor.findings import Finding, State

__all__ = ["EXTRAS", "check", "pairs", "version_of"]

AREA = "versions"

# What each extra is for; which packages it brings is in the metadata.
EXTRAS: Mapping[str, str] = {
    "tables": "frames, files and databases: sfumato.open, stats, fit, synthesize",
    "torch": "networks: train, labels, PATE, synthetic images, audits of runs",
    "spark": "tables on a Spark cluster",
    "postgres": "a ledger in PostgreSQL, for a team",
    "federated": "federations on Flower",
    "images": "folders of images",
    "plots": "figures for papers and slides",
    "huggingface": "the Trainer of Hugging Face",
    "lightning": "modules of Lightning",
    "loggers": "TensorBoard, MLflow, Weights & Biases",
    "notebooks": "running the tutorials as notebooks",
    "web": "a web studio; nothing uses it yet",
}
_BUNDLES = ("all", "dev")


def check() -> Iterator[Finding]:
    """Yield what is found about Python, the packages of the core and those of extras."""
    try:
        about = metadata.metadata("sfumato")
    except metadata.PackageNotFoundError:
        yield _finding(
            "sfumato",
            State.WARNING,
            "it runs from a folder and is not installed, so that its ranges are unknown",
            how_to_install(),
        )
        return
    requirements = [Requirement(text) for text in metadata.requires("sfumato") or []]
    yield _finding("sfumato", State.OK, f"version {about['Version']}")
    yield _python(about["Requires-Python"] or "")
    yield from _core([each for each in requirements if _wanted(each, "")])
    for extra in about.get_all("Provides-Extra") or []:
        if extra not in _BUNDLES:
            yield _extra(extra, _all_of(extra, requirements))
    yield from pairs()


@cache
def version_of(name: str) -> Version | None:
    """Return the version of a package that is installed, or None."""
    try:
        return Version(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def _finding(name: str, state: State, found: str, advice: str | None = None) -> Finding:
    return Finding(area=AREA, name=name, state=state, found=found, advice=advice)


def _python(supported: str) -> Finding:
    here = platform.python_version()
    if SpecifierSet(supported).contains(here, prereleases=True):
        return _finding("Python", State.OK, f"{here}, {sys.platform}")
    return _finding("Python", State.BROKEN, f"{here}, but {supported} is needed", "Install another Python.")


def _wanted(requirement: Requirement, extra: str) -> bool:
    """Return whether a requirement holds for the core ("") or for an extra, on this machine."""
    marker = requirement.marker
    if extra == "":
        return marker is None or marker.evaluate({"extra": ""})
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _all_of(extra: str, requirements: list[Requirement]) -> list[Requirement]:
    """Return the packages of an extra, with those of the extras that it consists of."""
    found: list[Requirement] = []
    for each in requirements:
        if not _wanted(each, extra):
            continue
        if each.name == "sfumato":
            found += [inner for part in sorted(each.extras) for inner in _all_of(part, requirements)]
        else:
            found.append(each)
    return found


def _outside(requirements: list[Requirement]) -> list[str]:
    """Return what is installed in another version than it should be."""
    found: list[str] = []
    for each in requirements:
        version = version_of(each.name)
        if version is not None and not each.specifier.contains(version, prereleases=True):
            found.append(f"{each.name} {version} (supported: {each.specifier})")
    return found


def _core(requirements: list[Requirement]) -> Iterator[Finding]:
    missing = [each.name for each in requirements if version_of(each.name) is None]
    outside = _outside(requirements)
    if missing or outside:
        lacking = [f"{name} is missing" for name in missing]
        yield _finding(
            "core packages",
            State.BROKEN,
            "; ".join([*lacking, *outside]),
            how_to_install(),
        )
    else:
        yield _finding("core packages", State.OK, f"all {len(requirements)} are in their ranges")


def _extra(extra: str, requirements: list[Requirement]) -> Finding:
    name, use = f"extra {extra}", EXTRAS.get(extra, "")
    advice = how_to_install(extra)
    missing = sorted({each.name for each in requirements if version_of(each.name) is None})
    if missing:
        found = f"not installed ({', '.join(missing)}): {use}"
        return _finding(name, State.ABSENT, found, advice)
    if outside := _outside(requirements):
        return _finding(name, State.WARNING, f"{'; '.join(outside)}: {use}", advice)
    return _finding(name, State.OK, f"installed: {use}")


def pairs() -> Iterator[Finding]:
    """Yield the pairs of packages that are known not to work together, and are both here."""
    ibis, sqlglot = version_of("ibis-framework"), version_of("sqlglot")
    if ibis is not None and sqlglot is not None and ibis.major == 12 and sqlglot >= Version("30.18"):
        yield _finding(
            "ibis and sqlglot",
            State.BROKEN,
            f"ibis {ibis} does not work with sqlglot {sqlglot}: tables cannot be read",
            "Run: pip install 'sqlglot<30.18'",
        )
    duckdb = version_of("duckdb")
    if ibis is not None and duckdb is not None and ibis.major == 12 and duckdb.major >= 2:
        yield _finding(
            "ibis and duckdb",
            State.BROKEN,
            f"ibis {ibis} does not work with duckdb {duckdb}: it calls methods that are gone",
            "Run: pip install 'duckdb<2'",
        )
