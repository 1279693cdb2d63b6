# SPDX-License-Identifier: Apache-2.0
"""Settings that are known to work for federations of public data sets.

They were compared on the public test rows at epsilon 8, without a charge, because these data sets are public.
On data that must be protected, a search costs budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.local_training import LocalTraining

__all__ = ["NAMED", "FederationRecipe", "federation_recipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationRecipe:
    """How a federation of one data set is trained.

    Attributes:
        clients: How many clients are simulated; None: one for each user of the data set.
        model: The name of the network.
        rounds: The number of rounds.
        cohort_share: The share of clients that a round asks on average.
        clip_norm: The L2 norm to which an update is clipped.
        local: How a client learns.
    """

    clients: int | None
    model: str
    rounds: int
    cohort_share: float
    clip_norm: float
    local: LocalTraining


_IMAGES: Final = FederationRecipe(
    clients=1000,
    model="mlp",
    rounds=80,
    cohort_share=0.5,
    clip_norm=1.0,
    local=LocalTraining(epochs=3, batch_size=20, learning_rate=0.05),
)
_RECIPES: Final[Mapping[str, FederationRecipe]] = {
    "digits": FederationRecipe(
        clients=200,
        model="linear",
        rounds=30,
        cohort_share=0.5,
        clip_norm=1.0,
        local=LocalTraining(epochs=3, batch_size=8, learning_rate=0.3),
    ),
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "shakespeare": FederationRecipe(
        clients=None,
        model="lstm",
        rounds=40,
        cohort_share=0.25,
        clip_norm=0.5,
        local=LocalTraining(epochs=1, batch_size=16, learning_rate=0.5),
    ),
}
NAMED: Final = tuple(_RECIPES)


def federation_recipe(name: str) -> FederationRecipe:
    """Return the recipe of a data set.

    Args:
        name: One of `NAMED`.

    Returns:
        The recipe.

    Raises:
        InvalidParameterError: If there is none of this name.

    >>> federation_recipe("mnist").clients
    1000
    """
    if name not in _RECIPES:
        raise InvalidParameterError(
            f"unknown data {name!r}: a federation can be simulated of {', '.join(NAMED)}. Use "
            "sfumato.federated.federate for rows of your own."
        )
    return _RECIPES[name]
