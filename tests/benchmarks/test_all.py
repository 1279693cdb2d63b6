# SPDX-License-Identifier: Apache-2.0
"""The program that runs every benchmark: beside small ones that meet a bar, miss it, fail or do not end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "all.py"

MEETS = """
import json, sys
print("a row as it comes", file=sys.stderr)
rows = [
    {"what": "speed: of this", "value": 2.0, "bar": 1.5, "met": True},
    {"what": "speed: of that", "value": 7.0, "bar": None, "met": None},
    {"what": "data: left out", "subject": "data", "value": None, "bar": None, "met": None,
     "left_out": True, "note": "no such folder"},
    {"what": "arguments", "value": len(sys.argv), "bar": None, "met": None, "note": " ".join(sys.argv[1:])},
]
print(json.dumps(rows))
"""
MISSES = """
import json
row = {"what": "ratio: [one] over other", "value": 0.25, "bar": 0.5, "met": False, "limit": ">= 0.5"}
print(json.dumps([row, {"what": "no value", "value": None, "bar": 1, "met": False}]))
raise SystemExit(1)
"""
FAILS = """
raise ValueError("the disk is full")
"""
PRINTS_TEXT = """
print("a table for people")
"""
LACKS_A_KEY = """
print('[{"what": "speed", "value": 1.0, "bar": null}]')
"""
FAILS_AFTER_ITS_ROWS = """
print('[{"what": "speed", "value": 1.0, "bar": null, "met": null}]')
raise SystemExit("it cannot remove its folder")
"""
TELLS_ITS_THREADS = """
import json, os
note = os.environ.get("OMP_NUM_THREADS", "")
print(json.dumps([{"what": "threads", "value": None, "bar": None, "met": None, "note": note}]))
"""
IS_KILLED = """
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
# It starts a process that outlives it, unless that is ended with it, and says that it waits.
WAITS = """
import pathlib, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
try:
    print("it waits", other.pid, file=sys.stderr, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path(__file__).with_name("cleaned").touch()
    raise
"""
LEAVES_A_PROCESS = """
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("[]")
print("left", other.pid, file=sys.stderr, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(PROGRAM, tmp_path)
    return tmp_path


def given(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def ran(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / PROGRAM.name), *options]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


def as_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {each["file"]: each for each in json.loads(done.stdout)}


def rows_of(table: str) -> dict[str, list[str]]:
    """Return the cells of each row of the summary, by their first one."""
    rows = [line.split("│")[1:-1] for line in table.splitlines() if line.startswith("│")]
    return {first.strip(): [cell.strip() for cell in cells] for first, *cells in rows}


def lives(pid: int) -> bool:
    """Whether a process runs; one that ended and was not reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_every_file_runs_after_a_missed_bar_and_after_a_failure(folder: Path):
    given(folder, a_misses=MISSES, b_fails=FAILS, c_text=PRINTS_TEXT, d_killed=IS_KILLED, e_meets=MEETS)
    done = ran(folder)
    assert done.returncode == 1
    assert "a_misses.py: ratio: [one] over other: 0.25, bar >= 0.5" in done.stdout
    assert "a_misses.py: no value: no value, bar 1" in done.stdout
    assert "b_fails.py: exit status 1: ValueError: the disk is full" in done.stdout
    assert "c_text.py: --json printed no JSON: 'a table for people" in done.stdout
    assert "d_killed.py: ended by SIGKILL" in done.stdout
    assert "e_meets.py: data: no such folder" in done.stdout
    numbers = {name: cells[:4] for name, cells in rows_of(done.stdout).items()}
    assert numbers["a_misses.py"] == ["2", "0", "2", "0"]  # bars, met, missed, left out
    assert numbers["e_meets.py"] == ["1", "1", "0", "1"]
    assert numbers["all"] == ["3", "1", "2", "1"]


def test_what_a_file_prints_is_shown_as_it_comes(folder: Path):
    given(folder, fails=FAILS, meets=MEETS)
    shown = ran(folder).stderr
    assert shown.index("== fails.py, 1 of 2") < shown.index("Traceback") < shown.index("== meets.py, 2 of 2")
    assert shown.index("== meets.py, 2 of 2") < shown.index("a row as it comes")


def test_the_exit_status_is_0_where_every_bar_is_met_and_something_is_left_out(folder: Path):
    given(folder, meets=MEETS)
    assert ran(folder).returncode == 0


@pytest.mark.parametrize(
    "failing", [MISSES, FAILS, PRINTS_TEXT, LACKS_A_KEY, FAILS_AFTER_ITS_ROWS, IS_KILLED]
)
def test_the_exit_status_is_1_where_a_bar_is_missed_or_a_file_fails(folder: Path, failing: str):
    given(folder, failing=failing, meets=MEETS)
    assert ran(folder).returncode == 1


def test_json_holds_the_rows_of_each_file_and_why_there_are_none(folder: Path):
    given(folder, lacks=LACKS_A_KEY, late=FAILS_AFTER_ITS_ROWS, meets=MEETS, misses=MISSES)
    done = ran(folder, "--json", "--quick")
    found = as_json(done)
    assert found["meets.py"]["error"] == "" and len(found["meets.py"]["rows"]) == 4
    assert found["meets.py"]["rows"][-1]["note"] == "--json --quick"
    assert found["misses.py"]["error"] == "" and not found["misses.py"]["rows"][0]["met"]
    assert found["lacks.py"]["error"] == "--json printed a row without met"
    late = "exit status 1, though no bar is missed: it cannot remove its folder"
    assert found["late.py"]["error"] == late
    assert done.returncode == 1
    assert all(each["seconds"] >= 0 and each["cpu_seconds"] > 0 for each in found.values())


def test_a_quick_run_has_one_thread_unless_another_number_is_asked_for(folder: Path):
    given(folder, tells=TELLS_ITS_THREADS)

    def threads(*options: str, **variables: str) -> str:
        return as_json(ran(folder, "--json", *options, **variables))["tells.py"]["rows"][0]["note"]

    assert threads("--quick") == "1"
    assert threads("--quick", OMP_NUM_THREADS="3") == "3"
    assert threads() == ""


def test_some_files_are_chosen_by_name_or_path_and_run_in_that_order(folder: Path):
    given(folder, fails=FAILS, meets=MEETS, misses=MISSES)
    done = ran(folder, "--json", "misses", str(folder / "meets.py"))
    assert list(as_json(done)) == ["misses.py", "meets.py"]
    unknown = ran(folder, "mets")
    assert unknown.returncode == 2
    assert "no benchmark is called mets. There are: fails, meets, misses" in unknown.stderr


def test_a_process_that_a_file_leaves_running_is_ended(folder: Path):
    given(folder, leaves=LEAVES_A_PROCESS)
    done = ran(folder)
    assert done.returncode == 0
    assert not lives(int(done.stderr.split("left ")[1].split()[0]))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_file_and_shows_what_was_found_before(folder: Path, sent: int):
    given(folder, a_meets=MEETS, b_waits=WAITS, c_meets=MEETS)
    command = [sys.executable, str(folder / PROGRAM.name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        limit = threading.Timer(60, process.kill)
        limit.start()
        line = next(line for line in process.stderr if line.startswith("it waits"))
        os.kill(process.pid, sent)
        table, _ = process.communicate()
        limit.cancel()
    states = {name: cells[-1] for name, cells in rows_of(table).items() if name != "all"}
    assert states == {"a_meets.py": "", "b_waits.py": "interrupted", "c_meets.py": "not run"}
    assert process.returncode == 130
    assert (folder / "cleaned").exists()
    assert not lives(int(line.split()[-1]))
