# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import pytest
import torch

from sfumato import Budget, Ledger, cli
from sfumato.cli import label_run
from sfumato.datasets import Examples
from sfumato.labels import NoisyGradients
from sfumato.labels.recipes import METHODS
from sfumato.ledger.state import Progress
from sfumato.training.loop import TrainingLoop
from sfumato.training.record.run_folder import RunFolder

LINE = "train digits --private labels"


def fewer(data):
    return replace(data, train=Examples(*data.train[:400]), test=Examples(*data.test[:100]))


def shortened(made):
    if isinstance(made.method, NoisyGradients):
        return replace(made, method=replace(made.method, steps=2))
    return replace(made, learner=replace(made.learner, epochs=1))


@pytest.fixture
def sfumato_says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would, on few rows and with few steps: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    load, made = label_run.load, label_run.recipe
    monkeypatch.setattr(label_run, "load", lambda name: fewer(load(name)))
    monkeypatch.setattr(label_run, "recipe", lambda *given, **said: shortened(made(*given, **said)))
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return stop.value.code or 0, " ".join(out.split()), " ".join(err.split())

    yield run
    torch.set_num_threads(before)


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "l.db").open(
        "labels", privacy_unit="label", budget=Budget(epsilon=5, delta=1e-6), relation="replace-label"
    )


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_is_charged_once_and_says_what_it_promises(sfumato_says, account, method):
    code, out, err = sfumato_says(f"{LINE} --method {method} --epsilon 1 --ledger l.db --account labels")
    assert code == 0, err
    assert f"│ method │ {method} │" in out and "│ accuracy │" in out
    assert "differential privacy for one label, replace-label neighbors" in out
    assert "Features are public, and are not protected at all." in out
    assert "account 'labels'." in out and "for study only" not in out and "ot recorded" not in out
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED and not release.seeded
    assert release.purpose == f"train on the labels of digits by {method}"
    assert 0 < account.spent().epsilon <= 5


@pytest.mark.parametrize("method", list(METHODS))
def test_programs_are_told_the_guarantee_and_the_statement(sfumato_says, method):
    code, out, err = sfumato_says(f"{LINE} --method {method} --epsilon 1 --delta 1e-5 --json")
    assert code == 0, err
    said = json.loads(out)
    assert said["method"] == method and said["relation"] == "replace-label"
    assert said["privacy_unit"] == "label" and 0 <= said["accuracy"] <= 1
    assert 0 < said["epsilon"] <= 1 and said["delta"] in (0, 1e-5)
    assert "replace-label" in said["statement"] and "'labels'" not in said["statement"]
    assert "Not recorded in a ledger" in said["statement"] and said["recorded"] is False


def test_noise_is_for_the_delta_of_the_account(sfumato_says, account):
    line = f"{LINE} --method altconv --epsilon 1 --ledger l.db --account labels --json"
    said = json.loads(sfumato_says(line)[1])
    assert said["delta"] == 1e-6 and 0.9 < said["epsilon"] <= 1


def test_a_seed_repeats_a_run_and_is_said_to_protect_nobody(sfumato_says, account):
    line = f"{LINE} --method dp-sgd --epsilon 1 --seed 3 --json"
    first, again = (json.loads(sfumato_says(line)[1]) for _ in range(2))
    assert first["accuracy"] == again["accuracy"]
    assert "for study only" in first["statement"].lower()
    sfumato_says(f"{line} --ledger l.db --account labels")
    assert account.releases()[0].seeded


def test_without_a_method_one_is_chosen_and_the_reason_is_said(sfumato_says):
    code, out, err = sfumato_says(f"{LINE} --epsilon 3")
    assert code == 0, err
    assert "The method was chosen:" in out


def test_what_the_budget_does_not_cover_is_refused_and_nothing_is_spent(sfumato_says, account):
    for method in ("randomized-response", "dp-sgd"):
        code, out, err = sfumato_says(f"{LINE} --method {method} --epsilon 9 --ledger l.db --account labels")
        assert code == 2 and "Nothing was spent" in err and out == ""
    assert account.releases() == []


