# SPDX-License-Identifier: Apache-2.0
"""PATE-CGAN: teacher discriminators vote on generated images; a student learns from their noisy answers.

Teachers learn from disjoint parts of the private images (`teacher_panel`). In each round they vote which
generated images look real, and Confident-GNMax answers with noise. A student discriminator learns from these
answers, and the generator from the student (`student_game`).

Guarantee  The answers are those of one labeling job of `sfumato.pate`, planned before: the price depends on
           the noise and the number of queries, not on the votes. The means that the generator begins with
           are one Gaussian release. Both are one charge (`event`). Everything else is post-processing.
Unit       One image; add-remove neighbors.
Edge cases Teachers without images vote "fake", so that few images raise nothing. More teachers than
           `public_size` are refused. Classes of generated images are drawn uniformly. Without answers the
           generator stays as it began, and the statement says so.
Failure    All of it is charged before an image is read, and an error after that leaves it spent.
Source     R4 Algorithm 8 and Figure 5.2; Jordon, Yoon, van der Schaar 2019 (PATE-GAN). Confident-GNMax:
           Papernot et al. 2018, arXiv:1802.08908. Wrong classes as fakes: Reed et al. 2016, arXiv:1605.05396.
           Noise in the images that are judged: Soenderby et al. 2017, arXiv:1610.04490. Corrections of R4:
           docs/errata.md, R4-4, R4-7 and R4-8. Votes are relative here (`relative_votes`): teachers that call
           every generated image fake would teach nothing.
"""

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import NetworkSampler, check_architecture, discriminator_for
from sfumato.generative.adversarial.paid_votes import PaidVotes
from sfumato.generative.adversarial.student_game import Pace, StudentGame
from sfumato.generative.adversarial.teacher_panel import FAKE, REAL, TeacherPanel
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.image_rows import ImageRows
from sfumato.generative.images.kernel_mean import KernelMean
from sfumato.generative.images.mean_embedding import Matching
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.pate.teaching.partition import Partition
from sfumato.pate.votes.aggregators import ConfidentGNMax
from sfumato.pate.votes.labeling import Labeling, affordable_queries
from sfumato.training.record.progress import ProgressBar

__all__ = ["PateCGAN"]

_THRESHOLD, _COMPARISON, _ANSWER = 0.55, 0.25, 0.15  # of the number of teachers
_ALIKE = 0.01  # the standard deviation of a pixel below which images of a class are called alike
_START = KernelMean(steps=1000)
_PACE = Pace()


