# SPDX-License-Identifier: Apache-2.0
"""Shadow models, which an attacker trains on random halves of rows to learn how membership shows.

`confidences` returns log p / (1 - p) of each row's own label, from logits and never from rounded
probabilities: the logit of the label minus the log-sum-exp of the others. Each row is in exactly half of the
shadow models (in one more by a coin if their number is odd), independently of other rows. The attacked model
is NOT one of them: draw its rows by `coin_flips`, independently, and its membership is independent of
everything an attacker has. Models are trained one after the other, by a function of the caller, private or
not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, uniform_below, words
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.engine.losses import Loss, checked, cross_entropy

__all__ = ["ShadowModels", "coin_flips", "confidences", "halves", "loss_scores", "select", "shadow_models"]

Rows = tuple[Tensor, Tensor]  # features and labels
View = Callable[[Tensor], Tensor]
Train = Callable[[nn.Module, Rows], object]

# --- what is read off a model ----------------------------------------------------------------------------


def confidences(
    model: nn.Module, rows: Rows, *, views: Sequence[View] = (), batch_size: int = 1024
) -> npt.NDArray[np.float64]:
    """Return logit-scaled confidences of the rows as they are, then of each view.

    Args:
        model: The model. Its mode is restored.
        rows: Features and labels.
        views: Changes of the features, such as mirroring, for more queries of each row.
        batch_size: The number of rows in memory at once.

    Returns:
        Confidences [rows, queries].

    Raises:
        InvalidParameterError: If the model does not return logits of two classes or more.

    >>> rows = torch.tensor([[3.0, 1.0]]), torch.tensor([0])
    >>> confidences(nn.Identity(), rows)
    array([[2.]])
    """
    queries: list[View] = [lambda x: x, *views]

    def ask(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([_logit_scaled(model(view(x)), y) for view in queries], dim=1)

    return _asked(model, rows, ask, batch_size)


def loss_scores(
    model: nn.Module, rows: Rows, *, loss: Loss = cross_entropy, batch_size: int = 1024
) -> npt.NDArray[np.float64]:
    """Return minus the loss of each row: the score of the loss-threshold attack, for any loss.

    >>> loss_scores(nn.Identity(), (torch.zeros(1, 2), torch.tensor([0]))).round(3)
    array([-0.693])
    """
    return _asked(model, rows, lambda x, y: -checked(loss(model, x, y), len(x)), batch_size)


def _logit_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise InvalidParameterError(
            f"the model must return logits [rows, classes] for 2 classes or more, not {list(logits.shape)}."
        )
    logits = logits.double()
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return own - others.logsumexp(1)


@torch.no_grad()
def _asked(
    model: nn.Module, rows: Rows, ask: Callable[[Tensor, Tensor], Tensor], batch_size: int
) -> npt.NDArray[np.float64]:
    _check.count(batch_size=batch_size)
    _require_rows(rows)
    device = next((parameter.device for parameter in model.parameters()), rows[0].device)
    with evaluating(model):
        parts = [
            ask(x.to(device), y.to(device)).double().cpu()
            for x, y in zip(rows[0].split(batch_size), rows[1].split(batch_size), strict=True)
        ]
    return torch.cat(parts).numpy()


def _require_rows(rows: Rows) -> None:
    if len(rows[0]) != len(rows[1]) or not len(rows[0]):
        raise InvalidParameterError(
            "rows must be features and labels, as many of one as of the other, and at least one."
        )


# --- who is in which model -------------------------------------------------------------------------------


def coin_flips(num_rows: int, *, generator: Generator | None = None) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is in, by an independent fair coin: the rows of an attacked model.

    Args:
        num_rows: The number of rows.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        True or False for each row.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> coin_flips(1000).shape
    (1000,)
    """
    _check.count(num_rows=num_rows)
    return uniform_below(2, num_rows, generator).astype(np.bool_)


def halves(num_rows: int, count: int, *, generator: Generator | None = None) -> npt.NDArray[np.bool_]:
    """Return masks [models, rows] with each row in half of `count` models, chosen at random for each row.

    >>> halves(5, 4).sum(0).tolist()
    [2, 2, 2, 2, 2]
    """
    _check.count(num_rows=num_rows, count=count)
    if count < 2:
        raise InvalidParameterError(
            f"count={count}, but a row needs a model with it and one without it. Use 2 or more."
        )
    keys = words(num_rows * count, generator).reshape(count, num_rows)
    ranks = keys.argsort(axis=0).argsort(axis=0)  # a random order of the models for each row
    kept = count // 2 + (uniform_below(2, num_rows, generator) if count % 2 else 0)
    return ranks < kept


@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowModels:
    """Trained shadow models, and which rows each was trained on.

    Attributes:
        models: The models.
        members: Which rows each was trained on, [models, rows].
    """

    models: tuple[nn.Module, ...]
    members: npt.NDArray[np.bool_]

    def confidences(
        self, rows: Rows, *, views: Sequence[View] = (), batch_size: int = 1024
    ) -> npt.NDArray[np.float64]:
        """Return logit-scaled confidences of any rows.

        Args:
            rows: Features and labels.
            views: Changes of the features, such as mirroring, for more queries of each row.
            batch_size: The number of rows in memory at once.

        Returns:
            Confidences [models, rows, queries].
        """
        found = [confidences(model, rows, views=views, batch_size=batch_size) for model in self.models]
        return np.stack(found)


def shadow_models(
    make_model: Callable[[], nn.Module],
    rows: Rows,
    *,
    count: int,
    train: Train,
    generator: Generator | None = None,
) -> ShadowModels:
    """Train models from new weights, each on a random half of the rows.

    Args:
        make_model: Returns a new model.
        rows: Features and labels.
        count: The number of models, 2 or more.
        train: Called as `train(model, half)`; trains the model in place.
        generator: The source of randomness of the halves, or None for secure randomness from the operating
            system.

    Returns:
        The models, and which rows each was trained on.

    Raises:
        InvalidParameterError: If there are no rows, or `count` is below 2.

    >>> rows = torch.randn(8, 2), torch.zeros(8, dtype=torch.int64)
    >>> shadows = shadow_models(lambda: nn.Linear(2, 2), rows, count=2, train=lambda model, half: None)
    >>> shadows.confidences(rows).shape
    (2, 8, 1)
    """
    _require_rows(rows)
    members = halves(len(rows[0]), count, generator=generator)
    models: list[nn.Module] = []
    for mask in members:
        model = make_model()
        train(model, select(rows, mask))
        models.append(model)
    return ShadowModels(models=tuple(models), members=members)


def select(rows: Rows, mask: npt.NDArray[np.bool_]) -> Rows:
    """Return the rows where the mask is True.

    Args:
        rows: Features and labels.
        mask: True or False for each row.

    Returns:
        Features and labels of those rows.
    """
    kept = torch.from_numpy(np.flatnonzero(mask)).to(rows[0].device)
    return rows[0][kept], rows[1][kept.to(rows[1].device)]
