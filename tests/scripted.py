# SPDX-License-Identifier: Apache-2.0
"""Runs a script as `python SCRIPT ARGUMENTS...` would; `conftest.start_script` starts processes that run this."""

import os
import runpy
import sys

SCRIPT: str
ARGUMENTS: list[str]
ENVIRONMENT: dict[str, str]

if __name__ == "scripted":
    os.environ.update(ENVIRONMENT)
    sys.argv = [SCRIPT, *ARGUMENTS]
    runpy.run_path(SCRIPT, run_name="__main__")