@dataclass(frozen=True, kw_only=True, slots=True)
class PateCGAN:
    """How teachers, student and generator learn. Nothing here is read from data.

    Args:
        teachers: The number of teachers. R4 has 10, for whom an epsilon of 10 buys a handful of queries:
            noise that hides one of many votes is smaller beside the sum of the others.
        aggregator: How votes become answers. Default: Confident-GNMax with threshold 0.55, noise 0.25 in the
            comparison and noise 0.15 in the answer, all times the number of teachers.
        queries: Generated images that are voted on, at most. The budget may cover fewer.
        rounds: In how many rounds they are asked.
        relative_votes: Whether a teacher votes "real" for images above its median of the round; else for
            images with a score above 0, as in R4.
        architecture: "convolutional" or "dense", of generator and student. Teachers are dense.
        width: Channels of the convolutions.
        latent: How many random numbers an image is made of.
        start: The noisy means that the generator begins with, and goes on matching; None begins with random
            weights. Its own network settings are not used.
        start_share: The part of the budget that these means take: a share of the squared signal-to-noise
            ratio.
        anchor: The weight of these means in the generator's loss.
        pace: Steps and learning rates.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    teachers: int = 250
    aggregator: ConfidentGNMax | None = None
    queries: int = 20_000
    rounds: int = 20
    relative_votes: bool = True
    architecture: str = "convolutional"
    width: int = 64
    latent: int = 16
    start: KernelMean | None = _START
    start_share: float = 0.5
    anchor: float = 100.0
    pace: Pace = _PACE

    def __post_init__(self) -> None:
        _check.count(
            teachers=self.teachers,
            queries=self.queries,
            rounds=self.rounds,
            width=self.width,
            latent=self.latent,
        )
        _check.probability(start_share=self.start_share)
        _check.non_negative(anchor=self.anchor)

    def votes(self) -> ConfidentGNMax:
        """Return how votes become answers.

        Returns:
            The given aggregator, or the default for this number of teachers.
        """
        if self.aggregator is not None:
            return self.aggregator
        return ConfidentGNMax(
            threshold=_THRESHOLD * self.teachers,
            threshold_stddev=_COMPARISON * self.teachers,
            stddev=_ANSWER * self.teachers,
        )

    def plan(self, *, epsilon: float, delta: float) -> tuple[float, Labeling]:
        """Return the noise of the means and the labeling job that meet a budget together. Nothing is spent.

        Args:
            epsilon: The privacy budget.
            delta: The delta of the guarantee.

        Returns:
            The noise multiplier of the means, which is infinite if there are none, and the job.

        Raises:
            InvalidParameterError: If the budget does not cover a single query.

        >>> PateCGAN(start=None).plan(epsilon=10.0, delta=1e-5)[1].queries
        2384
        """
        alone = stddev_for(epsilon, delta, 1.0)  # of one Gaussian release that would take all of it
        first = math.inf if self.start is None else alone / math.sqrt(self.start_share)
        most = affordable_queries(
            self.votes(),
            epsilon=epsilon,
            delta=delta,
            teachers=self.teachers,
            given=self._start_event(first),
        )
        queries = min(most, self.queries)
        return first, Labeling(aggregator=self.votes(), queries=queries, teachers=self.teachers, delta=delta)

    def event(self, noise_multiplier: float, job: Labeling) -> DpEvent:
        """Return what the means and the answers cost together.

        Args:
            noise_multiplier: That of the means, infinite if there are none.
            job: The labeling job.

        Returns:
            The event.
        """
        return events.compose(self._start_event(noise_multiplier), job.event())

    def _require_teachers(self, public_size: int) -> None:
        if public_size < self.teachers:
            raise InvalidParameterError(
                f"{self.teachers} teachers need at least as many images, but public_size is {public_size}. "
                "Use fewer teachers; nothing was spent."
            )

    def _start_event(self, noise_multiplier: float) -> DpEvent:
        if self.start is None or math.isinf(noise_multiplier):
            return dp.NoOpDpEvent()
        return self.start.event(noise_multiplier)

    def fit(self, data: Any, **keywords: Unpack[FitKeywords]) -> ImageGenerator:
        """Learn from private images; return a generator, whose draws cost nothing.

        Args:
            data: A data set of `sfumato.datasets`, or images [rows, channels, height, width] and labels.
            **keywords: The fields of `FitSettings`, such as `epsilon`, `delta`, `account` and `device`.

        Returns:
            The generator.

        Raises:
            InvalidParameterError: If a setting is missing or out of range, images do not fit, or the budget
                does not cover a query. Nothing is spent.
            BudgetExceededError: If the account cannot pay. Nothing is spent.
        """
        settings = FitSettings.of(keywords)
        settings.refuse("audit", "public", "resume")
        rows = ImageRows.of(
            data, classes=settings.classes, public_size=settings.public_size, conditional=True
        ).to(settings.where())
        check_architecture(self.architecture, rows.shape)
        self._require_teachers(rows.public_size)
        delta = settings.delta_for(rows.public_size)
        noise, job = self.plan(epsilon=settings.budget, delta=delta)
        event = self.event(noise, job)
        with settings.paid(event):
            fit = _Fit(self, settings, rows, job)
            sampler = fit.sampler(noise)
        return settings.released(
            ImageGenerator(
                sampler=sampler,
                method="pate-cgan",
                classes=rows.classes,
                description=fit.description(noise),
                findings=fit.findings(sampler),
                **settings.facts(event, delta=delta),
            )
        )


class _Fit:
    """One fit. Private images go to `KernelMean.means` and to `TeacherPanel`, and nowhere else."""

    def __init__(self, how: PateCGAN, settings: FitSettings, rows: ImageRows, job: Labeling) -> None:
        self._how, self._settings, self._job = how, settings, job
        self._rows, self._shape, self._classes = rows, rows.shape, rows.classes
        self._device = rows.images.device
        self._source = resolve(settings.generator)
        self._votes = PaidVotes(job, how.votes(), self._source)
        self._game: StudentGame | None = None

    def sampler(self, noise_multiplier: float) -> NetworkSampler:
        how, device = self._how, self._device
        generator = NetworkSampler(
            architecture=how.architecture,
            shape=list(self._shape),
            classes=self._classes,
            width=how.width,
            latent=how.latent,
        ).to(device)
        anchor = self._begin(generator, noise_multiplier)
        student = discriminator_for(
            how.architecture, shape=self._shape, classes=self._classes, width=how.width
        )
        self._game = StudentGame(
            generator,
            student.to(device),
            classes=self._classes,
            pace=how.pace,
            anchor=anchor,
            anchor_weight=how.anchor,
            draws=_draws(self._source.fork("student", 0), device),
        )
        self._rounds(self._game)
        return self._game.finished()

    def _begin(self, generator: NetworkSampler, noise_multiplier: float) -> Matching | None:
        start = self._how.start
        if start is None:
            return None
        source = self._source.fork("start", 0)
        means = start.means(self._rows, noise_multiplier=noise_multiplier, generator=source)
        matching = start.matching(means, self._shape)
        start.matched(
            matching,
            generator,
            generator=source,
            progress=self._settings.progress,
            previews=self._settings.previews().during("start"),
        )
        return matching

    def _panel(self) -> TeacherPanel:
        how = self._how
        return TeacherPanel(
            self._rows,
            Partition.draw(how.teachers, self._source.fork("partition", 0)),
            lambda: discriminator_for("dense", shape=self._shape, classes=self._classes, width=how.width),
            learning_rate=how.pace.teacher_rate,
            batch=how.pace.batch,
            blur=how.pace.blur,
            draws=_draws(self._source.fork("teachers", 0), self._device),
        )

    def _rounds(self, game: StudentGame) -> None:
        panel, pace, rounds = self._panel(), self._how.pace, self._how.rounds
        previews = self._settings.previews().during("round")
        with ProgressBar(steps=rounds, done=0, shown=self._settings.progress, title="voting") as bar:
            for done in range(rounds):
                for _ in range(pace.teacher):
                    panel.learn(*game.images(pace.batch))
                asked = min(self._votes.left, math.ceil(self._votes.left / (rounds - done)))
                if asked:
                    self._ask(panel, game, asked)
                if previews.due(done + 1, steps=rounds):
                    game.preview(previews, done + 1)
                bar.advance()

    def _ask(self, panel: TeacherPanel, game: StudentGame, asked: int) -> None:
        images, labels = game.images(asked)
        answers = self._votes.answer(
            asked, lambda: panel.counts(images, labels, relative=self._how.relative_votes)
        )
        game.learn(images, labels, torch.as_tensor(answers, device=images.device))

    def description(self, noise_multiplier: float) -> str:
        started = "" if self._how.start is None else f"{self._how.start.description(noise_multiplier)} "
        return (
            f"{started}{self._job.teachers} teachers learned from disjoint parts of the private images, and "
            f"voted on {self._votes.asked} generated images of {self._job.queries} that were paid for. "
            f"{self._job.aggregator.name} answered {self._votes.answered} of them. A student discriminator "
            "learned from these answers, and the generator from the student: neither saw a private image."
        )

    def findings(self, sampler: NetworkSampler) -> tuple[str, ...]:
        """Return what is wrong with the generator; all of it is computed from what was released."""
        assert self._game is not None
        found: list[str] = []
        fake, real = self._game.answered[FAKE], self._game.answered[REAL]
        if not fake or not real:
            found.append(
                f"The answers were {real} times real and {fake} times fake, so the student had nothing to "
                "tell apart, and the generator learned nothing from it."
            )
        if _spread(sampler, self._classes) < _ALIKE:
            found.append("The generator collapsed: its images of a class are nearly alike.")
        return tuple(found)


@torch.no_grad()
def _spread(sampler: NetworkSampler, classes: int) -> float:
    """Return the standard deviation of a pixel among images of a class, averaged."""
    device = next(sampler.parameters()).device
    labels = torch.arange(32 * classes, device=device) % classes
    images = sampler.sample(labels, torch.Generator(device).manual_seed(0))
    return float(images.unflatten(0, (32, classes)).std(0).mean())


def _draws(generator: Generator, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(int(words(1, generator)[0] >> np.uint64(1)))
