# SPDX-License-Identifier: Apache-2.0
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from sfumato._extras import how_to_install
from sfumato.cli.doctor import packages
from sfumato.cli.doctor.findings import State

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.fixture
def installed(monkeypatch):
    """Let packages have other versions, or none."""

    def change(**versions):
        real = packages.version_of
        named = {name.replace("_", "-"): version for name, version in versions.items()}

        def version_of(name):
            if name not in named:
                return real(name)
            return None if named[name] is None else Version(named[name])

        monkeypatch.setattr(packages, "version_of", version_of)
        return {each.name: each for each in packages.check()}

    return change


def test_every_extra_has_a_purpose():
    assert set(packages.EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all", "dev"}


def test_a_tested_install_is_fine(installed):
    found = installed()
    assert found["sfumato"].found == f"version {metadata.version('sfumato')}"
    assert found["Python"].state is found["core packages"].state is State.OK
    assert found["extra tables"].state is State.OK and "stats" in found["extra tables"].found
    assert "ibis and sqlglot" not in found


def test_a_core_package_outside_its_range_is_broken(installed):
    found = installed(opendp="0.17.0")["core packages"]
    assert found.state is State.BROKEN and "opendp 0.17.0 (supported: <0.17,>=0.16)" in found.found
    assert found.advice == how_to_install()


def test_a_core_package_that_is_gone_is_broken(installed):
    found = installed(pooch=None)["core packages"]
    assert found.state is State.BROKEN and found.found == "pooch is missing"


def test_an_extra_is_installed_if_all_its_packages_are(installed):
    found = installed(pandas=None)
    assert found["extra tables"].state is State.ABSENT
    assert "not installed (pandas)" in found["extra tables"].found
    assert found["extra tables"].advice == how_to_install("tables")
    assert found["core packages"].state is State.OK


def test_an_extra_of_extras_needs_theirs(installed):
    found = installed(torch=None)
    assert found["extra torch"].state is found["extra lightning"].state is State.ABSENT
    assert "torch" in found["extra lightning"].found


def test_an_extra_outside_its_range_is_a_warning(installed):
    found = installed(torch="2.5.1")["extra torch"]
    assert found.state is State.WARNING and "torch 2.5.1 (supported: >=2.6)" in found.found


@pytest.mark.parametrize(
    ("versions", "name", "wrong"),
    [
        ({"ibis_framework": "12.0.0", "sqlglot": "30.18.0"}, "ibis and sqlglot", True),
        ({"ibis_framework": "12.0.0", "sqlglot": "30.17.9"}, "ibis and sqlglot", False),
        ({"ibis_framework": "11.0.0", "sqlglot": "31.0.0"}, "ibis and sqlglot", False),
        ({"ibis_framework": None, "sqlglot": "31.0.0"}, "ibis and sqlglot", False),
        ({"ibis_framework": "12.1.0", "duckdb": "2.0.0"}, "ibis and duckdb", True),
        ({"ibis_framework": "12.1.0", "duckdb": "1.9.0"}, "ibis and duckdb", False),
    ],
)
def test_pairs_that_do_not_work_together_are_broken(installed, versions, name, wrong):
    installed(**versions)
    found = {each.name: each for each in packages.pairs()}
    assert (name in found) == wrong
    if wrong:
        assert found[name].state is State.BROKEN and "pip install" in found[name].advice


def test_another_python_is_broken(monkeypatch):
    monkeypatch.setattr(packages.platform, "python_version", lambda: "3.9.1")
    found = {each.name: each for each in packages.check()}["Python"]
    assert found.state is State.BROKEN and f"{PROJECT['requires-python']} is needed" in found.found


def test_a_folder_that_is_not_installed_is_a_warning(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.metadata, "metadata", missing)
    (found,) = packages.check()
    assert found.state is State.WARNING and "is not installed" in found.found


def test_requirements_of_other_systems_do_not_count():
    here = Requirement("numpy>=1; extra == 'x'")
    elsewhere = Requirement("pywin32>=1; platform_system == 'Nowhere' and extra == 'x'")
    assert packages._all_of("x", [here, elsewhere]) == [here]
