# SPDX-License-Identifier: Apache-2.0
"""Work handed to the peers' own environment, `.venv-peers`: diffprivlib wants an older scikit-learn."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"


def ask_peers(work: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Return what each peer answers; nothing, and a line on standard error, where they are not installed."""
    if not PYTHON.exists():
        print("The peers are not installed, their rows are left out: make bench-peers", file=sys.stderr)
        return {}
    command = [str(PYTHON), str(HERE / "work.py"), work]
    done = subprocess.run(command, input=json.dumps(setting), text=True, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)
