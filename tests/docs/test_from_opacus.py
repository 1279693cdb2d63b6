# SPDX-License-Identifier: Apache-2.0
"""The scripts "Before" of docs/tutorials/from-opacus.md run with Opacus, where that is installed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "from-opacus.md").read_text()
BEFORE = re.findall(r'^```python title="Before: Opacus"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
DATA = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
SCRIPT = "\n".join([re.sub(r"^.*\bsfumato\b.*\n", "", DATA, flags=re.MULTILINE), *BEFORE])


def undefined(script: str) -> list[str]:
    ruff = [Path(sys.executable).parent / "ruff", "check", "--isolated", "--output-format=concise"]
    found = subprocess.run([*ruff, "--select=F821", "-"], input=script, capture_output=True, text=True)
    assert found.returncode in (0, 1), found.stderr
    return re.findall(r"Undefined name `(\w+)`", found.stdout)


def test_each_script_before_says_where_its_names_come_from():
    assert len(BEFORE) == 6 and undefined(SCRIPT) == []
    assert undefined(SCRIPT.replace("PrivacyEngine\n", "Nothing\n", 1)) != []


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("opacus") is None,
    reason="Opacus is not installed: `pip install opacus==1.6.0` runs the scripts before, too",
)
def test_the_scripts_before_run_with_opacus(tmp_path, exit_code):
    script = tmp_path / "before.py"
    script.write_text(SCRIPT)
    assert exit_code(script, cwd=tmp_path) == 0
