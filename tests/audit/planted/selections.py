# SPDX-License-Identifier: Apache-2.0
"""Bugs of selections, counts and labels: shortcuts at a margin, shared draws, noise that is repaired.

All but the first are by somebody who had not read the code of the audit, in our words.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attacks.catalogue import _attacked
from attacks.releases import mechanism_cases
from attacks.selections import margin_cases
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism
from sfumato.labels.input_checks import checked_labels
from sfumato.labels.methods import alibi
from sfumato.labels.methods.alibi import NoisyOneHot
from sfumato.labels.methods.clusters import ClusterLabels
from sfumato.labels.methods.prior_response import RRWithPrior
from sfumato.mechanisms import (
    DiscreteLaplace,
    IntervalExponential,
    NoisyMax,
    PermuteAndFlip,
    exact,
    selection,
)
from sfumato.mechanisms.discrete import discrete_laplace
from sfumato.testing import seeded

from .catalogue import CONFIDENCE, Planted

__all__ = ["BUGS"]

CASES = {case.subject: case for case in (*mechanism_cases(), *margin_cases())}
CLUSTERS = torch.tensor([0] * 6 + [1] * 6)


def attacked(subject: str, *, trials: int) -> Callable[[int], bool]:
    """Return an audit of a case of `make audit`."""

    def audit(seed: int) -> bool:
        return _attacked(CASES[subject], trials, CONFIDENCE, seeded(seed)).refuted

    return audit


def told_apart(
    run: Any, first: Any, second: Any, relation: Relation, *, trials: int
) -> Callable[[int], bool]:
    """Return an audit of a release that claims an epsilon of 1."""
    claim = Guarantee(epsilon=1.0, delta=0.0, relation=relation, privacy_unit="row")

    def audit(seed: int) -> bool:
        return audit_mechanism(
            run, first, second, trials=trials, confidence=CONFIDENCE, claim=claim, generator=seeded(seed)
        ).refuted

    return audit


# --- selections -------------------------------------------------------------------------------------------


def _return_leaders(patch: pytest.MonkeyPatch, lead: float) -> None:
    original = NoisyMax.release

    def release(self, scores, *, generator=None):
        first, second, *_ = sorted(scores, reverse=True)
        if first - second > lead * self.sensitivity / self.epsilon:
            return int(np.argmax(scores))
        return original(self, scores, generator=generator)

    patch.setattr(NoisyMax, "release", release)


def return_who_leads_by_three(patch: pytest.MonkeyPatch) -> None:
    _return_leaders(patch, 3.0)


def return_clear_winners(patch: pytest.MonkeyPatch) -> None:
    _return_leaders(patch, 10.0)


def flip_without_permuting(patch: pytest.MonkeyPatch) -> None:
    def release(self, scores, *, generator=None):
        known = selection._fractions(scores)
        rates = [self._rate() * (max(known) - score) for score in known]
        floats = np.array([float(min(rate, 10_000)) for rate in rates])
        return int(np.flatnonzero(exact.bernoulli_exp(floats, rates.__getitem__, generator))[0])

    patch.setattr(PermuteAndFlip, "release", release)


def answer_the_middle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        IntervalExponential, "_point", lambda self, start, length, generator: float(start + length / 2)
    )


# --- counts -----------------------------------------------------------------------------------------------


def repair_negative_counts(patch: pytest.MonkeyPatch) -> None:
    original = DiscreteLaplace.release

    def release(self, value, *, generator=None):
        noisy = original(self, value, generator=generator)
        return noisy if noisy >= 0 else int(value)

    patch.setattr(DiscreteLaplace, "release", release)


def count(value: int, generator: Any) -> int:
    mechanism = DiscreteLaplace.calibrated(epsilon=1.0, sensitivity=1, relation=Relation.ADD_REMOVE)
    return mechanism.release(value, generator=generator)


# --- labels -----------------------------------------------------------------------------------------------


def put_the_label_on_its_list(patch: pytest.MonkeyPatch) -> None:
    original = RRWithPrior.release

    def release(self, labels, *, prior, generator=None):
        weights = np.tile(np.asarray(prior, dtype=np.float64), (len(labels), 1))
        for row, label in zip(weights, labels, strict=True):
            second = int(np.argsort(-row)[1])
            if (
                row[label] < row[second]
            ):  # it would be lost: it takes the last place of those that may be said
                row[[second, label]] = row[[label, second]]
        return original(self, labels, prior=weights, generator=generator)

    patch.setattr(RRWithPrior, "release", release)


def say_a_label(label: int, generator: Any) -> int:
    method = RRWithPrior(epsilon=1.0, classes=4)
    return int(method.release([label], prior=[0.6, 0.35, 0.03, 0.02], generator=generator)[0])


def leave_empty_cells_empty(patch: pytest.MonkeyPatch) -> None:
    original = ClusterLabels.counts

    def counts(self, labels, *, generator=None):
        found = original(self, labels, generator=generator)
        true = checked_labels(labels, classes=self.classes, rows=len(self.clusters))
        cells = (self.clusters * self.classes + true).bincount(minlength=found.counts.numel())
        found.counts.view(-1)[cells == 0] = 0.0
        return found

    patch.setattr(ClusterLabels, "counts", counts)


def count_labels(labels: list[int], generator: Any) -> np.ndarray:
    method = ClusterLabels(epsilon=1.0, classes=3, clusters=CLUSTERS)
    return method.counts(labels, generator=generator).counts.flatten().numpy()


def draw_once_for_a_row(patch: pytest.MonkeyPatch) -> None:
    def release(self, labels, *, generator=None):
        true = checked_labels(labels, classes=self.classes, rows=len(labels))
        steps = F.one_hot(true, self.classes) * alibi._STEPS
        steps += discrete_laplace((len(true), 1), scale=self._entry().scale, generator=generator)
        return (steps.double() / alibi._STEPS).float()

    patch.setattr(NoisyOneHot, "release", release)


def encode(label: int, generator: Any) -> np.ndarray:
    return NoisyOneHot(epsilon=1.0, classes=3).release([label], generator=generator)[0].numpy()


LABEL = Relation.REPLACE_LABEL

BUGS = (
    Planted(
        name="leader-by-three-returned",
        bug="a candidate that leads by three is returned without noise",
        found_by="event search",
        plant=return_who_leads_by_three,
        audit=attacked("NoisyMax, ahead by 3", trials=1500),
    ),
    Planted(
        name="clear-winner-returned",
        bug="a candidate that leads by ten is returned without noise",
        found_by="event search",
        plant=return_clear_winners,
        audit=attacked("NoisyMax, ahead by 11", trials=4000),
    ),
    Planted(
        name="flipped-without-permuting",
        bug="permute-and-flip visits candidates in the order they are given",
        found_by="event search",
        plant=flip_without_permuting,
        audit=attacked("PermuteAndFlip", trials=600),
    ),
    Planted(
        name="middle-of-an-interval",
        bug="a choice among intervals returns the middle of one, whose ends are private",
        found_by="event search",
        plant=answer_the_middle,
        audit=attacked("IntervalExponential, an end moved", trials=300),
    ),
    Planted(
        name="negative-counts-repaired",
        bug="a noisy count below zero is replaced by the true one",
        found_by="event search",
        plant=repair_negative_counts,
        audit=told_apart(count, 0, 1, Relation.ADD_REMOVE, trials=8000),
    ),
    Planted(
        name="label-put-on-its-list",
        bug="a label that is not among the likeliest takes the last place of the list that may be said",
        found_by="event search",
        plant=put_the_label_on_its_list,
        audit=told_apart(say_a_label, 0, 3, LABEL, trials=400),
    ),
    Planted(
        name="empty-cells-stay-empty",
        bug="counts of labels that nobody in a cluster has get no noise",
        found_by="event search",
        plant=leave_empty_cells_empty,
        audit=told_apart(count_labels, [0] * 12, [1] + [0] * 11, LABEL, trials=400),
    ),
    Planted(
        name="one-draw-for-a-row-of-classes",
        bug="one noise is drawn for a label, and added to all entries of its vector",
        found_by="event search",
        plant=draw_once_for_a_row,
        audit=told_apart(encode, 0, 2, LABEL, trials=400),
    ),
)
