# SPDX-License-Identifier: Apache-2.0
"""Reports in stages: a model of the earlier reports is the prior of later ones (LP-MST, LP-2ST).

The first stage reports by plain randomized response. Each later one trains a model on all reports so far;
the model's predictions on the features of its own rows are the prior of RRWithPrior.

Guarantee  Whatever one label is, all reports together are at most e^epsilon times likelier than under any
           other label. Rows are split into stages by a rule that does not use labels, and each label is
           reported once, in its own stage, by an epsilon-private mechanism. Earlier stages do not use it,
           and later ones use only its report, so the cost is that of the most expensive stage, not the sum.
Neighbors  Replace-label. Which row is in which stage is public, like features.
Edge cases A stage without rows is skipped. If the first stage has none, the next one has no prior and is
           first.
Source     Ghazi, Golowich, Kumar, Manurangsi, Zhang 2021, arXiv:2102.06062, Algorithm 3.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.learning import Released, Teach, soft_cross_entropy
from sfumato.labels.methods.prior_response import RRWithPrior
from sfumato.labels.methods.randomized_response import Correction, marginal_loss
from sfumato.mechanisms.random import Generator, resolve, words

__all__ = ["check_shares", "report_in_stages", "rows_so_far", "split_rows"]


def check_shares(shares: Sequence[float]) -> None:
    """Raise unless there are two stages or more, with positive shares."""
    if len(shares) < 2:
        raise InvalidParameterError(f"shares must be those of two stages or more, but {shares!r} was given.")
    for share in shares:
        _check.positive(shares=share)


def split_rows(rows: int, *, shares: Sequence[float], generator: Generator | None = None) -> list[Tensor]:
    """Split row numbers at random by shares of their total, without using labels.

    >>> [len(stage) for stage in split_rows(10, shares=(2, 3))]
    [4, 6]
    """
    order = np.argsort(words(rows, generator), kind="stable")
    ends = rows_so_far(rows, shares=shares)[:-1]
    return [torch.from_numpy(np.sort(stage)) for stage in np.split(order, ends)]


def rows_so_far(rows: int, *, shares: Sequence[float]) -> list[int]:
    """Return how many rows were reported after each stage; the last number is that of all rows.

    >>> rows_so_far(10, shares=(2, 3))
    [4, 10]
    """
    check_shares(shares)
    return np.round(np.cumsum(shares) / np.sum(shares) * rows).astype(np.int64).tolist()


def report_in_stages(
    labels: Tensor,
    *,
    mechanism: RRWithPrior,
    stages: Sequence[Tensor],
    teach: Teach,
    correction: Correction = Correction.NONE,
    generator: Generator | None = None,
) -> Released:
    """Report every label once, stage by stage, and return the reports of all stages.

    `teach(rows, released)` trains on the reports of some rows and returns probabilities for all rows.
    """
    rows = len(labels)
    _check_partition(stages, rows)
    reports = _Reports(mechanism, rows, correction)
    seen = torch.empty(0, dtype=torch.int64)
    for number, stage in enumerate(stages):
        if not len(stage):
            continue
        prior = teach(seen, reports.released(seen))[stage] if len(seen) else torch.ones(mechanism.classes)
        # An even prior makes every class a candidate: that is plain randomized response.
        reports.add(stage, labels[stage], prior, resolve(generator).fork("labels", number))
        seen = torch.cat([seen, stage]).sort().values
    return reports.released(torch.arange(rows))


class _Reports:
    """The reports so far and, with the forward correction, the likelihood of each class."""

    def __init__(self, mechanism: RRWithPrior, rows: int, correction: Correction) -> None:
        self._mechanism = mechanism
        self._labels = torch.zeros(rows, dtype=torch.int64)
        forward = correction is Correction.FORWARD
        self._likelihoods = torch.zeros(rows, mechanism.classes) if forward else None

    def add(self, stage: Tensor, labels: Tensor, prior: Tensor, generator: Generator) -> None:
        self._labels[stage] = self._mechanism.release(labels, prior=prior, generator=generator)
        if self._likelihoods is not None:
            self._likelihoods[stage] = self._mechanism.likelihoods(self._labels[stage], prior=prior).float()

    def released(self, rows: Tensor) -> Released:
        if self._likelihoods is not None:
            return Released(targets=self._likelihoods[rows], loss=marginal_loss)
        return Released(targets=self._labels[rows], loss=soft_cross_entropy)


def _check_partition(stages: Sequence[Tensor], rows: int) -> None:
    """Raise unless each row occurs once: a label that is reported twice would cost twice."""
    together = torch.cat([torch.empty(0, dtype=torch.int64), *stages]).sort().values
    if not torch.equal(together, torch.arange(rows)):
        raise InvalidParameterError(f"stages must hold each of the {rows} rows exactly once.")
