# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import pytest
import torch

from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.diffusion import DiffusionSampler
from sfumato.generative.images.mixtures import MixtureSampler

PROMISE = Guarantee(epsilon=1.0, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")


def made(**changed):
    torch.manual_seed(0)
    sampler = NetworkSampler(architecture="dense", shape=[1, 4, 4], classes=3).eval()
    facts = {
        "sampler": sampler,
        "method": "test",
        "classes": 3,
        "guarantee": PROMISE,
        "description": "It learned.",
    }
    return ImageGenerator(**{**facts, **changed})


def test_draws_are_images_of_the_classes_that_were_asked_for():
    images, labels = made().sample(5)
    assert images.shape == (5, 1, 4, 4) and labels.tolist() == [0, 1, 2, 0, 1]
    assert bool(((images >= 0) & (images <= 1)).all()) and not images.requires_grad
    assert made().sample(labels=[2, 2])[1].tolist() == [2, 2]


def test_a_seed_repeats_draws_and_leaves_torch_alone():
    generator = made()
    before = torch.get_rng_state()
    assert torch.equal(generator.sample(4, seed=7)[0], generator.sample(4, seed=7)[0])
    assert not torch.equal(generator.sample(4)[0], generator.sample(4)[0])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("count", "labels"),
    [(None, None), (0, None), (2, [0]), (None, []), (None, [3]), (None, [-1]), (None, [0.5]), (None, [[0]])],
)
def test_wrong_requests_are_told(count, labels):
    with pytest.raises(InvalidParameterError):
        made().sample(count, labels=labels)


def test_a_folder_keeps_everything(tmp_path):
    before = made(account="a", findings=("All images are alike.",), study_note="for study only")
    before.save(tmp_path / "g")
    after = ImageGenerator.load(tmp_path / "g")
    assert torch.equal(before.sample(9, seed=1)[0], after.sample(9, seed=1)[0])
    assert after.statement() == before.statement() and after.guarantee == PROMISE
    assert "All images are alike." in after.statement() and "For study only." in after.statement()


SAMPLERS = (
    NetworkSampler(architecture="dense", shape=[1, 4, 4], classes=3),
    DiffusionSampler(shape=[1, 4, 4], classes=3, width=8, levels=3),
    MixtureSampler(shape=[1, 4, 4], classes=3, clusters=2, axes=2),
)


def test_a_fresh_process_loads_every_kind_of_generator(tmp_path):
    for sampler in SAMPLERS:
        made(sampler=sampler.eval()).save(tmp_path / type(sampler).__name__)
    names = [str(tmp_path / type(sampler).__name__) for sampler in SAMPLERS]
    code = (
        "import sys; from sfumato.generative import ImageGenerator; "
        "print([ImageGenerator.load(folder).classes for folder in sys.argv[1:]])"
    )
    run = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.stderr) == ("[3, 3, 3]", "")


def test_a_folder_without_a_generator_is_told(tmp_path):
    with pytest.raises(InvalidParameterError, match="holds no generator"):
        ImageGenerator.load(tmp_path)
    made().save(tmp_path)
    facts = json.loads((tmp_path / "generator.json").read_text())
    (tmp_path / "generator.json").write_text(json.dumps({**facts, "kind": "Other"}))
    with pytest.raises(InvalidParameterError, match="holds no generator"):
        ImageGenerator.load(tmp_path)


def test_the_card_of_a_loaded_generator_is_that_of_the_generator(tmp_path):
    before = made(account="clinic", findings=("All images are alike.",))
    before.save(tmp_path)
    assert ImageGenerator.load(tmp_path).card().to_json() == before.card().to_json()
    assert before.card().guarantee == PROMISE and "All images are alike." in before.card().to_markdown()
    assert not made(study_note="for study only: the noise was seeded").card().protects


@pytest.mark.parametrize("change", ["guarantee", "weights"])
def test_a_changed_generator_is_refused(tmp_path, change):
    made().save(tmp_path)
    facts = json.loads((tmp_path / "generator.json").read_text())
    if change == "guarantee":
        facts["guarantee"]["epsilon"] = 0.1
        (tmp_path / "generator.json").write_text(json.dumps(facts))
    else:
        weights = torch.load(tmp_path / "generator.pt", weights_only=True)
        torch.save({name: value + 1 for name, value in weights.items()}, tmp_path / "generator.pt")
    with pytest.raises(InvalidParameterError, match="changed"):
        ImageGenerator.load(tmp_path)


def test_a_notebook_shows_a_generator_and_names_are_text():
    shown = made(method="<script>", account="<script>")._repr_html_()
    assert "<script" not in shown and "It learned." in shown
