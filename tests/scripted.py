# SPDX-License-Identifier: Apache-2.0
"""Runs a script as `python script arguments...` would: what a process that `conftest` starts does."""

import atexit
import os
import runpy
import sys

if "TASK" in globals():
    script, arguments, folder, environment = globals()["TASK"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing does not
