# SPDX-License-Identifier: Apache-2.0
"""What a shell gets when Tab is pressed: by the protocol, and in a bash of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato import Budget, Ledger

BASH = shutil.which("bash")


@pytest.fixture
def completed(ran, monkeypatch):
    """Return what bash is offered for the last word of a line."""

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        with monkeypatch.context() as patch:
            patch.setenv("_SFUMATO_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", "\n".join(words))
            patch.setenv("COMP_CWORD", str(len(words) - 1))
            code, out, err = ran("")
        assert code == 0 and err == ""
        return out.split("\n")[:-1] if out.strip() else []

    return ask


def test_commands_are_completed(completed):
    assert completed("sfumato tr") == ["train"]
    assert {"init", "doctor", "completion", "ledger"} <= set(completed("sfumato "))
    assert completed("sfumato ledger st") == ["statement"]


def test_flags_are_completed(completed):
    assert completed("sfumato train --eps") == ["--epsilon"]
    assert completed("sfumato audit --no-m") == ["--no-membership"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sfumato train mn", ["mnist"]),
        ("sfumato federate f", ["fashion-mnist"]),
        ("sfumato pate sh", []),  # PATE has no sequences
        ("sfumato train --method mu", ["multi-stage"]),
        ("sfumato synthesize --method pa", ["pate-cgan"]),
        ("sfumato stats people.csv me", ["mean", "median"]),
        ("sfumato fit people.csv t", ["theil-sen", "tukey-em"]),
        ("sfumato account --relation rep", ["replace-one", "replace-label"]),
        ("sfumato account --accountant p", ["pld"]),
        ("sfumato reproduce r5-cl", ["r5-clipping-kernel"]),
        ("sfumato completion f", ["fish"]),
        ("sfumato stats peo", []),  # a file: the shell completes it
    ],
)
def test_values_are_completed(completed, line, words):
    found = completed(line)
    assert (set(words) <= set(found)) if words else found == []
    assert all(word.startswith(line.split(" ")[-1]) for word in found)


def test_accounts_of_a_ledger_are_completed(completed):
    for name in ("people", "patients", "clients"):
        Ledger("ledger.db").open(name, privacy_unit="id", budget=Budget(epsilon=1, delta=0))
    assert completed("sfumato ledger show p") == ["people", "patients"]
    assert completed("sfumato stats a.csv count --epsilon 1 --account c") == ["clients"]
    assert completed("sfumato train digits --ledger ledger.db --account pa") == ["patients"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed_and_nothing_is_written(ran, shell, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, _ = ran(f"completion {shell}")
    assert code == 0 and "_SFUMATO_COMPLETE" in out and f"complete_{shell}" in out
    assert list(tmp_path.iterdir()) == []


TAB = """
{path}
eval "$(sfumato completion bash)"
complete -p sfumato
COMP_WORDS=(sfumato ledger st); COMP_CWORD=2
$(complete -p sfumato | sed 's/.*-F \\([^ ]*\\).*/\\1/') sfumato st ledger
echo "offered: ${{COMPREPLY[*]}}"
"""


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_bash_completes_a_line(tmp_path):
    """In a shell that reads no file of the user, with the script as it is printed."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "sfumato").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sfumato "$@"\n')
    (place / "sfumato").chmod(0o755)
    script = TAB.format(path=f'export PATH="{place}:$PATH"')
    done = subprocess.run(
        [str(BASH), "--noprofile", "--norc", "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(tmp_path),
        check=False,
    )
    assert "offered: statement" in done.stdout, done.stderr
    assert "-o default" in done.stdout  # files are completed where nothing else is
