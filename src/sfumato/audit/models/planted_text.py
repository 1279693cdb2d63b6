# SPDX-License-Identifier: Apache-2.0
"""Training of language models on text with planted secrets, with or without privacy, to measure memorization.

Models predict the next token at every place, [rows, length] to [rows, length, tokens], such as
`training.models.networks.lstm` and `training.models.networks.transformer`. A secret is one row of its own:
its text, then text of the caller's rows up to their length. Without a `privacy` the same model is trained on
the same rows by Adam, without a guarantee, for comparison.

Unit       One row is one privacy unit, so a bound on epsilon from a secret tests the claim for one example.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.models.memorization import Exposure, SecretFormat, exact_exposures, require_secrets
from sfumato.datasets.shakespeare import encode_text
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.training.description import Privacy
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.models.networks import next_token_cross_entropy
from sfumato.training.runtime import Runtime
from sfumato.training.train import train

__all__ = ["Memorization", "plant", "text_log_likelihood", "train_with_secrets"]

Rows = tuple[Tensor, Tensor]  # ids, and the ids one place later
Encode = Callable[[str], Tensor]


@dataclass(frozen=True, kw_only=True)
class Memorization:
    """A model trained on planted secrets, and how exposed they are.

    Attributes:
        model: The trained model.
        secrets: The planted secrets.
        exposures: The exposure of each.
        guarantee: The guarantee of the training, or None if it was not private.
    """

    model: nn.Module
    secrets: tuple[int, ...]
    exposures: tuple[Exposure, ...]
    guarantee: Guarantee | None

    @property
    def mean_bits(self) -> float:
        """The mean exposure; 1.44 bits if nothing was memorized."""
        return float(np.mean([exposure.bits for exposure in self.exposures]))


def text_log_likelihood(
    model: nn.Module, *, encode: Encode = encode_text, batch_size: int = 1024
) -> Callable[[Sequence[str]], npt.NDArray[np.float64]]:
    """Return a function that gives the log-likelihood of texts of one length: of all tokens after the first.

    The model is evaluated in evaluation mode, and its mode is restored.

    >>> from sfumato.training.models.networks import lstm
    >>> text_log_likelihood(lstm(97))(["to be", "or no"]).shape
    (2,)
    """
    _check.count(batch_size=batch_size)

    @torch.no_grad()
    def log_likelihood(texts: Sequence[str]) -> npt.NDArray[np.float64]:
        device = next(model.parameters()).device
        ids = _stacked([encode(text) for text in texts]).to(device)
        with evaluating(model):
            parts = [_log_likelihood(model, part) for part in ids.split(batch_size)]
        return torch.cat(parts).cpu().numpy()

    return log_likelihood


def _stacked(ids: Sequence[Tensor]) -> Tensor:
    lengths = sorted({len(one) for one in ids})
    if len(lengths) != 1:
        raise InvalidParameterError(
            f"texts must be of one length, and at least one, but their numbers of tokens are {lengths}: a "
            "longer text is less likely for its length alone. Score each length separately."
        )
    return torch.stack(list(ids))


def _log_likelihood(model: nn.Module, ids: Tensor) -> Tensor:
    scores = model(ids[:, :-1]).double().log_softmax(-1)  # [rows, length - 1, tokens]
    return scores.gather(2, ids[:, 1:, None]).squeeze(2).sum(1)


def plant(rows: Rows, texts: Sequence[str], *, encode: Encode = encode_text) -> Rows:
    """Return rows with one more for each text, filled up with the beginning of other rows.

    >>> rows = torch.zeros(3, 6, dtype=torch.int64), torch.zeros(3, 6, dtype=torch.int64)
    >>> plant(rows, ["pin 42"])[0].shape
    torch.Size([4, 6])
    """
    length = rows[0].shape[1]
    require_secrets(texts)
    if not len(rows[0]):
        raise InvalidParameterError("there are no rows to plant secrets among. Give at least one.")
    planted: list[Tensor] = []
    for place, text in enumerate(texts):
        ids = encode(text)
        if len(ids) > length + 1:
            raise InvalidParameterError(
                f"a secret of {len(ids)} tokens does not fit a row of {length + 1}: use a shorter template."
            )
        filler = torch.cat([rows[0][place % len(rows[0])], rows[1][place % len(rows[0])][-1:]])
        planted.append(torch.cat([ids, filler])[: length + 1])
    ids = torch.stack(planted).to(rows[0])
    return torch.cat([rows[0], ids[:, :-1]]), torch.cat([rows[1], ids[:, 1:]])


def train_with_secrets(
    model: nn.Module,
    rows: Rows,
    *,
    form: SecretFormat,
    secrets: int,
    epochs: float,
    expected_batch_size: int,
    learning_rate: float,
    privacy: Privacy | None = None,
    encode: Encode = encode_text,
    generator: Generator | None = None,
    runtime: Runtime | None = None,
) -> Memorization:
    """Plant random secrets, train the model in place, and rank each secret in its whole space.

    Args:
        model: The model, trained in place.
        rows: Token ids, and the ids one place later.
        form: The space of secrets.
        secrets: The number of secrets to plant.
        epochs: The number of passes over the rows.
        expected_batch_size: The expected number of rows in a batch.
        learning_rate: The learning rate of DP-SGD, or of Adam without privacy.
        privacy: What DP-SGD claims, such as `Privacy(epsilon=1, delta=1e-5)`, or None to train without
            privacy. The number of rows is public.
        encode: Turns text into token ids.
        generator: The source of randomness, or None for secure randomness from the operating system.
        runtime: How gradients are computed, or None for the defaults.

    Returns:
        The model, the secrets and their exposures.

    Raises:
        InvalidParameterError: If a parameter is out of range, or a secret does not fit a row.
    """
    drawn = form.draw(secrets, generator=generator)
    planted = plant(rows, [form.text(secret) for secret in drawn], encode=encode)
    guarantee = None
    if privacy is None:
        _train_openly(model, planted, epochs, expected_batch_size, learning_rate, generator)
    else:
        guarantee = train(
            model,
            planted,
            privacy=privacy,
            public_size=len(planted[0]),
            expected_batch_size=expected_batch_size,
            epochs=epochs,
            learning_rate=learning_rate,
            loss=next_token_cross_entropy,
            progress=False,
            generator=generator,
            runtime=runtime,
        ).guarantee
    model.eval()
    found = exact_exposures(text_log_likelihood(model, encode=encode), drawn, form=form)
    return Memorization(model=model, secrets=drawn, exposures=tuple(found), guarantee=guarantee)


def _train_openly(
    model: nn.Module,
    rows: Rows,
    epochs: float,
    batch_size: int,
    learning_rate: float,
    generator: Generator | None,
) -> None:
    """Train without any privacy, in shuffled batches."""
    _check.positive(epochs=epochs, learning_rate=learning_rate)
    _check.count(expected_batch_size=batch_size)
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    source, size = resolve(generator), len(rows[0])
    batches: list[Tensor] = []
    model.train()
    for _ in range(max(1, round(epochs * size / batch_size))):
        if not batches:
            order = torch.from_numpy(words(size, source).argsort())
            batches = list(order.split(batch_size))
        batch = batches.pop()
        optimizer.zero_grad()
        losses = next_token_cross_entropy(model, rows[0][batch].to(device), rows[1][batch].to(device))
        losses.mean().backward()
        optimizer.step()
