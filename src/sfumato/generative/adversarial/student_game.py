# SPDX-License-Identifier: Apache-2.0
"""A student discriminator that learns from noisy answers about generated images, and its generator.

Guarantee  Nothing here sees a private image, a vote or a count: what comes in are answers of an aggregator,
           and means that were released (`Matching`). So it is post-processing, and costs nothing.
           Images that are asked have noise in their pixels (`Pace.blur`): among images that differ in few
           directions, answers would say nothing about the others.
Edge cases Queries without an answer are left out. Without any answer of both kinds the student has nothing to
           tell apart, and the generator follows `anchor` alone, or stays as it is.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.adversarial.teacher_panel import FAKE, REAL
from sfumato.generative.images.mean_embedding import Matching
from sfumato.generative.previews import Previews
from sfumato.training.weight_average import WeightAverage

__all__ = ["Pace", "StudentGame"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How many steps each side takes in a round. None of them costs privacy.

    Args:
        teacher: Steps of the teachers.
        student: Steps of the student.
        generator: Steps of the generator.
        batch: Images in a step of a teacher; a step of the student or the generator sees 8 times as many.
        blur: The standard deviation of noise in pixels in [-1, 1], in whatever teachers and student see.
        teacher_rate: The rate of the teachers' Adam.
        student_rate: The rate of the student's.
        generator_rate: The rate of the generator's. One that begins with random weights needs ten times more.

    Raises:
        InvalidParameterError: If a number is out of range.
    """

    teacher: int = 10
    student: int = 30
    generator: int = 15
    batch: int = 16
    blur: float = 1.0
    teacher_rate: float = 3e-3
    student_rate: float = 1e-3
    generator_rate: float = 3e-4

    def __post_init__(self) -> None:
        _check.count(teacher=self.teacher, student=self.student, generator=self.generator, batch=self.batch)
        _check.non_negative(blur=self.blur)
        _check.positive(
            teacher_rate=self.teacher_rate,
            student_rate=self.student_rate,
            generator_rate=self.generator_rate,
        )


class StudentGame:
    """A generator against a student discriminator, both without private images.

    Args:
        generator: The generator, on its device.
        student: The student discriminator.
        classes: The number of classes.
        pace: How many steps each takes.
        anchor: What the generator must go on matching, if there is something.
        anchor_weight: The weight of that in the generator's loss.
        draws: Where random numbers come from, on the generator's device.
    """

    def __init__(
        self,
        generator: NetworkSampler,
        student: nn.Module,
        *,
        classes: int,
        pace: Pace,
        anchor: Matching | None,
        anchor_weight: float,
        draws: torch.Generator,
    ) -> None:
        self.generator, self.student, self._classes, self._pace = generator, student, classes, pace
        self._anchor, self._anchor_weight, self._draws = anchor, anchor_weight, draws
        self._known: list[tuple[Tensor, Tensor, Tensor]] = []
        self._student_optimizer = torch.optim.Adam(student.parameters(), lr=pace.student_rate)
        self._generator_optimizer = torch.optim.Adam(
            generator.parameters(), lr=pace.generator_rate, betas=(0.5, 0.999)
        )
        self._average = WeightAverage(dict(generator.named_parameters()), decay=0.99)
        self.answered = {FAKE: 0, REAL: 0}

    @torch.no_grad()
    def images(self, count: int) -> tuple[Tensor, Tensor]:
        """Return generated images with noise, of all classes in turn, from a random one on.

        Args:
            count: How many.

        Returns:
            Images and class numbers.
        """
        where = self._draws.device
        first = torch.randint(self._classes, (1,), generator=self._draws, device=where)
        labels = (torch.arange(count, device=where) + first) % self._classes
        # Batch norm needs more than one row in training, and running means are what the release draws with.
        made = self.generator.eval()(self.generator.latent(count, self._draws), labels)
        return self._blurred(made), labels

    def _blurred(self, images: Tensor) -> Tensor:
        noise = torch.randn(images.shape, generator=self._draws, device=images.device)
        return images + self._pace.blur * noise

    def learn(self, images: Tensor, labels: Tensor, answers: Tensor) -> None:
        """Take in the answers of a round; the student and then the generator take their steps.

        Args:
            images: The generated images that were asked.
            labels: Their class numbers.
            answers: 1 for real, 0 for fake, below 0 for no answer.
        """
        kept = answers >= 0
        self._known.append((images[kept], labels[kept], answers[kept].float()))
        for kind in self.answered:
            self.answered[kind] += int((answers == kind).sum())
        if min(self.answered.values()) > 0:
            self._student_steps()
            self._generator_steps()

    def _student_steps(self) -> None:
        images, labels, answers = (torch.cat(parts) for parts in zip(*self._known, strict=True))
        size = 8 * self._pace.batch
        for _ in range(self._pace.student):
            chosen = torch.randint(len(images), (size,), generator=self._draws, device=images.device)
            score = self.student(images[chosen], labels[chosen])
            self._student_optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(score, answers[chosen]).backward()
            self._student_optimizer.step()

    def _generator_steps(self) -> None:
        size = 8 * self._pace.batch
        self.generator.train()
        for _ in range(self._pace.generator):
            labels = torch.randint(self._classes, (size,), generator=self._draws, device=self._draws.device)
            made = self.generator(self.generator.latent(size, self._draws), labels)
            loss = F.softplus(-self.student(self._blurred(made), labels)).mean()
            if self._anchor is not None:
                loss = loss + self._anchor_weight * self._anchor.loss(self.generator, self._draws)
            self._generator_optimizer.zero_grad()
            loss.backward()
            self._generator_optimizer.step()
            self._average.update()

    def preview(self, previews: Previews, round_number: int) -> None:
        """Write a grid of what the generator draws now, with the average of its weights.

        Args:
            previews: What writes grids.
            round_number: How many rounds were played.
        """
        with self._average.applied() if self._average.updates else nullcontext():
            previews.draw(self.generator, round_number)

    def finished(self) -> NetworkSampler:
        """Return the generator with the average of its weights.

        Returns:
            The generator, in evaluation mode.
        """
        if self._average.updates:
            self._average.keep()
        return self.generator.eval()
