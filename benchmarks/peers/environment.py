# SPDX-License-Identifier: Apache-2.0
"""Work handed to the peers' own environment, `.venv-peers`: diffprivlib wants an older scikit-learn."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.results import Row, left_out

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"


def absent_peers(subject: str) -> Iterator[Row]:
    """Yield a row that says so where the peers are not installed."""
    if not PYTHON.exists():
        yield left_out(subject, "the peers are not installed: make bench-peers")


def ask_peers(work: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Return what each peer answers; nothing where they are not installed."""
    if not PYTHON.exists():
        return {}
    command = [str(PYTHON), str(HERE / "work.py"), work]
    done = subprocess.run(command, input=json.dumps(setting), text=True, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)