def test_an_account_of_people_or_of_rows_cannot_be_charged_for_labels(sfumato_says, tmp_path):
    ledger, budget = Ledger(tmp_path / "l.db"), Budget(epsilon=5, delta=1e-6)
    people = ledger.open("people", privacy_unit="patient", budget=budget, relation="replace-label")
    rows = ledger.open("rows", privacy_unit="example", budget=budget)
    for account, says in ((people, "whose the labels are"), (rows, "replace-label")):
        line = f"{LINE} --method alibi --epsilon 1 --ledger l.db --account {account.name}"
        code, out, err = sfumato_says(line)
        assert code == 2 and says in err and out == ""
        assert account.releases() == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train --private labels --epsilon 1", "say what to learn"),
        (LINE, "how private it must be"),
        (f"{LINE} --method magic --epsilon 1", "unknown method 'magic'. Use one of: clusters, altconv"),
        (f"{LINE} --epsilon 0", "epsilon must be"),
        (f"{LINE} --epsilon nan", "epsilon must be"),
        (f"{LINE} --method altconv --epsilon -1", "epsilon must be"),
        (f"{LINE} --method altconv --epsilon inf", "epsilon must be"),
        (f"{LINE} --method alibi --epsilon 1 --delta 1", "delta must be"),
        (f"{LINE} --epsilon 1 --ledger l.db", "both --ledger and --account"),
        (f"{LINE} --epsilon 1 --account a", "both --ledger and --account"),
        (f"{LINE} --epsilon 1 --ledger none.db --account a", "there is no ledger at"),
        (f"{LINE} --epsilon 1 --clip-norm 2", "--clip-norm is not for --private labels"),
        (f"{LINE} --epsilon 1 --resume", "without --folder"),
        (f"{LINE} --epsilon 1 --resume --folder none --method alibi", "cannot be resumed"),
        (f"{LINE} --epsilon 1 --resume --folder none --method altconv", "there is no run in"),
        (f"{LINE} --epsilon 1 --method alibi --audit 100", "canaries audit noisy gradients"),
        (f"{LINE} --epsilon 1 --method selfconv --audit 100", "audit AltConv or DP-SGD"),
        ("train letters --private labels --epsilon 1", "unknown data set 'letters'"),
    ],
)
def test_an_error_is_one_paragraph_with_exit_code_2(sfumato_says, line, says):
    code, out, err = sfumato_says(line)
    assert code == 2, out
    assert says in err and out == "" and "Traceback" not in err


@pytest.mark.parametrize("method", ["altconv", "selfspan", "alibi", "clusters"])
def test_the_model_is_kept_in_the_folder_with_its_statement_and_a_page(
    sfumato_says, account, method, tmp_path
):
    line = f"{LINE} --method {method} --epsilon 1 --ledger l.db --account labels --folder run"
    code, out, err = sfumato_says(f"{line} --report pages/run.html")
    assert code == 0, err
    assert "│ folder │ run │" in out and "│ report │ pages/run.html │" in out
    weights = RunFolder(tmp_path / "run").read_weights()
    assert weights and all(bool(part.isfinite().all()) for part in weights.values())
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["method"] == method and "Features are public" in said["statement"]
    page = (tmp_path / "pages" / "run.html").read_text()
    assert "not finished" not in page and "replace-label" in page and method in page
    again = sfumato_says(line)
    assert again[0] == 2 and "holds a run already" in again[2]
    assert len(account.releases()) == 1


def test_canaries_audit_a_run_on_labels(sfumato_says):
    code, out, err = sfumato_says(f"{LINE} --method altconv --epsilon 1 --audit 20 --json")
    assert code == 0, err
    said = json.loads(out)
    assert len(said["audit"]["in_scores"]) + len(said["audit"]["out_scores"]) == 20
    assert "replace-label" in said["audit"]["claim"] and said["settings"]["audit"] == 20


def test_what_a_folder_says_of_a_run_is_written_once(sfumato_says, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(RunFolder, "write_report", lambda self, text: written.append(json.loads(text)))
    code, out, err = sfumato_says(f"{LINE} --method altconv --epsilon 1 --folder run --json")
    assert code == 0, err
    (said,) = written
    shown = json.loads(out)
    assert said["method"] == "altconv" and "Features are public" in said["statement"]
    assert {name: shown[name] for name in said} == said  # what is shown is what is kept


def test_canaries_of_a_run_on_labels_can_be_audited_from_its_folder(sfumato_says):
    assert sfumato_says(f"{LINE} --method altconv --epsilon 1 --audit 20 --folder run")[0] == 0
    code, out, err = sfumato_says("audit run --no-membership")
    assert code == 0 and "do not contradict the claim" in out, err
    assert "updates, because a denoiser changes gradients after their release" in " ".join(out.split())
    code, out, err = sfumato_says("audit run")
    assert code == 2 and "Pass --no-membership" in err and out == ""


@pytest.mark.parametrize("flags", ["", " --no-membership"])
def test_a_method_that_releases_labels_once_has_not_passed_an_audit(sfumato_says, flags):
    assert sfumato_says(f"{LINE} --method alibi --epsilon 1 --folder run")[0] == 0
    code, out, err = sfumato_says(f"audit run{flags}")
    assert code == 2 and "released labels once, by alibi" in err and "nothing was tested" in err and out == ""


class Killed(Exception):
    pass


def test_a_killed_run_goes_on_under_the_same_charge(sfumato_says, account, monkeypatch, tmp_path):
    take_step = TrainingLoop.take_step

    def dying(session):
        if session.step == 1:
            raise Killed
        return take_step(session)

    line = f"{LINE} --method altconv --epsilon 1 --seed 3 --json"
    monkeypatch.setattr(TrainingLoop, "take_step", dying)
    monkeypatch.setattr("sys.argv", f"sfumato {line} --ledger l.db --account labels --folder run".split())
    with pytest.raises(Killed):
        cli.main()
    monkeypatch.setattr(TrainingLoop, "take_step", take_step)
    code, out, err = sfumato_says("train --folder run --resume --json")
    assert code == 0, err
    resumed = json.loads(out)
    whole = json.loads(sfumato_says(f"{line} --delta {resumed['settings']['delta']}")[1])  # the account's
    assert resumed["accuracy"] == whole["accuracy"] and resumed["method"] == "altconv"
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED
    assert (tmp_path / "run" / "model.pt").exists()
