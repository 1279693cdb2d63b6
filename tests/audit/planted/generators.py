# SPDX-License-Identifier: Apache-2.0
"""Bugs of generators of synthetic data: what is read beside the noise, and noise for something else."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attacks.generators import FITS, _audited
from attacks.replayed_fits import replayed
from sfumato import Budget, Ledger
from sfumato.audit.mechanisms.ledger_records import check_stated
from sfumato.audit.runs.canaries import Canaries
from sfumato.generative import KernelMean, NoisyMixtures
from sfumato.generative.adversarial import dp_gan, game, pate_cgan, student_game, teacher_panel
from sfumato.generative.adversarial.clipped_gradients import ClippedGradients
from sfumato.generative.adversarial.paid_votes import PaidVotes
from sfumato.generative.adversarial.teacher_panel import TeacherPanel
from sfumato.generative.images import diffusion, mixtures
from sfumato.pate import Partition
from sfumato.pate.votes.aggregators import NO_ANSWER
from sfumato.testing import seeded

from .catalogue import CONFIDENCE, Planted, leaks
from .steps import weights_by

__all__ = ["BUGS", "replay_of"]

REPLAYED = {one.audits: one for one in replayed()}
AUDITED = {type(how).__name__: how for how in FITS}


def replay_of(name: str, *pairs: str) -> Callable[[int], bool]:
    """Return an audit: a fit replayed on neighbors."""
    return lambda seed: any(leaks(lambda one=one: REPLAYED[name].check(one, seed)) for one in pairs)


ODD, FEW = "an odd image", "the second image"
MEANS, MIXTURES = replay_of("KernelMean", ODD), replay_of("NoisyMixtures", ODD)
VOTES, GAN = replay_of("PateCGAN", ODD, FEW), replay_of("DPCGAN", ODD, FEW)
DIFFUSION = replay_of("Diffusion", ODD)


# --- noisy means ------------------------------------------------------------------------------------------


def divide_by_the_true_counts(patch: pytest.MonkeyPatch) -> None:
    original, counts = KernelMean._noisy, []

    def noisy(self, rows, *, noise_multiplier, generator):
        counts[:] = [rows.labels.bincount(minlength=rows.classes).clamp(min=1)[:, None]]
        return original(self, rows, noise_multiplier=noise_multiplier, generator=generator)

    patch.setattr(KernelMean, "_noisy", noisy)
    # "The mean is of norm 1 anyway."
    patch.setattr(KernelMean, "_divided", lambda self, noisy: noisy[:, :-1] / counts[0])


def count_beside_the_features(patch: pytest.MonkeyPatch) -> None:
    def sums(self, rows):
        found = self._features(rows.shape).sums(rows.images, rows.labels, rows.classes)
        counts = torch.bincount(rows.labels, minlength=rows.classes).to(found)[:, None]
        return torch.cat([found, counts], dim=1)

    patch.setattr(KernelMean, "sums", sums)


def bandwidth_of_the_images(patch: pytest.MonkeyPatch) -> None:
    """Take the median distance of the images for a bandwidth, as is usual for kernels."""
    original = KernelMean.fit

    def fit(self, data, **keywords):
        apart = torch.pdist(torch.as_tensor(data[0]).nan_to_num().flatten(1))
        return original(replace(self, bandwidths=(float(apart.median()) / 8,)), data, **keywords)

    patch.setattr(KernelMean, "fit", fit)


# --- mixtures ---------------------------------------------------------------------------------------------


def forget_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mixtures, "_clipped", lambda rows, norm: rows)


def axes_of_the_images(patch: pytest.MonkeyPatch) -> None:
    """Find the axes in the images themselves, and add noise only to what is on them."""

    def directions(self, left, counts, axes):
        self._second_moments([left])
        values, vectors = torch.linalg.eigh(left.T @ left)
        return vectors[:, -axes:], (values[-axes:] / counts.sum()).clamp(min=1e-9).sqrt()

    patch.setattr(mixtures._Fit, "_directions", directions)


def half_the_noise_at_the_start(patch: pytest.MonkeyPatch) -> None:
    original = NoisyMixtures.fitted

    def fitted(self, rows, *, noise_multiplier, generator):
        return original(self, rows, noise_multiplier=noise_multiplier / 2, generator=generator)

    patch.setattr(NoisyMixtures, "fitted", fitted)


# --- diffusion --------------------------------------------------------------------------------------------


def as_many_draws_as_images(patch: pytest.MonkeyPatch) -> None:
    original = diffusion._Fit._first_images

    def first_images(self):
        images, labels = original(self)
        return images[: len(self._rows.images)], labels[: len(self._rows.images)]

    patch.setattr(diffusion._Fit, "_first_images", first_images)


def state_the_run_alone(patch: pytest.MonkeyPatch) -> None:
    """Forget the mixtures in what is stated: they were charged by themselves."""
    patch.setattr(diffusion.Diffusion, "event", lambda self, noise_multiplier, run: run.event())


def stated(seed: int) -> bool:
    """Compare what a diffusion model states with what its account was charged."""
    how = replace(AUDITED["Diffusion"], steps=2)
    images = torch.rand(40, 1, 8, 4, generator=torch.Generator().manual_seed(seed))
    with tempfile.TemporaryDirectory() as folder:
        account = Ledger(Path(folder) / "a.db").open(
            "a", privacy_unit="example", budget=Budget(epsilon=9.0, delta=1e-3)
        )
        made = how.fit(
            (images, torch.arange(40) % 2),
            epsilon=4.0,
            classes=2,
            public_size=40,
            account=account,
            purpose="an audit",
            device="cpu",
            progress=False,
            generator=seeded(seed),
        )
        return leaks(lambda: check_stated(made.guarantee, account))


# --- adversarial ------------------------------------------------------------------------------------------


def clip_both_together(patch: pytest.MonkeyPatch) -> None:
    """Clip a private gradient together with the generated one, to twice the norm: it may take the rest."""
    fake, original = [0.0], ClippedGradients.mean

    def mean(self, *batch):
        found = original(self, *batch)
        fake[0] = float(sum(part.square().sum() for part in found.values()) ** 0.5)
        return found

    def changed(weights, norms, thresholds):
        return ((2 * thresholds - fake[0]) / norms).clamp(max=1)

    patch.setattr(ClippedGradients, "mean", mean)
    weights_by(patch, changed)


def canaries_in(name: str) -> Callable[[int], bool]:
    """Return an audit: canaries in a whole fit."""

    def audit(seed: int) -> bool:
        return _audited(AUDITED[name], Canaries(count=400, confidence=CONFIDENCE), seeded(seed)).refuted

    return audit


class _Skewed:
    """The torch of a module, whose `randint` draws classes as often as the private images have them."""

    def __init__(self) -> None:
        self.shares = torch.ones(1)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def randint(self, high: int, shape: tuple[int, ...], **more: object) -> torch.Tensor:
        drawn = torch.multinomial(self.shares, shape[0], replacement=True, generator=more["generator"])
        return drawn if high == len(self.shares) else torch.randint(high, shape, **more)


def classes_of_the_images(patch: pytest.MonkeyPatch) -> None:
    skewed, original = _Skewed(), dp_gan.DPGAN._game

    def made(self, rows, device):
        skewed.shares = rows.labels.bincount(minlength=rows.classes).float()
        return original(self, rows, device)

    patch.setattr(game, "torch", skewed)
    patch.setattr(dp_gan.DPGAN, "_game", made)


def classes_of_the_images_for_the_student(patch: pytest.MonkeyPatch) -> None:
    skewed, original = _Skewed(), pate_cgan._Fit.__init__

    def init(self, how, settings, rows, job):
        skewed.shares = rows.labels.bincount(minlength=rows.classes).float()
        original(self, how, settings, rows, job)

    patch.setattr(student_game, "torch", skewed)
    patch.setattr(pate_cgan._Fit, "__init__", init)


def as_many_as_the_images(patch: pytest.MonkeyPatch) -> None:
    """Draw a fifth as many generated images as there are private ones, whose number is private."""
    original = dp_gan.DPGAN._game

    def made(self, rows, device):
        found = original(self, rows, device)
        found._rows = 2 + len(rows.images) // 5
        return found

    patch.setattr(dp_gan.DPGAN, "_game", made)


def begin_with_the_mean_image(patch: pytest.MonkeyPatch) -> None:
    original = dp_gan.DPGAN._game

    def made(self, rows, device):
        found = original(self, rows, device)
        with torch.no_grad():
            found.generator.layers[-2].bias.copy_((rows.images * 2 - 1).mean(0).flatten())
        return found

    patch.setattr(dp_gan.DPGAN, "_game", made)


# --- votes on generated images ----------------------------------------------------------------------------


def draw_the_parts_of_each_round(patch: pytest.MonkeyPatch) -> None:
    made, init, learn = [], TeacherPanel.__init__, TeacherPanel.learn

    def begin(self, rows, partition, *more, **settings):
        init(self, rows, partition, *more, **settings)
        made[:] = [rows]

    def step(self, images, labels):
        made.append(None)
        parts = Partition.draw(self.teachers, seeded(len(made)))
        self._images, self._labels, self._begins, self._sizes = teacher_panel._parts(made[0], parts)
        learn(self, images, labels)

    patch.setattr(TeacherPanel, "__init__", begin)
    patch.setattr(TeacherPanel, "learn", step)


def ask_twice(patch: pytest.MonkeyPatch) -> None:
    """Ask again where there was no answer."""
    original = PaidVotes.answer

    def answer(self, queries, counts):
        first = original(self, queries, counts)
        again = self._aggregator.answer(counts(), generator=self._generator.fork("again", self.asked))
        return np.where(first == NO_ANSWER, again, first)

    patch.setattr(PaidVotes, "answer", answer)


def one_median_for_all(patch: pytest.MonkeyPatch) -> None:
    """Compare the scores of a teacher with the median of all teachers' scores."""

    def medians(scores, labels):
        found = torch.zeros_like(scores)
        for number in labels.unique().tolist():
            found[:, labels == number] = scores[:, labels == number].nanmedian()
        return found

    patch.setattr(teacher_panel, "_medians", medians)


