# SPDX-License-Identifier: Apache-2.0
"""What a start loads: a heavy package that comes back to a command which does not need it fails here."""

import json
import shlex
import subprocess
import sys

import pytest

import sfumato
from sfumato import audit, datasets, ledger, mechanisms

HEAVY = {
    "dp_accounting",
    "duckdb",
    "ibis",
    "matplotlib",
    "opendp",
    "pandas",
    "polars",
    "pyarrow",
    "scipy",
    "scipy.optimize",
    "scipy.signal",
    "scipy.stats",
    "sklearn",
    "sqlalchemy",
    "torch",
}
LOADED = f"""
import json, sys
print(json.dumps(sorted({HEAVY!r} & set(sys.modules))), file=sys.stderr)
"""
COMMAND = """
import sys
import sfumato.cli

sys.argv = {argv!r}
try:
    sfumato.cli.main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
TABLE = "--type person=number --type age=number --privacy-unit person"
# What each start may load, and nothing else.
STARTS = {
    "--help": {"scipy"},
    "account --noise-multiplier 1.1 --sampling-rate 0.01 --steps 10 --delta 1e-5": {"scipy"},
    "plan --epsilon 3 --public-size 60000 --expected-batch-size 1024 --epochs 1": {"scipy", "scipy.optimize"},
    "ledger show --ledger ledger.db": {"scipy", "sqlalchemy"},
    f"stats people.csv mean age --bounds 0 100 --epsilon 1 {TABLE}": {
        "duckdb",
        "ibis",
        "opendp",
        "pyarrow",
        "scipy",
    },
    "doctor": {"opendp", "scipy"},
    "doctor --ledger ledger.db": {"opendp", "scipy", "sqlalchemy"},
    "completion bash": {"scipy"},
    "train --help": {"scipy"},
    "audit --help": {"scipy"},
}


def loaded(script: str, folder) -> set[str]:
    """Return the heavy packages that a script loads in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", script + LOADED], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stderr.splitlines()[-1]))


def test_importing_sfumato_loads_nothing_heavy(tmp_path):
    assert loaded("import sfumato", tmp_path) == set()


@pytest.mark.parametrize(
    "room", ["accounting", "ledger", "mechanisms", "statistics", "datasets", "report", "audit"]
)
def test_no_room_of_an_analyst_loads_torch_or_a_table_engine(room, tmp_path):
    found = loaded(f"import sfumato.{room}", tmp_path)
    assert found <= {"scipy"}


@pytest.mark.parametrize("line", STARTS)
def test_a_command_loads_what_it_needs_and_no_more(line, tmp_path):
    (tmp_path / "people.csv").write_text("person,age\n1,20\n2,30\n")
    if "ledger.db" in line:
        sfumato.Ledger(tmp_path / "ledger.db")
    found = loaded(COMMAND.format(argv=["sfumato", *shlex.split(line)]), tmp_path)
    assert found - STARTS[line] == set()


def test_the_check_sees_what_is_loaded(tmp_path):
    assert loaded("import scipy.signal", tmp_path) >= {"scipy", "scipy.signal"}


@pytest.mark.parametrize("package", [sfumato, audit, datasets, ledger, mechanisms], ids=lambda p: p.__name__)
def test_a_name_that_is_loaded_late_is_not_that_of_a_module(package):
    """Importing such a module would put it in the place of the name."""
    from pkgutil import iter_modules

    modules = {found.name for found in iter_modules(package.__path__)}
    rooms = modules if package is sfumato else set()  # the rooms themselves are public names
    assert set(package.__all__) & modules <= rooms
    assert dir(package) == sorted(dir(package)) and set(package.__all__) <= set(dir(package))
