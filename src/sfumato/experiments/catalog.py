# SPDX-License-Identifier: Apache-2.0
"""Which experiments there are: those of the five reports, and files of your own.

An experiment of a report is a module of `sfumato.experiments.r1` to `r5` that defines `EXPERIMENT`. One of
your own is a file with the same name in it: `find("my_experiment.py")`.
"""

import ast
import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import shlex
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import sfumato
from sfumato.errors import InvalidParameterError
from sfumato.experiments.conclusions import told
from sfumato.experiments.experiment import Experiment

__all__ = ["Listed", "experiments", "find", "of_file"]

_ROOT: Final = "sfumato.experiments"
REPORTS: Final = ("r1", "r2", "r3", "r4", "r5")


class Listed:
    """An experiment, where it was found, how a command names it, and a mark of its code."""

    def __init__(self, module: ModuleType, *, place: str, asked: str | None = None) -> None:
        found = getattr(module, "EXPERIMENT", None)
        if not isinstance(found, Experiment):
            raise InvalidParameterError(
                f"{place} defines no EXPERIMENT = sfumato.experiments.Experiment(...)."
            )
        self.experiment, self.place = found, place
        self.asked = found.name if asked is None else asked
        self._module = module

    @property
    def file(self) -> str | None:
        """The path of its file."""
        return self._module.__file__

    @property
    def code(self) -> str:
        """A hash of the version of sfumato and of the files of the experiment: other code, other results."""
        text = "\n".join([sfumato.__version__, *(Path(path).read_text() for path in _files(self._module))])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def experiments() -> dict[str, Listed]:
    """Return the experiments of all reports by name, report by report.

    Returns:
        From name to experiment.
    """
    found: dict[str, Listed] = {}
    for report in REPORTS:
        package = importlib.import_module(f"{_ROOT}.{report}")
        for name in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
            module = importlib.import_module(f"{package.__name__}.{name}")
            if hasattr(module, "EXPERIMENT"):
                listed = Listed(module, place=module.__name__)
                found[listed.experiment.name] = listed
    return found


def find(name: str) -> list[Listed]:
    """Return the experiments that a name stands for.

    Args:
        name: The name of an experiment, of a report such as "r1", "all", or a Python file.

    Returns:
        The experiments.

    Raises:
        InvalidParameterError: If there is none of this name, or the file defines none, fails, or defines one
            with a name like those of the reports.

    >>> find("r1-table-7")  # doctest: +SKIP
    Traceback (most recent call last):
    ...
    InvalidParameterError: unknown experiment 'r1-table-7'. Did you mean 'r1-table-2'? ...
    """
    if name.endswith(".py"):
        return [_own(of_file(Path(name)))]
    known = experiments()
    if name == "all":
        return list(known.values())
    if name.lower() in REPORTS:
        return [one for one in known.values() if one.experiment.report.lower() == name.lower()]
    if name not in known:
        raise InvalidParameterError(_unknown(name, [*known, *REPORTS, "all"]))
    return [known[name]]


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    meant = f" Did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    return f"unknown experiment {name!r}.{meant} `sfumato reproduce --list` shows all."


def of_file(path: Path) -> Listed:
    """Return the experiment that a Python file defines, by running the file.

    Args:
        path: The file.

    Returns:
        The experiment.

    Raises:
        InvalidParameterError: If there is no such file, it fails, or it defines no experiment.
    """
    if not path.is_file():
        raise InvalidParameterError(f"there is no file {str(path)!r}.")
    place = path.resolve()
    name = f"_sfumato_experiment_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None  # it is a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever it runs
        raise InvalidParameterError(f"{path.name} cannot be run: {told(error, str(place))}.") from error
    return Listed(module, place=str(place), asked=_asked(path))


def _asked(path: Path) -> str:
    """Return how a command line names a file: no path that only this machine has."""
    here = Path.cwd()
    if path.is_absolute():
        path = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return shlex.quote(path.as_posix())


def _own(listed: Listed) -> Listed:
    """Raise if an experiment of a file could be taken for one of the reports, and replace its results."""
    name = listed.experiment.name
    if name.partition("-")[0] in REPORTS:
        raise InvalidParameterError(
            f"{Path(listed.place).name} defines an experiment {name!r}, but names that begin with r1 to r5 "
            f"are those of the five reports. Give it another name, such as 'my-{name}'."
        )
    return listed


def _files(module: ModuleType) -> list[str]:
    """Return the file of a module and those of the experiments' modules that it imports, sorted."""
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if one.__file__ is None or one.__name__ in seen:
            continue
        seen[one.__name__] = one.__file__
        waiting += [sys.modules[name] for name in _imported(one.__file__) if name in sys.modules]
    return [seen[name] for name in sorted(seen)]


def _imported(path: str) -> set[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if any(name.startswith(f"{_ROOT}.{report}.") for report in REPORTS)}
