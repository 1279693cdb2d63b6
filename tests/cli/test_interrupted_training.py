# SPDX-License-Identifier: Apache-2.0
"""A `sfumato train` that is interrupted says in one paragraph where the run is, and how it goes on."""

import sys

import pytest

from sfumato.cli import main, training_run


def test_an_interrupted_command_says_how_the_run_goes_on(monkeypatch, capsys):
    def interrupted(*_, **__):
        error = KeyboardInterrupt()
        error.add_note("Stopped. The model is back at step 6. Continue with resume=True.")
        raise error

    monkeypatch.setattr(training_run, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["sfumato", "train", "digits", "--epsilon", "3"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 130
    assert "interrupted. Stopped. The model is back at step 6. Continue with --resume." in said
