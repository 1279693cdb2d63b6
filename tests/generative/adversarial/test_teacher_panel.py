# SPDX-License-Identifier: Apache-2.0
"""Teachers: an image reaches one of them, for good; no value raises; they tell real images from noise."""

import numpy as np
import pytest
import torch

from sfumato.generative.adversarial.networks import discriminator_for
from sfumato.generative.adversarial.teacher_panel import REAL, TeacherPanel
from sfumato.generative.images.image_rows import ImageRows
from sfumato.pate import Partition

TEACHERS = 6
PARTITION = Partition(teachers=(TEACHERS,), key=bytes(32))


def panel_of(images, labels, *, partition=PARTITION, architecture="dense"):
    torch.manual_seed(0)
    rows = ImageRows.of((images, labels), classes=2, public_size=400, conditional=True)
    return TeacherPanel(
        rows,
        partition,
        lambda: discriminator_for(architecture, shape=rows.shape, classes=2, width=4),
        learning_rate=3e-3,
        batch=16,
        blur=0.0,
        draws=torch.Generator().manual_seed(1),
    )


def fakes(count=16, seed=2):
    draws = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 8, 8, generator=draws) * 2 - 1, torch.arange(count) % 2


def taught(images, labels, *, steps=5, **more):
    panel = panel_of(images, labels, **more)
    for step in range(steps):
        panel.learn(*fakes(seed=step))
    return panel


def weights(panel):
    return torch.cat([w.detach().flatten(1) for w in panel._weights.values()], dim=1)  # [teachers, all]


@pytest.mark.parametrize("architecture", ["dense", "convolutional"])
@pytest.mark.parametrize("value", [0.5, 1e30, float("nan"), float("inf"), -float("inf")])
def test_one_image_changes_one_teacher_over_all_steps(stripes, architecture, value):
    images, labels = stripes[0][:60], stripes[1][:60]
    changed = images.clone()
    changed[-1] = value
    rows, teachers = PARTITION.assign(rows=60)
    (own,) = teachers[rows == 59]
    before = weights(taught(images, labels, architecture=architecture))
    for other in ((changed, labels), (images[:-1], labels[:-1])):  # changed, and removed
        differ = (before != weights(taught(*other, architecture=architecture))).any(1)
        assert differ.nonzero().flatten().tolist() == [own]


def test_each_image_is_seen_by_one_teacher_over_all_steps(stripes):
    """Every image is marked by its own brightness, and what teachers are shown is recorded."""
    images = torch.linspace(0, 1, 400)[:, None, None, None].expand(400, 1, 8, 8).clone()
    panel = panel_of(images, stripes[1])
    shown = [set() for _ in range(TEACHERS)]
    for step in range(40):
        own = panel._images[panel._own_rows()]
        for number in range(TEACHERS):
            shown[number] |= set(own[number, :, 0, 0, 0].tolist())
        panel.learn(*fakes(seed=step))
    assert sum(map(len, shown)) == len(set.union(*shown))
    assert len(set.union(*shown)) > 380


def test_weights_that_are_no_numbers_stay_with_their_teacher(stripes):
    panel = taught(*stripes, steps=1)
    with torch.no_grad():
        for weight in panel._weights.values():
            weight[2] = float("nan")
    for step in range(3):
        panel.learn(*fakes(seed=step))
    assert [bool(row.isfinite().all()) for row in weights(panel)] == [k != 2 for k in range(TEACHERS)]
    for relative in (True, False):
        counts = panel.counts(*fakes(), relative=relative)
        assert np.isfinite(counts).all() and (counts.sum(1) == TEACHERS).all()
        assert counts[:, REAL].max() < TEACHERS  # what is no number votes "fake"


@pytest.mark.parametrize("relative", [True, False])
def test_teachers_tell_real_images_from_noise(stripes, relative):
    panel = taught(*stripes, steps=60)
    real = stripes[0][:20] * 2 - 1
    noise, _ = fakes(20)
    labels = torch.cat([stripes[1][:20], stripes[1][:20]])
    counts = panel.counts(torch.cat([real, noise]), labels, relative=relative)
    assert counts[:20, REAL].mean() > 0.9 * TEACHERS and counts[20:, REAL].mean() < 0.1 * TEACHERS
    wrong = panel.counts(real, 1 - stripes[1][:20], relative=False)
    assert wrong[:, REAL].mean() < 0.5 * TEACHERS  # a real image of another class


def test_relative_votes_are_split_where_every_image_looks_fake(stripes):
    panel = taught(*stripes, steps=60)
    images, labels = fakes(40)
    assert panel.counts(images, labels, relative=False)[:, REAL].sum() == 0
    assert panel.counts(images, labels, relative=True)[:, REAL].mean() == TEACHERS / 2


@pytest.mark.parametrize("count", [0, 1, 3])
def test_teachers_without_images_vote_fake(stripes, count):
    panel = taught(stripes[0][:count], stripes[1][:count], steps=2)
    counts = panel.counts(*fakes(), relative=True)
    with_images = len(set(PARTITION.assign(rows=count)[1].tolist()))
    assert counts[:, REAL].max() <= with_images and (counts.sum(1) == TEACHERS).all()
