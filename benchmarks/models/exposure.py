# SPDX-License-Identifier: Apache-2.0
"""What does a model of characters keep of secrets in its text? Exposure on Shakespeare, with and without DP.

Rows      8,000 windows of 80 characters of the training roles. Ten secrets of four digits are planted, each
          in one window of its own: 10,000 possible ones are ranked for each, 13.3 bits at most. A model that
          keeps nothing gives 1.4 bits on average.
Open      An LSTM and a small transformer of 256 units by Adam, 60 epochs.
Private   The same ones by DP-SGD at epsilon 1, delta 1e-5, one window protected, 20 epochs.
Shown     Mean exposure, and the largest lower bound on epsilon that any of the ten secrets gives: all of them
          together at 95%. Perplexity on windows of other roles says what was learned.
Quick     300 windows, a few epochs, no comparison worth having.
Time      Minutes on a GPU; an hour on two cores.
"""

from collections.abc import Callable, Iterator

import torch
from models.results import Row, left_out
from torch import nn

from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.audit.models.memorization import SecretFormat
from sfumato.audit.models.planted_text import Memorization, train_with_secrets
from sfumato.datasets import DataNotFoundError, Dataset, load
from sfumato.datasets.shakespeare import ALPHABET, WINDOW
from sfumato.training import Privacy, Runtime
from sfumato.training.models.networks import lstm, next_token_cross_entropy, transformer

EPSILON, DELTA, CONFIDENCE = 1.0, 1e-5, 0.95
WINDOWS, QUICK_WINDOWS, TEST_WINDOWS = 8000, 300, 2000
SECRETS, WIDTH = 10, 4
FORM = SecretFormat(template="The number of my chest is {}.", digits=4)
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "LSTM": lambda width: lstm(len(ALPHABET), width=width),
    "transformer": lambda width: transformer(len(ALPHABET), WINDOW, width=width),
}
OPEN_RATES = {"LSTM": 3e-3, "transformer": 1e-3}
PRIVATE_RATES = {"LSTM": 1.0, "transformer": 0.1}


def exposure(quick: bool, device: str) -> Iterator[Row]:
    """Train each model openly and privately, and rank the secrets."""
    try:
        data = load("shakespeare")
    except DataNotFoundError as error:
        yield left_out("secrets in Shakespeare", str(error))
        return
    for name in list(MODELS)[: 1 if quick else None]:
        for epsilon in (None, EPSILON):
            yield from _rows(name, data, epsilon, quick, torch.device(device))


def _rows(
    name: str, data: Dataset, epsilon: float | None, quick: bool, device: torch.device
) -> Iterator[Row]:
    found = _trained(name, data, epsilon, quick, device)
    subject = f"secrets of {FORM.digits} digits in Shakespeare, {name}"
    kind = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
    each = ", ".join(f"{secret.bits:.1f}" for secret in found.exposures)
    yield Row(subject=subject, name=f"{kind}, mean exposure, bits", value=found.mean_bits, note=each)
    yield Row(
        subject=subject,
        name=f"{kind}, lower bound on epsilon",
        value=_bound(found),
        bar=epsilon if not quick else None,
        note=f"perplexity {_perplexity(found.model, data, device):.2f} on other roles",
    )


def _trained(
    name: str, data: Dataset, epsilon: float | None, quick: bool, device: torch.device
) -> Memorization:
    torch.manual_seed(0)  # of first weights; secrets, batches and noise are secure
    count = QUICK_WINDOWS if quick else WINDOWS
    rows = data.train.features[:count], data.train.labels[:count]
    private = epsilon is not None
    privacy = Privacy(epsilon=epsilon, delta=DELTA, clip_norm=0.3) if private else None
    return train_with_secrets(
        MODELS[name](1 if quick else WIDTH).to(device),
        rows,
        form=FORM,
        secrets=SECRETS,
        epochs=2 if quick else 20 if private else 60,
        expected_batch_size=count // 8 if private else min(100, count // 4),
        learning_rate=(PRIVATE_RATES if private else OPEN_RATES)[name],
        privacy=privacy,
        runtime=Runtime(device=device) if private else None,
    )


def _bound(found: Memorization) -> float:
    confidence = confidence_of_each(CONFIDENCE, found.exposures)
    return max(secret.bound(delta=DELTA, confidence=confidence).epsilon for secret in found.exposures)


@torch.no_grad()
def _perplexity(model: nn.Module, data: Dataset, device: torch.device) -> float:
    x, y = data.test.features[:TEST_WINDOWS].to(device), data.test.labels[:TEST_WINDOWS].to(device)
    parts = [next_token_cross_entropy(model, *part) for part in zip(x.split(200), y.split(200), strict=True)]
    return float(torch.cat(parts).mean().exp())
