# SPDX-License-Identifier: Apache-2.0
"""Denoisers: functions that improve a noisy gradient before the optimizer uses it, at no privacy cost.

Guarantee  A denoiser gets the noisy gradient, the weights, and at most the numbers of the batch's rows: never
           a row, so never a label, and never a gradient without noise. It may hold features. So its result is
           post-processing, and costs nothing.
Neighbors  Features are public only under the replace-label relation. Under any other relation a denoiser is
           refused, as it would use rows whose use was not charged, unless it states that it holds no private
           row (`holds_rows` is False), as the generator of a private GAN does.
Edge cases Rank 0 denoises for all ranks. A denoiser that needs the whole batch works in one process only.
Failure    A denoiser that computes from the rows of the step's own batch reveals who is in it, and sampling
           that is not secret amplifies nothing. It is refused with batches that are priced as secret
           (Poisson, fixed-size). Shuffled and cyclic batches are priced as known.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training import distributed
from sfumato.training.privacy.dp_sgd import DpSgd

__all__ = ["Denoiser", "require"]


class Denoiser(Protocol):
    """What makes noisy gradients better, from public facts alone. Its repr names all its settings."""

    @property
    def reveals_batches(self) -> bool:
        """Whether it needs to know which rows are in the step's own batch."""
        ...

    @property
    def holds_rows(self) -> bool:
        """Whether it holds features of the data; one that does not say so counts as holding them."""
        ...

    def denoise(
        self, model: nn.Module, gradient: Mapping[str, Tensor], *, rows: Tensor | None, generator: Generator
    ) -> Mapping[str, Tensor]:
        """Return the better gradient. `rows` are numbers, and None unless it reveals batches."""
        ...

    def statement(self) -> str:
        """Return what it does, as a sentence for the statement."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers from step to step."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        ...


def require(denoiser: Denoiser | None, mechanism: DpSgd) -> None:
    """Raise unless the guarantee of a run survives its denoiser."""
    if denoiser is None:
        return
    protects_rows = mechanism.relation is not Relation.REPLACE_LABEL
    if protects_rows and (denoiser.reveals_batches or getattr(denoiser, "holds_rows", True)):
        raise InvalidParameterError(
            "a denoiser looks at features, which are public only if nothing but labels must be protected. "
            f"Say relation='replace-label', or train without it: {mechanism.relation.value} protects rows."
        )
    if not denoiser.reveals_batches:
        return
    if mechanism.sampling.amplifies:
        raise InvalidParameterError(
            f"{type(denoiser).__name__} shows whose features are in a batch, so batches are not secret, and "
            f"{type(mechanism.sampling).__name__} is priced as if they were. Form batches by ShuffledBatches "
            "or CyclicBatches, which are priced by how often a label is used; or use AltConv."
        )
    if distributed.size() > 1:
        raise InvalidParameterError(
            f"{type(denoiser).__name__} needs to know the whole batch in one process. Run without "
            "torchrun, or use AltConv."
        )
