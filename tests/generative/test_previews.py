# SPDX-License-Identifier: Apache-2.0
"""Grids of samples while a generator learns: they change nothing, and show nothing that is not paid for."""

import pytest
import torch

from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative import DPCGAN, DPGAN, Diffusion, KernelMean, NoisyMixtures, PateCGAN, StepRule
from sfumato.generative.adversarial.game import Game
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.adversarial.student_game import Pace
from sfumato.generative.previews import Previews
from sfumato.testing import seeded
from sfumato.training.record.run_folder import RunFolder

TERMS = {"classes": 2, "public_size": 400, "delta": 1e-5, "epsilon": 10.0, "progress": False, "device": "cpu"}
GAN = {"steps": 10, "expected_batch_size": 64, "generator_steps": StepRule(least=1), "width": 4}
MEAN = KernelMean(features=100, architecture="dense", steps=10)
METHODS = {
    "dp-gan": (DPGAN(**GAN), ["step"]),
    "dp-cgan": (DPCGAN(**GAN), ["step"]),
    "pate-cgan": (
        PateCGAN(
            teachers=100,
            rounds=10,
            architecture="dense",
            start=MEAN,
            pace=Pace(teacher=1, student=1, batch=4),
        ),
        ["round", "start"],
    ),
    "kernel-mean": (MEAN, ["step"]),
    "diffusion": (
        Diffusion(
            width=4,
            steps=10,
            expected_batch_size=50,
            start=NoisyMixtures(clusters=1, axes=4),
            start_steps=10,
            start_batch_size=16,
            levels=2,
        ),
        ["start", "step"],
    ),
}


def written(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def sampler():
    torch.manual_seed(0)
    return NetworkSampler(architecture="convolutional", shape=[1, 8, 8], classes=3, width=4, latent=4)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_writes_ten_grids_of_each_phase_and_learns_the_same(stripes, tmp_path, name):
    method, phases = METHODS[name]
    found = []
    for preview in (None, tmp_path / "progress"):
        torch.manual_seed(1)
        made = method.fit(stripes, preview=preview, generator=seeded(5), **TERMS)
        found.append((made.sampler.state_dict(), torch.get_rng_state(), made.sample(20, seed=3)[0]))
    assert all(torch.equal(weight, found[1][0][key]) for key, weight in found[0][0].items())
    assert torch.equal(found[0][1], found[1][1]) and torch.equal(found[0][2], found[1][2])
    expected = [f"{phase}-{step:05d}.png" for phase in phases for step in range(1, 11)]
    assert written(tmp_path / "progress") == sorted(expected)


def test_mixtures_have_no_steps_and_no_grids(stripes, tmp_path):
    NoisyMixtures(clusters=1, axes=4).fit(stripes, preview=tmp_path / "progress", **TERMS)
    assert written(tmp_path / "progress") == []


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_written_for_a_fit_that_is_not_paid(stripes, account, tmp_path, name):
    terms = {**TERMS, "epsilon": 50.0, "account": account, "purpose": "look"}
    with pytest.raises(BudgetExceededError):
        METHODS[name][0].fit(stripes, preview=tmp_path / "progress", **terms)
    assert written(tmp_path / "progress") == [] and account.releases() == []


def test_a_start_with_public_images_is_not_shown_as_nothing_is_charged_yet(stripes, tmp_path):
    METHODS["diffusion"][0].fit(stripes, preview=tmp_path / "progress", public=stripes[0], **TERMS)
    assert {name[:5] for name in written(tmp_path / "progress")} == {"step-"}


def test_a_step_is_shown_after_its_checkpoint_and_a_resumed_run_goes_on(stripes, tmp_path, monkeypatch):
    """A step that was shown and not kept would be taken again with other noise, without a charge."""
    terms = {**TERMS, "folder": tmp_path / "made", "preview": tmp_path / "progress"}
    original, calls = Game.denoise, []

    def dies(self, *arguments, **more):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return original(self, *arguments, **more)

    kept = []

    def draws(self, sampler, step, draw=Previews.draw):
        kept.append((step, RunFolder(tmp_path / "made" / "training").load()["step"]))
        draw(self, sampler, step)

    monkeypatch.setattr(Game, "denoise", dies)
    monkeypatch.setattr(Previews, "draw", draws)
    with pytest.raises(KeyboardInterrupt):
        METHODS["dp-cgan"][0].fit(stripes, **terms)
    assert written(tmp_path / "progress") == [f"step-{step:05d}.png" for step in range(1, 8)]
    shown = (tmp_path / "progress" / "step-00007.png").read_bytes()
    METHODS["dp-cgan"][0].fit(stripes, resume=True, **terms)
    assert written(tmp_path / "progress") == [f"step-{step:05d}.png" for step in range(1, 11)]
    assert len(kept) >= 10 and all(step == held for step, held in kept)
    assert (tmp_path / "progress" / "step-00007.png").read_bytes() == shown


def test_drawing_leaves_a_sampler_and_all_random_states_as_they_were(sampler, tmp_path):
    sampler.train()
    sampler.layers[1].eval()
    before = {name: value.clone() for name, value in sampler.state_dict().items()}
    modes, state = [part.training for part in sampler.modules()], torch.get_rng_state()
    Previews(tmp_path).draw(sampler, 7)
    assert all(torch.equal(value, before[name]) for name, value in sampler.state_dict().items())
    assert modes == [part.training for part in sampler.modules()]
    assert torch.equal(state, torch.get_rng_state()) and written(tmp_path) == ["step-00007.png"]


def test_all_grids_are_drawn_from_the_same_random_numbers(sampler, tmp_path):
    for step in (1, 2):
        Previews(tmp_path).draw(sampler, step)
    first, second = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == second


def test_grids_are_due_ten_times_and_at_the_end(tmp_path):
    due = [step for step in range(1, 106) if Previews(tmp_path).due(step, steps=105)]
    assert due == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 105]
    assert [step for step in range(1, 4) if Previews(tmp_path).due(step, steps=3)] == [1, 2, 3]
    assert not Previews(None).due(10, steps=10)


def test_a_grid_that_cannot_be_written_is_a_warning(sampler, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be written"):
        Previews(tmp_path / "file" / "progress").draw(sampler, 1)


def test_images_of_two_channels_have_no_grid(tmp_path):
    two = NetworkSampler(architecture="dense", shape=[2, 8, 8], classes=1)
    Previews(tmp_path).draw(two, 1)
    assert written(tmp_path) == []


def test_a_file_in_place_of_the_folder_is_refused(stripes, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameterError, match="is a file"):
        MEAN.fit(stripes, preview=tmp_path / "file", **TERMS)
