# SPDX-License-Identifier: Apache-2.0
"""What discriminator and generator learn from, one number for each row.

The generator's loss is the one that it can learn from early on (Goodfellow et al. 2014, section 3): report R4
prints log(1 - D(G(z))) with the wrong sign (docs/errata.md).
"""

from dataclasses import dataclass
from typing import Final

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError

__all__ = ["LOSSES", "AdversarialLoss", "loss_named"]


@dataclass(frozen=True, slots=True)
class AdversarialLoss:
    """The losses of one game.

    Args:
        name: "logistic", or "wasserstein", whose discriminator must have bounded weights.
    """

    name: str

    def real(self, discriminator: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the discriminator's loss on private images.

        Args:
            discriminator: The discriminator.
            images: Images in [-1, 1].
            labels: Class numbers.

        Returns:
            One number for each image.
        """
        score = discriminator(images, labels)
        return -score if self.name == "wasserstein" else F.softplus(-score)

    def fake(self, discriminator: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the discriminator's loss on generated images.

        Args:
            discriminator: The discriminator.
            images: Images in [-1, 1].
            labels: Class numbers.

        Returns:
            One number for each image.
        """
        score = discriminator(images, labels)
        return score if self.name == "wasserstein" else F.softplus(score)


LOSSES: Final = ("logistic", "wasserstein")


def loss_named(name: str) -> AdversarialLoss:
    """Return a loss by its name.

    Args:
        name: "logistic" or "wasserstein".

    Returns:
        The loss.

    Raises:
        InvalidParameterError: If there is none of this name.
    """
    if name not in LOSSES:
        raise InvalidParameterError(f"unknown loss {name!r}. Use one of: {', '.join(LOSSES)}.")
    return AdversarialLoss(name)