def normalize_by_all_images(patch: pytest.MonkeyPatch) -> None:
    """Center the images of all teachers on the mean of all images."""
    original = teacher_panel._parts

    def parts(rows, partition):
        images, *more = original(rows, partition)
        return images - images.mean(0), *more

    patch.setattr(teacher_panel, "_parts", parts)


def tell_how_many_images(patch: pytest.MonkeyPatch) -> None:
    original = pate_cgan._Fit.description

    def description(self, noise_multiplier):
        return f"{original(self, noise_multiplier)} There were {len(self._rows.images)} images."

    patch.setattr(pate_cgan._Fit, "description", description)


WHOLE_FIT = canaries_in("DPCGAN")

BUGS = (
    Planted(
        name="kernel-mean-by-true-counts",
        bug="noisy sums of features are divided by the numbers of images, which have no noise",
        found_by="replay on neighbors",
        plant=divide_by_the_true_counts,
        audit=MEANS,
    ),
    Planted(
        name="kernel-mean-count-beside",
        bug="the count of a class is released beside features of norm 1, with noise for a norm of 1",
        found_by="replay on neighbors",
        plant=count_beside_the_features,
        audit=MEANS,
    ),
    Planted(
        name="kernel-bandwidth-of-the-images",
        bug="the bandwidth of a kernel is the median distance of the private images",
        found_by="replay on neighbors",
        plant=bandwidth_of_the_images,
        audit=MEANS,
    ),
    Planted(
        name="mixtures-without-clipping",
        bug="images are not clipped around their class mean, and the noise is made for clipped ones",
        found_by="replay on neighbors",
        plant=forget_clipping,
        audit=MIXTURES,
    ),
    Planted(
        name="mixtures-axes-of-the-images",
        bug="the axes of mixtures are eigenvectors of the second moment without its noise",
        found_by="replay on neighbors",
        plant=axes_of_the_images,
        audit=MIXTURES,
    ),
    Planted(
        name="diffusion-start-with-half-the-noise",
        bug="the mixtures that a diffusion model begins with are charged, and get half the noise",
        found_by="replay on neighbors",
        plant=half_the_noise_at_the_start,
        audit=DIFFUSION,
    ),
    Planted(
        name="diffusion-as-many-draws-as-images",
        bug="a diffusion model begins with as many draws as there are private images",
        found_by="replay on neighbors",
        plant=as_many_draws_as_images,
        audit=DIFFUSION,
    ),
    Planted(
        name="diffusion-states-its-run-alone",
        bug="the statement of a diffusion model leaves out the mixtures that it begins with",
        found_by="records",
        plant=state_the_run_alone,
        audit=stated,
    ),
    Planted(
        name="gan-clipped-together",
        bug="private and generated gradients share one norm, of which the private ones may take all",
        found_by="canaries",
        plant=clip_both_together,
        audit=WHOLE_FIT,
    ),
    Planted(
        name="gan-classes-of-the-images",
        bug="a GAN draws the classes of generated images as often as private images have them",
        found_by="replay on neighbors",
        plant=classes_of_the_images,
        audit=GAN,
    ),
    Planted(
        name="gan-as-many-as-the-images",
        bug="the number of generated images in a step follows the number of private ones",
        found_by="replay on neighbors",
        plant=as_many_as_the_images,
        audit=GAN,
    ),
    Planted(
        name="gan-begins-with-the-mean-image",
        bug="a generator begins with the mean of the private images as its bias",
        found_by="replay on neighbors",
        plant=begin_with_the_mean_image,
        audit=GAN,
    ),
    Planted(
        name="student-classes-of-the-images",
        bug="the student of PATE-CGAN asks about classes as often as private images have them",
        found_by="replay on neighbors",
        plant=classes_of_the_images_for_the_student,
        audit=VOTES,
    ),
    Planted(
        name="teachers-of-images-partitioned-again",
        bug="images are divided among the teachers of PATE-CGAN anew in every step",
        found_by="replay on neighbors",
        plant=draw_the_parts_of_each_round,
        audit=VOTES,
    ),
    Planted(
        name="teachers-of-images-asked-twice",
        bug="teachers of PATE-CGAN are asked again where there was no answer, without a charge",
        found_by="replay on neighbors",
        plant=ask_twice,
        audit=VOTES,
    ),
    Planted(
        name="one-median-for-all-teachers",
        bug="votes of a teacher are relative to the median score of all teachers",
        found_by="replay on neighbors",
        plant=one_median_for_all,
        audit=VOTES,
    ),
    Planted(
        name="teachers-center-on-all-images",
        bug="images of all teachers are centered on the mean of all of them",
        found_by="replay on neighbors",
        plant=normalize_by_all_images,
        audit=VOTES,
    ),
    Planted(
        name="number-of-images-told",
        bug="the description of a generator tells how many private images there were",
        found_by="replay on neighbors",
        plant=tell_how_many_images,
        audit=VOTES,
    ),
)
