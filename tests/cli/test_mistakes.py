# SPDX-License-Identifier: Apache-2.0
"""A line that cannot be read is answered with the nearest word, once."""

import pytest


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trian digits", "No such command 'trian'. Did you mean 'train'?"),
        ("doktor", "No such command 'doktor'. Did you mean 'doctor'?"),
        ("ledger shw", "No such command 'shw'. Did you mean 'show'?"),
        ("train digits --epsilom 3", "No such option '--epsilom'. Did you mean '--epsilon'?"),
        ("train digits --privat rows", "No such option '--privat'. Did you mean '--private'?"),
        ("audit runs --no-membershp", "No such option '--no-membershp'. Did you mean '--no-membership'?"),
        ("stats people.csv maen age --epsilon 1", "Did you mean 'mean'?"),
        ("completion bsh", "Did you mean 'bash'?"),
        ("account --delta 1e-5 --accountant rpd", "Did you mean 'rdp'?"),
    ],
)
def test_the_nearest_word_is_named(ran, line, said):
    code, out, err = ran(line)
    assert code == 2 and out == ""
    assert said in err and err.count("Did you mean") == 1
    assert err.endswith("--help` shows what it takes.")


@pytest.mark.parametrize("line", ["zzzzzz", "--zzzzzz", "train digits --zzzzzz", "completion zzzzzz"])
def test_nothing_is_guessed_where_nothing_is_near(ran, line):
    code, _, err = ran(line)
    assert code == 2 and "zzzzzz" in err and "Did you mean" not in err


def test_without_a_command_the_help_is_shown(ran):
    code, out, err = ran("")
    assert code == 2 and out.startswith("Usage: sfumato") and err == ""
    assert ran("ledger")[1].startswith("Usage: sfumato ledger")
