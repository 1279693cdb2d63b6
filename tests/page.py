# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a page in one process, as a notebook would, and writes what each of them printed.

Arguments: a JSON file with the cells, and the file for what they print.
"""

import ast
import contextlib
import io
import json
import linecache
import shlex
import sys
from pathlib import Path
from typing import Any


def run_code(_source: str, _name: str, _namespace: dict[str, Any]) -> None:
    """Run a block; show its last line if that is an expression."""
    linecache.cache[_name] = (len(_source), None, _source.splitlines(keepends=True), _name)
    tree = ast.parse(_source, _name)
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    exec(compile(tree, _name, "exec"), _namespace)
    exec(compile(ast.Interactive(last), _name, "single"), _namespace)


def run_commands(lines: list[str], fails: bool) -> None:
    """Run commands in this process: a process for each would import everything again."""
    from sfumato import cli

    for line in lines:
        sys.argv = shlex.split(line)
        if sys.argv[0] != "sfumato":
            raise SystemExit(f"not a command of sfumato: {line}")
        try:
            cli.main()
            code: object = 0
        except SystemExit as stop:
            code = stop.code
        if bool(code) != fails:
            raise SystemExit(f"{line}\nended with {code}")


def run_page(_cells: list[dict[str, Any]], _namespace: dict[str, Any]) -> list[str]:
    """Run the cells of a page in order and return what each of them printed."""
    printed: list[str] = []
    for _number, _cell in enumerate(_cells):
        with contextlib.redirect_stdout(io.StringIO()) as _out:
            if _cell["kind"] == "python":
                run_code(_cell["source"], f"<cell {_number}>", _namespace)
            elif _cell["kind"] == "console":
                with contextlib.redirect_stderr(_out):  # where refusals are written
                    run_commands(_cell["source"].splitlines(), _cell["fails"])
        printed.append(_out.getvalue())
    return printed


if __name__ == "__main__":
    sys.path[0] = ""  # the folder of the page, as in a notebook: tests/ has folders named like packages
    # In the names of this module: what a page defines is in `__main__`, as in a notebook.
    Path(sys.argv[2]).write_text(json.dumps(run_page(json.loads(Path(sys.argv[1]).read_text()), globals())))
