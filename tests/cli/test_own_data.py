# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from sfumato.cli import main
from sfumato.cli.own_data import Rescale, open_own
from sfumato.cli.settings import PUBLIC_SETS, TrainSettings
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.training.models.recipes import models_of

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)
TABLE = {"target": "paid", "feature": ["age", "income"], "label": ["no", "yes"], "public_size": 400}
SHORT = "--epsilon 5 --epochs 3 --seed 0 --json"


@pytest.fixture
def frame():
    """Return people whose age and income say what they paid."""
    age, income = RNG.uniform(18, 90, 400), RNG.uniform(0, 1e5, 400)
    paid = np.where(age / 90 + income / 1e5 > 1.1, "yes", "no")
    return pd.DataFrame({"age": age, "income": income, "paid": paid, "who": np.arange(400) // 2})


@pytest.fixture
def told(capsys, monkeypatch):
    """Run a command; return the JSON that it printed."""

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert ended.value.code in (None, 0), shown.err
        return json.loads(shown.out)

    return run


def test_public_names_are_those_with_recipes():
    assert all(models_of(name) for name in PUBLIC_SETS)
    assert not TrainSettings(data="digits").is_own and TrainSettings(data="a.csv").is_own


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_with_a_target_is_learned_from(kind, frame, tmp_path, told):
    place, shown = tmp_path / f"people.{kind}", tmp_path / f"shown.{kind}"
    for each in (place, shown):
        frame.to_csv(each, index=False) if kind == "csv" else frame.to_parquet(each)
    types = " --type age=number --type income=number" if kind == "csv" else ""
    found = told(
        f"train {place} --target paid --feature age --feature income --label no --label yes{types} "
        f"--public-size 400 --bounds age=0:100 --bounds income=0:100000 --evaluation {shown} --seed 0 --json "
        "--learning-rate 1 --epsilon 30 --epochs 60 --expected-batch-size 100"
    )
    assert found["accuracy"] > 0.75 and found["privacy_unit"] == "example"


def test_a_column_names_the_owner_of_rows(frame, tmp_path, told):
    frame.to_parquet(tmp_path / "p.parquet")
    found = told(
        f"train {tmp_path / 'p.parquet'} --target paid --feature age --feature income --label no --label yes "
        f"--public-size 200 --privacy-unit who --contribution-bound 2 {SHORT}"
    )
    assert found["privacy_unit"] == "who"


def test_arrays_are_learned_from_and_rows_are_read_late(tmp_path, told):
    x = RNG.integers(0, 255, (300, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=(x[:, :3].mean((1, 2)) > x[:, 3:].mean((1, 2))).astype(int))
    data = open_own(TrainSettings(data=str(tmp_path / "a.npz"), classes=2, public_size=300))
    assert data.shape == (1, 6, 6) and len(data.rows.blank[0]) == 0
    (features, labels), owners = data.rows.read()
    assert features.shape == (300, 1, 6, 6) and features.max() <= 1 and owners is None and len(labels) == 300
    assert (
        told(f"train {tmp_path / 'a.npz'} --classes 2 --public-size 300 --model cnn {SHORT}")["epsilon"] <= 5
    )


def test_poisoned_rows_of_arrays_are_left_out(tmp_path):
    x = np.zeros((6, 3))
    x[0, 0], x[1, 1] = np.nan, np.inf
    np.savez(
        tmp_path / "a.npz", x=x, y=np.array([0, 0, -1, 7, np.nan, 1]), owners=np.array([5, 5, 5, 9, 9, 9])
    )
    data = open_own(TrainSettings(data=str(tmp_path / "a.npz"), classes=2, public_size=6))
    (features, labels), owners = data.rows.read()
    assert features.tolist() == [[0.0, 0.0, 0.0]] and labels.tolist() == [1] and len(owners) == 1
    assert data.by_owner


def test_a_file_that_is_damaged_behind_its_header_is_not_quoted(tmp_path):
    place = tmp_path / "a.npz"
    np.savez(place, x=np.zeros((100, 3)), y=np.zeros(100))
    data = open_own(TrainSettings(data=str(place), classes=2, public_size=6))
    place.write_bytes(place.read_bytes()[:900])
    with pytest.raises(QueryFailedError, match="stays spent"):
        data.rows.read()


def test_a_folder_of_images_is_learned_from_and_a_damaged_one_is_black(tmp_path, told):
    for name, level in (("cat", 40), ("dog", 220)):
        (tmp_path / "img" / name).mkdir(parents=True)
        for number in range(20):
            pixels = RNG.normal(level, 10, (10, 10, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "img" / name / f"{number}.png")
    (tmp_path / "img" / "cat" / "bad.png").write_text("no image")
    data = open_own(
        TrainSettings(data=str(tmp_path / "img"), label=["cat", "dog"], public_size=40, image_size=8)
    )
    black = [image for image, _ in (data.rows[i] for i in range(len(data.rows))) if not image.any()]
    assert len(black) == 1 and black[0].shape == (3, 8, 8)
    shutil.copytree(tmp_path / "img", tmp_path / "shown")
    found = told(
        f"train {tmp_path / 'img'} --label cat --label dog --image-size 8 --public-size 40 --evaluation "
        f"{tmp_path / 'shown'} {SHORT}"
    )
    assert found["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"public_size": None}, "--public-size"),
        ({"label": None}, "--label"),
        ({"classes": 2}, "either --classes"),
        ({"label": ["one"]}, "two or more"),
        ({"target": None}, "--target"),
        ({"feature": None}, "--feature"),
        ({"bounds": ["age=0:100"]}, "lacks income"),
        ({"bounds": ["age=9:1", "income=0:1"]}, "bounds age"),
        ({"bounds": ["age:1"]}, "COLUMN=LOW"),
        ({"bounds": ["age=x:1", "income=0:1"]}, "LOW:HIGH"),
        ({"bounds": ["height=0:1"]}, "not a --feature"),
        ({"data": "nowhere.csv"}, "no file or folder"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_spent(change, says, frame, tmp_path):
    frame.to_parquet(tmp_path / "p.parquet")
    with pytest.raises(InvalidParameterError, match=says):
        open_own(TrainSettings(**{"data": str(tmp_path / "p.parquet"), **TABLE, **change}))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((4, 2))}, "no array 'y'"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(5)}, "do not fit"),
        ({"x": np.zeros((4, 2)), "y": np.array(["a"] * 4)}, "must hold numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_anything_is_spent(arrays, says, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InvalidParameterError, match=says):
        open_own(TrainSettings(data=str(tmp_path / "a.npz"), classes=2, public_size=4))


def test_columns_are_clipped_to_their_bounds_and_scaled():
    layer = Rescale(torch.tensor([0.0, -1.0]), torch.tensor([10.0, 1.0]))
    assert layer(torch.tensor([[5.0, 0.0], [-3.0, 9.0]])).tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_an_audit_of_your_own_data_has_canaries_and_no_rows_of_a_public_set(
    tmp_path, told, capsys, monkeypatch
):
    np.savez(tmp_path / "a.npz", x=RNG.normal(size=(200, 4)), y=RNG.integers(0, 2, 200))
    kept = f"--folder {tmp_path / 'run'} --audit 200"
    told(f"train {tmp_path / 'a.npz'} --classes 2 --public-size 200 {kept} {SHORT}")
    assert told(f"audit {tmp_path / 'run'} --no-membership --json")["refuted"] is False
    monkeypatch.setattr("sys.argv", ["sfumato", "audit", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "your own data" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "change",
    [{"privacy_unit": "patient"}, {"contribution_bound": 5}, {"bounds": ["a=0:1"]}, {"target": "y"}],
)
def test_a_unit_that_arrays_and_images_do_not_know_is_never_claimed(change, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.zeros(4))
    flag = f"--{next(iter(change)).replace('_', '-')} is not for"
    with pytest.raises(InvalidParameterError, match=flag):
        open_own(TrainSettings(data=str(tmp_path / "a.npz"), classes=2, public_size=4, **change))
    for name in ("a", "b"):
        (tmp_path / "img" / name).mkdir(parents=True)
    images = TrainSettings(
        data=str(tmp_path / "img"), label=["a", "b"], public_size=4, image_size=4, **change
    )
    with pytest.raises(InvalidParameterError, match=flag):
        open_own(images)


@pytest.mark.parametrize("labels", [["a", "a/b"], ["a", "./a"], ["a", ".."], ["a", "link"]])
def test_no_image_is_in_two_classes(labels, tmp_path):
    (tmp_path / "img" / "a" / "b").mkdir(parents=True)
    (tmp_path / "img" / "link").symlink_to(tmp_path / "img" / "a")
    settings = TrainSettings(data=str(tmp_path / "img"), label=labels, public_size=4, image_size=4)
    with pytest.raises(InvalidParameterError, match="twice"):
        open_own(settings)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_how_many_rows_there_are_and_how_large_they_are_changes_nothing(rows, tmp_path):
    x = np.full((rows, 2), 1e300)
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(rows))
    data = open_own(TrainSettings(data=str(tmp_path / "a.npz"), classes=2, public_size=4))
    assert data.rows.read()[0][0].shape == (0, 2)


def test_a_public_set_refuses_settings_of_your_own_data(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sfumato", *["train", "digits", "--epsilon", "1", "--public-size", "5"]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "--public-size is not for" in " ".join(capsys.readouterr().err.split())
