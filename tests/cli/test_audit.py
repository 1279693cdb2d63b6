# SPDX-License-Identifier: Apache-2.0
"""`sfumato audit RUN`: 0 where the claim stands, 1 where it is false, 2 where that could not be found out, 3
where nothing was audited."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from sfumato import cli
from sfumato.audit.evidence.results import CheckName
from sfumato.training.record.fingerprints import sealed
from sfumato.training.record.run_folder import RunFolder

TRAIN = "train digits --model linear --epsilon 2 --epochs 1 --expected-batch-size 100 --seed 1"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def main(patch, line):
    """Run the command as a user would, and return the exit code."""
    patch.setattr("sys.argv", ["sfumato", *line.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
        raise SystemExit(0)
    return stop.value.code or 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with canaries, and one without."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        assert main(patch, f"{TRAIN} --audit 100 --folder {place}/audited") == 0
        assert main(patch, f"{TRAIN} --folder {place}/plain") == 0
    return place


@pytest.fixture
def said(finished, tmp_path, monkeypatch, capsys):
    """Copy the finished runs here, and return how to audit one: (exit code, standard output, errors)."""
    shutil.copytree(finished, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    monkeypatch.setenv("COLUMNS", "200")

    def audit(line):
        code = main(monkeypatch, f"audit {line}")
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), " ".join(err.split())

    return audit


def changed(name, **facts):
    """Change what a run says about itself, and its fingerprint with it, as a damaged version would."""
    with open(f"audited/{name}") as file:
        before = json.load(file)
    with open(f"audited/{name}", "w") as file:
        json.dump(sealed(before | facts), file)


def audit_of(**facts):
    with open("audited/run.json") as file:
        return json.load(file)["audit"] | facts


def one_failed():
    """Return the checks of the run, the first of which failed."""
    first, *others = audit_of()["checks"]
    return [first | {"p_value": 0.0, "message": "the noise is too small in step 3"}, *others]


def test_a_claim_that_stands_is_shown_beside_the_bound_with_a_page(said, tmp_path):
    code, out, err = said("audited")
    assert code == 0, err
    assert "│ claimed epsilon │ 1.99" in out and "│ lower bound │" in out and "│ refuted │ False │" in out
    assert "membership area" in out and "do not contradict the claim" in out
    text = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    assert "<svg" in text and "Audit of audited" in text and "Who may see this" in text


def test_programs_are_told_the_claim_and_the_bound(said, tmp_path):
    code, out, _ = said("audited --no-membership --json --report page.html")
    told = json.loads(out)
    assert code == 0 and told["refuted"] is False and told["audited"] is True
    assert 0 <= told["lower_bound"] < told["claimed_epsilon"] <= 2 and told["delta"] == 1e-4
    assert told["membership_area"] is None and told["report"] == "page.html"
    assert told["reasons"] == [] and told["could_not_be_done"] == []
    assert "Who may see this" not in (tmp_path / "runs" / "page.html").read_text()


def test_a_false_claim_ends_with_1(said):
    changed("run.json", epsilon=1e-9)
    bound, _ = audit_of()["bounds"]
    changed("run.json", audit=audit_of(bounds=[bound | {"epsilon": 0.5}]))
    code, out, _ = said("audited --no-membership")
    assert code == 1
    assert "THE CLAIM IS FALSE" in out and "│ refuted │ True │" in out


def test_a_check_that_failed_ends_with_1_and_says_what_is_wrong(said, tmp_path):
    changed("run.json", audit=audit_of(checks=one_failed()))
    code, out, _ = said("audited --no-membership")
    assert code == 1 and "THE CLAIM IS FALSE. The noise is too small in step 3" in out
    page = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    assert "The noise is too small in step 3" in page and "FAILED" in page and "do not contradict" not in page


UNTESTABLE = {
    "an infinite epsilon": lambda: {"epsilon": float("inf"), "audit": audit_of(checks=one_failed())},
    "canaries that were not seen": lambda: {"audit": audit_of(checks=one_failed(), blind="nobody looked")},
}


@pytest.mark.parametrize("facts", UNTESTABLE.values(), ids=UNTESTABLE.keys())
def test_a_check_that_failed_counts_where_the_claim_itself_could_not_be_tested(said, tmp_path, facts):
    changed("run.json", **facts())
    code, out, _ = said("audited --no-membership")
    assert code == 1 and "THE CLAIM IS FALSE. The noise is too small in step 3" in out
    assert "│ refuted │ True │" in out and "not audited" not in out and "Nothing was audited" not in out
    page = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    assert "THE CLAIM IS FALSE" in page and "The noise is too small in step 3" in page
    assert "not audited" not in page
    told = json.loads(said("audited --no-membership --json")[1])
    assert told["audited"] is True and told["refuted"] is True


def lost(name):
    (Path("audited") / name).unlink()


def in_python():
    lost("settings.json")
    resealed()


def no_page():
    (Path("audited") / "audit.html").mkdir()


def gaps():
    changed("run.json", audit=audit_of(checks=one_failed()[:1]))


def of_labels():
    (Path("audited") / "settings.json").write_text('{"data": "digits", "private": "labels"}')
    resealed()


def no_noise():
    with open("audited/run.json") as file:
        facts = json.load(file)
    del facts["noise"]
    with open("audited/run.json", "w") as file:
        json.dump(sealed(facts), file)


IN_THE_WAY = {
    "a run in Python": (in_python, "does not say what data"),
    "lost settings": (lambda: lost("settings.json"), "settings in 'audited' were changed"),
    "a run on labels": (of_labels, "features of the run in 'audited' are public"),
    "damaged settings": (lambda: (Path("audited") / "settings.json").write_text("{"), "cannot be read"),
    "no page": (no_page, "cannot be written"),
    "lost weights": (lambda: lost("model.pt"), "the weights of the run in 'audited' are gone"),
    "an audit with gaps": (gaps, "is not whole"),
    "no noise": (no_noise, "is not what a finished run writes"),
}


@pytest.mark.parametrize("flags", ["", " --json"])
@pytest.mark.parametrize(("harm", "says"), IN_THE_WAY.values(), ids=IN_THE_WAY.keys())
def test_a_check_that_failed_ends_with_1_whatever_else_cannot_be_done(said, harm, says, flags):
    changed("run.json", audit=audit_of(checks=one_failed()))
    harm()
    code, out, err = said(f"audited{flags}")
    assert code == 1 and says in out and err == ""
    if flags:
        told = json.loads(out)
        assert told["refuted"] is True and says in " ".join(told["could_not_be_done"])
        assert "The noise is too small in step 3" in " ".join(told["reasons"])
    else:
        assert "THE CLAIM IS FALSE. The noise is too small in step 3" in out and "Could not be done" in out


def test_a_claim_that_stands_is_not_shown_where_something_cannot_be_done(said):
    no_page()
    code, out, err = said("audited --no-membership")
    assert code == 2 and "cannot be written" in err and out == ""


def test_the_page_says_which_run_it_is(said, tmp_path):
    assert said("audited --no-membership")[0] == 0
    page = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    with open("audited/run.json") as file:
        facts = json.load(file)
    for told in (
        "digits",
        facts["model"],
        facts["code_version"],
        facts["finished"],
        facts["sha256"],
        facts["weights"],
    ):
        assert told in page
    for told in (
        "noise multiplier",
        "PoissonSampling",
        "accountant",
        "the most the claim allows",
        "9 times in 10",
    ):
        assert told in page


def test_a_report_that_was_changed_after_the_run_is_no_evidence(said):
    with open("audited/run.json") as file:
        facts = json.load(file)
    with open("audited/run.json", "w") as file:
        json.dump(facts | {"epsilon": 0.5}, file)
    code, out, err = said("audited --no-membership")
    assert code == 2 and "was changed after the run" in err and out == ""


def test_weights_that_were_changed_after_the_run_are_not_those_that_were_audited(said):
    weights = torch.load("audited/model.pt", weights_only=True)
    torch.save({name: part + 1 for name, part in weights.items()}, "audited/model.pt")
    code, out, err = said("audited --no-membership")
    assert code == 2 and "the weights in 'audited' were changed after the run" in err and out == ""


def test_weights_that_are_gone_were_not_audited(said, tmp_path):
    (tmp_path / "runs" / "audited" / "model.pt").unlink()
    for line in ("audited", "audited --no-membership"):
        code, out, err = said(line)
        assert code == 2 and "the weights of the run in 'audited' are gone" in err and out == ""
    assert not (tmp_path / "runs" / "audited" / "audit.html").exists()


@pytest.mark.parametrize("made_by", [None, "0.0.1"])
def test_a_run_of_another_version_is_not_judged(said, made_by):
    changed("run.json", code_version=made_by)
    code, out, err = said("audited --no-membership")
    assert code == 2 and "what that audit tested is not known here" in err and out == ""


def test_an_infinite_claim_has_not_passed(said, tmp_path):
    changed("run.json", epsilon=float("inf"))
    code, out, _ = said("audited --no-membership")
    assert (
        code == 3 and "no attack can contradict an infinite epsilon" in out and "do not contradict" not in out
    )
    page = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    assert "The claim was not audited: no attack can contradict an infinite epsilon." in page
    assert "--audit 1000" not in out and "Train with canaries" not in page  # it has canaries


@pytest.mark.parametrize("name", CheckName)
def test_an_audit_without_a_check_or_a_reason_has_not_passed(said, tmp_path, name):
    others = [check for check in audit_of()["checks"] if check["name"] != name]
    assert len(others) == len(CheckName) - 1
    changed("run.json", audit=audit_of(checks=others))
    code, out, err = said("audited --no-membership")
    assert code == 2 and f"the check {str(name)!r}" in err and "has not passed" in err and out == ""
    changed("run.json", audit=audit_of(unchecked=[{"name": name, "why": "it was dark"}]))
    code, out, err = said("audited --no-membership")
    assert code == 0 and f"Not checked: {name}, because it was dark." in out, err
    page = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    assert "NOT CHECKED" in page and "because it was dark" in page.split("<h2>")[0]  # above all else, too
    assert json.loads(said("audited --no-membership --json")[1])["not_checked"] == {name: "it was dark"}


@pytest.mark.parametrize("part", ["checks", "in_scores", "out_scores"])
def test_an_audit_that_says_nothing_has_not_passed(said, part):
    changed("run.json", audit=audit_of(**{part: []}))
    code, out, err = said("audited --no-membership")
    assert code == 2 and "is not whole" in err and "has not passed" in err and out == ""


def test_a_run_without_canaries_has_not_passed(said, tmp_path):
    code, out, _ = said("plain")
    assert code == 3 and "│ audited │ False │" in out and "│ refuted │ │" in out
    assert "│ lower bound │ │" in out and "an estimate and no bound" in out
    assert "The claim was not audited: the run has no canaries" in out and "--audit 1000" in out
    assert "do not contradict" not in out
    page = (tmp_path / "runs" / "plain" / "audit.html").read_text()
    assert "The claim was not audited" in page and "do not contradict" not in page
    code, out, _ = said("plain --json")
    told = json.loads(out)
    assert code == 3 and told["audited"] is False and told["refuted"] is None
    assert told["lower_bound"] is None and 0 <= told["membership_area"] <= 1


def test_a_run_without_canaries_and_without_rows_to_compare_is_an_error(said):
    code, out, err = said("plain --no-membership")
    assert code == 2 and "has no canaries. Train it with --audit 1000" in err and out == ""


def test_a_run_that_is_not_finished_is_refused(said, tmp_path):
    (tmp_path / "runs" / "audited" / "run.json").unlink()
    for line in ("audited", "none"):
        code, out, err = said(line)
        assert code == 2 and "there is no finished run in" in err and out == ""


DAMAGED = {
    "a list": b"[]",
    "nothing": b"",
    "no settings": b"{}",
    "no text": b"\xff\xfe",
    "half": b'{"epsilon": 1, "del',
    "deep": b"[" * 100_000,
    "a number": b"3",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_report_is_no_evidence_against_the_claim(said, tmp_path, content):
    (tmp_path / "runs" / "audited" / "run.json").write_bytes(content)
    code, out, err = said("audited --no-membership")
    assert code == 2 and "run.json" in err and out == ""
    assert err.startswith("error:") and "Traceback" not in err


def all_with(**values):
    return [check | values for check in audit_of()["checks"]]


WRONG = {
    "text for epsilon": lambda: {"epsilon": "3"},
    "epsilon below zero": lambda: {"epsilon": -1},
    "no epsilon": lambda: {"epsilon": None},
    "unknown relation": lambda: {"relation": "friends"},
    "a list for an audit": lambda: {"audit": []},
    "no bounds": lambda: {"audit": audit_of(bounds=[])},
    "bounds of nothing": lambda: {"audit": audit_of(bounds=[{"x": 1}])},
    "no number for a bound": lambda: {"audit": audit_of(bounds=[audit_of()["bounds"][0] | {"epsilon": []}])},
    "a delta below the claim's": lambda: {
        "audit": audit_of(bounds=[audit_of()["bounds"][0] | {"delta": 0.0}])
    },
    "an epsilon without end": lambda: {"epsilon": 10**400},
    "a bound without end": lambda: {
        "audit": audit_of(bounds=[audit_of()["bounds"][0] | {"epsilon": 10**400}])
    },
    "scores without end": lambda: {"audit": audit_of(in_scores=[10**400] * 10)},
    "no scores": lambda: {"audit": audit_of(in_scores=None)},
    "text for scores": lambda: {"audit": audit_of(in_scores=["high"])},
    "a chance that is no number": lambda: {"audit": audit_of(checks=all_with(p_value=float("nan")))},
    "a chance below zero": lambda: {"audit": audit_of(checks=all_with(error=-1.0))},
    "no word of gaps": lambda: {"audit": {k: v for k, v in audit_of().items() if k != "unchecked"}},
    "a gap without a reason": lambda: {"audit": audit_of(unchecked=[{"name": "price", "why": ""}])},
    "scores that are no number": lambda: {"audit": audit_of(in_scores=[float("nan")] * 10)},
}


@pytest.mark.parametrize("facts", WRONG.values(), ids=WRONG.keys())
def test_a_report_with_wrong_values_is_no_evidence_either(said, facts):
    changed("run.json", **facts())
    code, out, err = said("audited --no-membership")
    assert code == 2 and err.startswith("error:") and out == ""


def resealed():
    """Give a run the fingerprint of the settings it has now, as if it had been started with these."""
    changed("run.json", settings_sha256=RunFolder("audited").settings_fingerprint())


@pytest.mark.parametrize("text", ['{"data": "mnist", "model": "linear"}', None])
def test_settings_that_were_changed_after_the_run_are_noticed(said, tmp_path, text):
    place = tmp_path / "runs" / "audited" / "settings.json"
    place.unlink()
    if text is not None:
        place.write_text(text)
    code, out, err = said("audited")
    assert code == 2 and "the settings in 'audited' were changed after the run" in err and out == ""
    assert said("audited --no-membership")[0] == 0  # canaries need no settings
    page = (tmp_path / "runs" / "audited" / "audit.html").read_text()
    assert "mnist" not in page and "not said" in page


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("[]", "must hold settings by name"),
        ("[" * 100_000, "cannot be read"),
        ("{", "cannot be read"),
        ('{"epochs": 3}', "does not say what data"),
        ('{"data": "digits"}', "no model 'None'"),
        ('{"data": "letters"}', "unknown data set"),
        ('{"data": "digits", "model": "cnn"}', "not of the model that its settings name ('cnn', width 1)"),
        ('{"data": "digits", "model": "mlp", "width": -1}', "width must be"),
        ('{"data": 3}', "data in"),
    ],
    ids=["list", "deep", "half", "no data", "no model", "other data", "other model", "width", "kind"],
)
def test_damaged_settings_are_said_to_be_so(said, tmp_path, settings, says):
    (tmp_path / "runs" / "audited" / "settings.json").write_text(settings)
    resealed()
    code, out, err = said("audited")
    assert code == 2 and says in err and out == ""
    assert said("audited --no-membership")[0] == 0  # canaries need no settings


@pytest.mark.parametrize(
    "weights",
    [[1], {"a": 1}, {"0.weight": torch.zeros(3)}, None],
    ids=["a list", "no tensors", "other shapes", "none"],
)
def test_damaged_weights_are_said_to_be_so(said, tmp_path, weights):
    place = tmp_path / "runs" / "audited" / "model.pt"
    if weights is None:
        place.unlink()
    else:
        torch.save(weights, place)
    code, out, err = said("audited")
    assert code == 2 and out == "" and err.startswith("error:")


def test_weights_of_which_a_part_is_missing_are_said_to_be_damaged(said, tmp_path):
    place = tmp_path / "runs" / "audited" / "model.pt"
    place.write_bytes(place.read_bytes()[:500])
    code, out, err = said("audited")
    assert code == 2 and out == "" and "Restore the file, or train again." in err
    assert "optimizer" not in err


def test_a_file_in_place_of_a_folder_is_said_to_be_so(said, tmp_path):
    (tmp_path / "runs" / "page.html").write_text("a file")
    code, out, err = said("page.html")
    assert code == 2 and out == "" and "is a file, and not the folder of a run" in err


def test_a_report_that_cannot_be_opened_is_an_error_in_words(said, tmp_path):
    place = tmp_path / "runs" / "audited" / "run.json"
    place.unlink()
    place.mkdir()
    code, out, err = said("audited")
    assert code == 2 and out == "" and "cannot be read: is a directory" in err and "Errno" not in err


def test_a_page_that_cannot_be_written_is_an_error(said, tmp_path):
    (tmp_path / "runs" / "taken").write_text("a file")
    code, out, err = said("audited --no-membership --report taken/page.html")
    assert code == 2 and "cannot be written" in err and out == ""
