# SPDX-License-Identifier: Apache-2.0
"""With `--json` every command prints numbers as numbers, and those that spend say whether it was recorded."""

import json
import re
import shlex
from dataclasses import replace

import pytest
import torch
import typer.main

from sfumato import cli
from sfumato.cli import label_run
from sfumato.cli.app import app

RUN = "train digits --model linear --epsilon 2 --epochs 1 --expected-batch-size 100"
TYPED = "--type age=number --type income=number"
LINE = "--target income --feature age --feature-bounds 0 100 --target-bounds 0 5000"
CHARGED = "--privacy-unit client_id --ledger ledger.db --account people"
# In this order: what a command shows was made by those before it.
COMMANDS = {
    "ledger init": "people --privacy-unit client_id --epsilon 9 --delta 1e-6",
    "account": "--noise-multiplier 1.1 --sampling-rate 0.01 --steps 10 --delta 1e-5",
    "plan": "--epsilon 3 --public-size 60000 --expected-batch-size 1024 --epochs 1",
    "stats": f"people.csv histogram age {TYPED} --edge 0 --edge 50 --edge 99 --epsilon 1 {CHARGED}",
    "sql": f"people.csv 'SELECT AVG(age) FROM data' {TYPED} --bounds age=0,99 --epsilon 1 {CHARGED}",
    "fit": f"people.csv theil-sen {TYPED} {LINE} --epsilon 1 {CHARGED}",
    "train": f"{RUN.removeprefix('train ')} --audit 100 --folder run",
    "pate": "breast-cancer --teachers 20 --epsilon 8 --noise 6",
    "synthesize": "digits --method mixtures --epsilon 8 --out made --count 200",
    "reproduce": "r2-composition --quick --processes 1 --out made",
    "federate": "digits --clients 20 --cohort 10 --rounds 2 --epsilon 8",
    "audit": "run",
    "ledger show": "people",
    "ledger grant": "people --epsilon 1 --reason why",
    "ledger verify": "",
    "ledger statement": "people",
    "init": "study",
    "doctor": "",
}
MORE = [
    "stats people.csv count --epsilon 1 --plan",
    f"stats people.csv quantiles age {TYPED} --q 0.1 --q 0.9 --bounds 0 99 --epsilon 1",
    "train digits --private labels --method randomized-response --epsilon 2",
    f"synthesize people.csv {TYPED} --epsilon 3 --delta 1e-5 --out made.csv",
    "ledger show",
]
SPEND = ("stats people", "sql", "fit", "train", "pate", "synthesize", "federate")
# A number, alone or with a unit, or the ends of an interval.
LIKE_A_NUMBER = re.compile(r"[-+]?[\d.,]+(e-?\d+)?\s*%?( to .*)?", re.IGNORECASE)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Run all commands in one folder, and return what each printed."""
    place, found = tmp_path_factory.mktemp("all"), {}
    rows = [f"{i},{20 + i % 60},{1000 + 37 * (i % 60)}" for i in range(500)]
    (place / "people.csv").write_text("\n".join(["client_id,age,income", *rows]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = label_run.recipe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_run, "recipe", lambda *given, **said: _shortened(made(*given, **said)))
        patch.chdir(place)
        patch.delenv("SFUMATO_LEDGER", raising=False)
        for line in [*(f"{name} {how}" for name, how in COMMANDS.items()), *MORE]:
            found[line] = _printed(patch, f"{line} --json")
    torch.set_num_threads(threads)
    return found


def _shortened(recipe):
    return replace(recipe, learner=replace(recipe.learner, epochs=1))


def _printed(patch, line):
    printed = []
    patch.setattr("sfumato.cli.show._out.print", lambda text, **how: printed.append(str(text)))
    patch.setattr("sys.argv", ["sfumato", *shlex.split(line)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
        raise SystemExit(0)
    assert not stop.value.code, line
    (text,) = printed  # nothing stands beside the JSON
    return json.loads(text)


def test_all_commands_that_print_json_are_here():
    root = typer.main.get_command(app)
    leaves = {}
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        leaves |= {f"{name} {n}": c for n, c in inner.items()} if inner else {name: command}
    with_json = {name for name, c in leaves.items() if any("--json" in p.opts for p in c.params)}
    assert with_json == set(COMMANDS)


def _texts(value, name=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, name)
    elif isinstance(value, str):
        yield name, value


NO_NUMBERS = {"code_version", "head", "hash", "written_at", "reserved_at", "changed_at"}


def test_no_number_is_written_as_text(said):
    assert LIKE_A_NUMBER.fullmatch("35.2 to 35.6 (95%, noise)") and LIKE_A_NUMBER.fullmatch("93.1%")
    for line, facts in said.items():
        found = {name: text for name, text in _texts(facts) if LIKE_A_NUMBER.fullmatch(text)}
        assert not set(found) - NO_NUMBERS, (line, found)


def test_epsilon_and_delta_are_numbers_wherever_they_stand(said):
    def stated(value):
        if isinstance(value, dict):
            for key, item in value.items():
                if key in ("epsilon", "delta"):
                    yield item
                else:
                    yield from stated(item)
        elif isinstance(value, list):
            for item in value:
                yield from stated(item)

    for line, facts in said.items():
        numbers = list(stated(facts))
        assert numbers or line.startswith(("ledger", "audit", "init", "doctor")), line
        assert all(isinstance(number, int | float) and number >= 0 for number in numbers), (line, numbers)


def test_every_command_that_spends_says_whether_it_was_recorded(said):
    for line, facts in said.items():
        if not line.startswith(SPEND) or "--plan" in line:
            continue
        charged = "--account" in line
        assert facts["recorded"] is charged, line
        assert facts["account"] == ("people" if charged else None), line
        assert any("not recorded in a ledger" in note for note in facts["notes"]) is not charged, line


def test_events_and_intervals_are_objects(said):
    shown = said[f"ledger show {COMMANDS['ledger show']}"]
    assert [release["number"] for release in shown["releases"]] == [1, 2, 3]
    assert all(isinstance(release["event"], dict) for release in shown["releases"])
    for entry in said[f"stats {COMMANDS['stats']}"]["value"]:
        assert set(entry["interval"]) == {"lower", "upper", "level", "covers"}
