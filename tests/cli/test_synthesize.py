# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize`: named sets, an .npz file, one charge, a page, and plain errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sfumato import Budget, Ledger, cli, generative
from sfumato.generative import ImageGenerator

LINE = "synthesize digits --method mixtures --epsilon 10 --out made --count 300"
OWN = "synthesize own.npz --method mixtures --epsilon 10 --classes 2 --public-size 200 --out made --count 40"

MIXED = np.array([np.zeros((8, 8)), np.zeros((4, 4))], dtype=object)  # images of two sizes


def images():
    """Read the images that were drawn, with their labels."""
    with np.load("made/images.npz") as file:
        return dict(file)


@pytest.fixture
def says(monkeypatch, capsys, tmp_path, small_classifiers):
    """Run the command as a user would: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    y = np.arange(200) % 2
    x = np.zeros((200, 8, 8), dtype=np.uint8)
    x[y == 1, 2:6] = 255
    np.savez("own.npz", x=x, y=y)
    np.savez("test.npz", x=x[:40], y=y[:40])

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_a_named_set_is_learned_drawn_and_evaluated(says):
    code, out, err = says(f"{LINE} --report page.html")
    assert code == 0, err
    for part in (
        "mixtures",
        "epsilon",
        "logistic regression",
        "AUROC",
        "(10, 0.0001)-differential privacy",
        "Tuning",
    ):
        assert part in out or part in " ".join(out.split()), part
    drawn = images()
    assert drawn["x"].shape == (300, 1, 8, 8) and set(drawn["y"].tolist()) == set(range(10))
    assert Path("made/grid.svg").read_text().startswith("<svg")
    assert ImageGenerator.load("made").classes == 10
    page = Path("page.html").read_text()
    assert "Synthetic images of digits" in page and "differential privacy" in page


def test_own_images_are_learned_and_charged_once(says):
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-3))
    code, out, err = says(f"{OWN} --evaluation test.npz --ledger ledger.db --account a --json")
    assert code == 0, err
    told = json.loads(out)
    assert told["recorded"] and told["account"] == "a" and len(account.releases()) == 1
    assert told["evaluation"]["scores"][0]["accuracy"] > 0.9
    drawn = images()
    assert drawn["x"][drawn["y"] == 1][:, :, 3].mean() > 0.5 > drawn["x"][drawn["y"] == 0].mean()


def test_grids_are_written_while_it_learns(says):
    code, _, err = says(OWN.replace("mixtures", "kernel-mean"))
    assert code == 0, err
    assert len(list(Path("made/progress").glob("step-*.png"))) == 10


def test_a_folder_with_a_generator_is_refused_unchanged(says):
    assert says(OWN)[0] == 0
    before = Path("made/generator.json").read_text()
    code, _, err = says(OWN)
    assert code == 2 and "paid for" in err and Path("made/generator.json").read_text() == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("synthesize", "pass what to learn"),
        ("synthesize digits --out made", "--epsilon"),
        ("synthesize digits --epsilon 1", "--out"),
        ("synthesize digits --epsilon 0 --out made", "epsilon must be"),
        ("synthesize digits --epsilon 1 --out made --method vae", "unknown method"),
        ("synthesize letters --epsilon 1 --out made", "unknown data"),
        ("synthesize digits --epsilon 1 --out made --classes 3", "not for a public data set"),
        ("synthesize own.npz --epsilon 1 --out made", "--public-size, and either --classes"),
        ("synthesize other.npz --epsilon 1 --out made --classes 2 --public-size 9", "no file or folder"),
        ("synthesize digits --epsilon 1 --out made --image-size 8", "not for a public data set"),
        (f"{OWN} --image-size 8", "--image-size is not for an .npz file"),
        ("synthesize own.npz --epsilon 1 --out made --label a --label b --public-size 9", "are numbers"),
        ("synthesize digits --epsilon 1 --out own.npz", "nothing can be written"),
        ("synthesize digits --epsilon 1 --out made --ledger ledger.db", "both --ledger and --account"),
        ("synthesize digits --epsilon 1 --out made --method mixtures --audit 100", "no use for audit"),
    ],
)
def test_wrong_lines_are_told_and_nothing_is_made(says, line, said):
    code, _, err = says(line)
    assert code == 2 and said in " ".join(err.split()), err
    assert not Path("made/generator.json").exists()


def test_an_evaluation_that_does_not_fit_costs_nothing(says):
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-3))
    for x, y in ((np.zeros((4, 6, 6)), [0, 1, 0, 1]), (np.zeros((4, 8, 8)), [7, 7, 7, 7])):
        np.savez("wrong.npz", x=x, y=y)
        code, _, err = says(f"{OWN} --evaluation wrong.npz --ledger ledger.db --account a")
        assert code == 2 and "--evaluation must have" in err
    assert account.releases() == []


def test_a_damaged_file_is_told_without_its_content(says):
    Path("bad.npz").write_bytes(b"secret rows")
    code, _, err = says("synthesize bad.npz --epsilon 1 --out made --classes 2 --public-size 9")
    assert code == 2 and "is not an .npz file" in err and "secret" not in err


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((8, 8, 8)), "y": np.zeros(8), "owners": np.arange(8)}, "these images have owners"),
        ({"x": np.zeros((8, 8, 8))}, "has no array 'y'"),
        ({"x": np.zeros((8, 8, 8)), "y": np.zeros(7)}, "one number for each row of x"),
        ({"x": MIXED, "y": np.zeros(2)}, "must hold numbers"),
    ],
)
@pytest.mark.parametrize("method", ["dp-cgan", "pate-cgan", "kernel-mean", "diffusion", "mixtures"])
def test_labels_that_are_missing_and_images_of_mixed_sizes_cost_nothing(says, method, arrays, said):
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-3))
    np.savez("wrong.npz", **arrays)
    line = OWN.replace("own.npz", "wrong.npz").replace("mixtures", method)
    code, _, err = says(f"{line} --ledger ledger.db --account a")
    assert code == 2 and said in " ".join(err.split()), err
    assert account.releases() == [] and not Path("made/generator.json").exists()


# --- a folder of images -----------------------------------------------------------------------------------


FOLDER = (
    "synthesize img --label cat --label dog --image-size 8 --public-size 40 --method mixtures --epsilon 1000 "
    "--delta 1e-5 --out made --count 40"
)


@pytest.fixture
def pictures(says):
    """Write cats, which are dark, and dogs, which are bright, in several sizes; one cat is damaged."""
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 40), ("dog", 220)):
        Path("img", name).mkdir(parents=True)
        for number in range(20):
            size = (12, 16 + number) if number % 2 else (8, 8)
            image.new("RGB", size, (shade, shade, number)).save(f"img/{name}/{number}.png")
    Path("img/cat/damaged.png").write_bytes(b"secret")
    shutil.copytree("img", "shown")


def test_a_folder_of_images_of_several_sizes_is_scaled_learned_and_evaluated(says, pictures):
    code, out, err = says(f"{FOLDER} --evaluation shown --report page.html --json")
    assert code == 0, err
    assert json.loads(out)["evaluation"]["scores"][0]["accuracy"] > 0.9
    drawn = images()
    assert drawn["x"].shape == (40, 3, 8, 8)
    assert drawn["x"][drawn["y"] == 0].mean() < 0.4 < 0.5 < drawn["x"][drawn["y"] == 1].mean()
    assert Path("page.html").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (" --image-size 8", "pass --image-size"),
        (" --label cat --label dog", "either --classes or one --label"),
        (" --public-size 40", "pass --public-size"),
    ],
)
def test_what_is_public_of_a_folder_must_be_said(says, pictures, change, said):
    code, _, err = says(FOLDER.replace(change, ""))
    assert code == 2 and said in " ".join(err.split()), err


def test_a_folder_without_a_readable_image_is_learned_from_as_any_other(says, pictures):
    """How many images there are is private, so it must not decide whether a command fails."""
    for file in Path("img").rglob("*.png"):
        file.unlink()
    code, _, err = says(FOLDER.replace("--epsilon 1000", "--epsilon 1"))
    assert code == 0, err
    assert images()["x"].shape == (40, 3, 8, 8)


# --- a generator that collapsed ---------------------------------------------------------------------------


def test_a_generator_that_collapsed_is_told_everywhere_and_is_no_failure(says):
    x, y = np.zeros((200, 8, 8), dtype=np.uint8), np.arange(200) % 2
    x[:, 2:6] = 255
    np.savez("alike.npz", x=x, y=y)
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=2e5, delta=1e-3))
    line = OWN.replace("own.npz", "alike.npz").replace("--epsilon 10", "--epsilon 1e5")
    code, out, err = says(
        f"{line} --evaluation test.npz --report page.html --ledger ledger.db --account a --json"
    )
    assert code == 0, err
    told = json.loads(out)
    assert "Warning:" in told["statement"] and told["evaluation"]["collapse"]
    assert told["findings"] and tuple(told["findings"]) == ImageGenerator.load("made").findings
    assert "Warning:" in Path("page.html").read_text() and len(account.releases()) == 1


@pytest.mark.slow
def test_fewer_images_than_teachers_are_no_failure(says):
    """How many images there are is private; 250 teachers are more than the 3 images."""
    np.savez("few.npz", x=np.zeros((3, 8, 8)), y=np.arange(3) % 2)
    code, out, err = says(f"{OWN.replace('own.npz', 'few.npz').replace('mixtures', 'pate-cgan')} --json")
    assert code == 0, err
    assert "250 teachers" in json.loads(out)["statement"]


# --- a fit that fails after the charge --------------------------------------------------------------------


def test_a_fit_that_fails_after_the_charge_stays_spent(says, monkeypatch):
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-3))

    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr("sfumato.generative.images.mixtures.NoisyMixtures.fitted", fails)
    with pytest.raises(MemoryError):
        says(f"{OWN} --ledger ledger.db --account a")
    assert account.spent().epsilon > 9.0 and not Path("made/generator.json").exists()


def test_public_images_are_learned_from_first_and_the_statement_says_so(says, monkeypatch):
    from sfumato.generative import recipes

    small = generative.Diffusion(width=8, steps=2, start_steps=2, start_batch_size=8, levels=2)
    monkeypatch.setitem(recipes._MADE, "diffusion", (lambda: small, lambda: small))
    line = OWN.replace("mixtures", "diffusion")
    code, out, err = says(f"{line} --public test.npz")
    assert code == 0, err
    assert "first learned from public images, which are not protected" in " ".join(out.split())
    assert len(images()["x"]) == 40


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--public test.npz", "--public is for --method diffusion"),
        ("--method diffusion --public none.npz", "no file or folder 'none.npz'"),
        ("--method diffusion --public mnist", "public images must have the shape"),
        ("--method diffusion --public test.npz --report test.npz", "which is the images of --public"),
    ],
)
def test_wrong_public_images_are_told_before_the_charge(says, more, said, monkeypatch):
    from sfumato import datasets

    monkeypatch.setattr(datasets, "load", lambda name: (np.zeros((3, 1, 28, 28)), np.zeros(3)))
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=60.0, delta=1e-5))
    line = OWN.replace("--method mixtures ", "" if "--method" in more else "--method mixtures ")
    code, _, err = says(f"{line} {more} --ledger ledger.db --account a")
    assert code == 2 and said in " ".join(err.split()), err
    assert account.releases() == []


@pytest.mark.parametrize(
    ("data", "public", "classes", "kept"),
    [
        ("digits", "mnist", 10, True),
        ("digits", "fashion-mnist", 10, False),
        ("mnist", "mnist", 10, True),
        ("own.npz", "mnist", 10, True),
        ("own.npz", "mnist", 2, False),
    ],
)
def test_labels_of_a_named_public_set_are_kept_if_the_classes_fit(monkeypatch, data, public, classes, kept):
    import torch

    from sfumato import datasets
    from sfumato.cli import synthesis_run
    from sfumato.cli.synthesis_settings import SynthesisSettings

    labels = torch.tensor([3, 1, 3])
    monkeypatch.setattr(datasets, "load", lambda name: (torch.zeros(3, 1, 8, 8), labels))
    own = synthesis_run._Images(name=data, rows=None, holdout=None, classes=classes, public_size=9)
    found = synthesis_run._public(SynthesisSettings(data=data, public=public), own)
    assert isinstance(found, tuple) == kept
    assert not kept or found[1].tolist() == [3, 1, 3]
