# SPDX-License-Identifier: Apache-2.0
"""What README shows runs after what README installs, and nothing else has to be there: no torch, for one."""

import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXTRA = re.search(r"^pip install -c constraints.txt \"\.\[(\w+)\]\" ", README, re.MULTILINE)[1]
WITH_TORCH = re.search(
    r"^pip install torch==\S+ && pip install -c constraints.txt \"\.\[([\w,]+)\]\" ", README, re.MULTILINE
)[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHON = "\n".join(re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^\$ (sfumato .*)$", README, re.MULTILINE)

# Other packages of the machine are hidden by failing their import, as it fails where they are absent.
HIDE = """
import sys
hidden = set({hidden!r})

class Hide:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide)
"""


def needed(name: str, extras: frozenset[str] = frozenset(), seen: set[str] | None = None) -> set[str]:
    """Return all packages that one needs, by their metadata; those that are not installed count too."""
    seen = set() if seen is None else seen
    seen.add(canonicalize_name(name))
    for one in wanted_by(name, extras):
        asked = any(one.marker.evaluate({"extra": e}) for e in extras | {""}) if one.marker else True
        if asked and (canonicalize_name(one.name) not in seen or one.extras):
            needed(one.name, frozenset(one.extras), seen)
    return seen


def wanted_by(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return what a package asks for: ours by its pyproject.toml, however long ago it was installed."""
    if name == PROJECT["name"]:
        lines = [line for extra in sorted(extras) for line in PROJECT["optional-dependencies"][extra]]
        return [Requirement(line) for line in PROJECT["dependencies"] + lines]
    try:
        return [Requirement(line) for line in importlib.metadata.requires(name) or ()]
    except importlib.metadata.PackageNotFoundError:
        return []


def not_installed_by_readme(*extras: str) -> list[str]:
    """Return the modules that are here and would not be there after README's line."""
    there = needed("sfumato", frozenset(extras))
    found = importlib.metadata.packages_distributions()
    return sorted(
        module for module, owners in found.items() if not {canonicalize_name(o) for o in owners} & there
    )


def test_what_readme_shows_needs_only_what_readme_installs(tmp_path):
    hidden = not_installed_by_readme(EXTRA)
    assert {"pytest", "torch"} <= set(hidden) and "pandas" not in hidden
    assert "torch" not in not_installed_by_readme(*WITH_TORCH.split(","))
    calls = "".join(
        f"import sfumato.cli, sys\nsys.argv = {shlex.split(command)!r}\n"
        "try:\n    sfumato.cli.main()\nexcept SystemExit as stop:\n    assert not stop.code, sys.argv\n"
        for command in COMMANDS
    )
    script = tmp_path / "readme.py"
    script.write_text(HIDE.format(hidden=hidden) + PYTHON + calls)
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_built_wheel_runs_what_readme_shows_in_a_clean_environment(tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("sfumato-*.whl")
    subprocess.run(
        [*pip, "install", "-c", ROOT / "constraints.txt", f"sfumato[{EXTRA}] @ {wheel.as_uri()}"], check=True
    )
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1
    script = tmp_path / "readme.py"
    script.write_text(PYTHON)
    subprocess.run([python, script], cwd=tmp_path, check=True)
    for command in COMMANDS:
        name, *rest = shlex.split(command)
        subprocess.run([python.parent / name, *rest], cwd=tmp_path, check=True)
    train = [python.parent / "sfumato", "train", "digits", "--epsilon", "1"]
    refused = subprocess.run(train, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and 'pip install -c constraints.txt ".[torch]"' in " ".join(
        refused.stderr.split()
    )
