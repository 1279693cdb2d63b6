# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato import cli


@pytest.fixture
def ran(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")  # no path is broken into lines
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)

    def run(line: str, *more: str):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split(), *more])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, " ".join(err.split())

    return run
