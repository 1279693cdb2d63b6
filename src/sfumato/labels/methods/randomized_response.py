# SPDX-License-Identifier: Apache-2.0
"""Randomized response of labels, and losses that correct for it.

A report is the label with probability 1 - p, else a class drawn evenly from all of them. Probabilities are
those of `mechanisms.randomized_response`: rounded towards noise, with secure bits. The corrections are:

- NONE: the loss of the report as if it were the label.
- BACKWARD: (loss(report) - p * mean over classes of loss) / (1 - p). Its expectation over the report is
  exactly the loss of the true label. It is not bounded below: a model that is too large for its data can
  drive it towards minus infinity.
- FORWARD: -log of the probability that the model gives the report: the sum over classes of the probability
  of the report under that class, times the model's probability of it. Its minimum, over all models, is at
  the true probabilities.

Guarantee  Each label is reported by k-ary randomized response: whatever it is, a report is at most e^epsilon
           times likelier than under any other label. Learning from reports is post-processing.
Neighbors  Replace-label: one label is replaced. Features are public.
Source     Warner 1965; Natarajan, Dhillon, Ravikumar, Tewari 2013, Lemma 1 (unbiased); Patrini, Rozza, Menon,
           Nock, Qu 2017, Theorems 1 and 2 (backward and forward).
"""

import enum
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.accounting.guarantee import Relation
from sfumato.labels.learning import Loss
from sfumato.mechanisms.random import Generator
from sfumato.mechanisms.randomized_response import RandomizedResponse

__all__ = ["Correction", "backward_loss", "likelihoods", "marginal_loss", "report", "response"]


class Correction(enum.Enum):
    """How a loss corrects for the noise in reports."""

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"


def response(*, epsilon: float, classes: int) -> RandomizedResponse:
    """Return randomized response of labels, for replace-label neighbors.

    >>> response(epsilon=1.0, classes=10).event()
    RandomizedResponseDpEvent(noise_parameter=0.85336..., num_buckets=10)
    """
    return RandomizedResponse.calibrated(
        epsilon=epsilon, num_buckets=classes, relation=Relation.REPLACE_LABEL
    )


def report(mechanism: RandomizedResponse, labels: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Return one report for each label, int64 on the CPU.

    >>> report(response(epsilon=50.0, classes=3), torch.tensor([2, 0]))
    tensor([2, 0])
    """
    return torch.from_numpy(mechanism.release(labels.cpu().numpy(), generator=generator))


def backward_loss(mechanism: RandomizedResponse) -> Loss:
    """Return the loss of reports whose expectation is the cross-entropy of the true labels.

    >>> backward_loss(response(epsilon=1.0, classes=3))(torch.zeros(2, 3), torch.tensor([0, 2]))
    tensor([1.0986, 1.0986])
    """
    noise = mechanism.noise_parameter

    def loss(logits: Tensor, reports: Tensor) -> Tensor:
        losses = -F.log_softmax(logits, dim=1)  # [rows, classes]
        of_report = losses.gather(1, reports.unsqueeze(1)).squeeze(1)
        return (of_report - noise * losses.mean(1)) / (1 - noise)

    return loss


def likelihoods(mechanism: RandomizedResponse, reports: Tensor) -> Tensor:
    """Return the log of the probability of each report under each class: float64 [rows, classes].

    >>> likelihoods(response(epsilon=1.0, classes=2), torch.tensor([1])).softmax(1)
    tensor([[0.2689, 0.7311]], dtype=torch.float64)
    """
    other = mechanism.noise_parameter / mechanism.num_buckets
    found = torch.full((len(reports), mechanism.num_buckets), math.log(other), dtype=torch.float64)
    return found.scatter(1, reports.unsqueeze(1), math.log(1 - mechanism.noise_parameter + other))


def marginal_loss(logits: Tensor, log_likelihoods: Tensor) -> Tensor:
    """Return -log of the probability that the model gives what was released: the forward correction.

    >>> marginal_loss(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]).log())
    tensor([0.6931])
    """
    return -torch.logsumexp(F.log_softmax(logits, dim=1) + log_likelihoods.to(logits.dtype), dim=1)
