# SPDX-License-Identifier: Apache-2.0
"""The same sums in one process: what the clients would send, added up without masks.

Masks cancel in the sum, so a sum without them has the same bits. A simulation shows accuracy. It protects
nobody from the process that runs it.

`SimulatedSums` gives such sums to a training run: `Runtime(engine=SimulatedSums(...))` together with
`NoisyStep(summation=mechanism)`.

Guarantee  For the same randomness of each client the result is the one that the protocol decodes, bit by bit.
           In a step of a run exactly `cohort` shares of noise are added, whoever contributes, so that the
           noise does not tell how many do: clients outside of the batch add noise alone. In a batch larger
           than the cohort, which only Poisson sampling can draw, the clients beyond it add no noise.
Edge cases A client that only adds noise is a row of zeros. Fewer rows than `least_survivors` are not decoded.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.encoding import (
    client_generator,
    decode,
    encode,
    noise_share,
    whole_numbers,
)
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import Contributor, Federation, federation_of

Floats = npt.NDArray[np.float64]

__all__ = ["SimulatedSums", "round_seed", "simulated_sum", "split_sum"]


def simulated_sum(
    updates: npt.NDArray[np.floating],
    mechanism: SecureSum,
    *,
    seed: int,
    generator: Generator | None = None,
    numbers: Sequence[int] | None = None,
) -> Floats | None:
    """Encode the updates of the clients that are left in a round, add them up modulo m, and decode the sum.

    Args:
        updates: One row for each client whose vector is in the sum, [clients, dimension].
        mechanism: The mechanism of the round.
        seed: The public seed of the round.
        generator: Source of randomness; the client of number i takes `client_generator(generator, i, seed)`.
            None uses the secure generator; any other kind is for study only.
        numbers: The numbers of the clients; None: 0, 1, 2, ...

    Returns:
        The noisy sum, `mechanism.dimension` coordinates; None if fewer than `least_survivors` are left.

    Raises:
        InvalidParameterError: If there are more rows than the mechanism has room for, or of another length.

    >>> mechanism = SecureSum(dimension=2, clip_norm=1.0, noise_multiplier=1.0, cohort=3, least_survivors=2)
    >>> simulated_sum(np.zeros((1, 2)), mechanism, seed=0) is None
    True
    """
    if updates.ndim != 2 or len(updates) > mechanism.cohort:
        raise InvalidParameterError(
            f"updates must have shape [clients, {mechanism.dimension}], with at most the "
            f"cohort={mechanism.cohort} clients that the modulus was chosen for."
        )
    if len(updates) < mechanism.least_survivors:
        return None
    total = np.zeros(mechanism.size, np.int64)
    for number, update in zip(numbers or range(len(updates)), updates, strict=True):
        own = client_generator(generator, number, seed)
        total += encode(update, mechanism, seed=seed, generator=own)
    return decode(total, mechanism, seed=seed)


class SimulatedSums:
    """Noisy sums of a contributor's updates, in one process: a `NoisySummer` for `Runtime(engine=...)`.

    Args:
        contributor: Gives the update of each client, such as an in-process engine of clients.
        mechanism: The mechanism; each step has its own noise multiplier.
        generator: Source of the clients' randomness. None uses the secure generator; any other kind is for
            study only.
    """

    def __init__(
        self, contributor: Contributor, mechanism: SecureSum, *, generator: Generator | None = None
    ) -> None:
        self._contributor, self._mechanism, self._generator = contributor, mechanism, generator

    def __repr__(self) -> str:
        """Return what must be the same when a run is resumed."""
        return f"SimulatedSums({self._contributor!r}, {self._mechanism!r})"

    @property
    def federation(self) -> Federation:
        """What the contributor says of its clients."""
        return federation_of(self._contributor) or Federation()

    @property
    def summation(self) -> SecureSum:
        """What the sums are, with their event."""
        return self._mechanism

    @property
    def generator(self) -> Generator | None:
        """Where the noise comes from; None: the secure generator."""
        return self._generator

    @property
    def largest_batch(self) -> None:
        """None: clients beyond the cohort are added without a share of noise."""
        return

    def over(self, change: Callable[[Contributor], Contributor]) -> "SimulatedSums":
        """Return the same sums over another contributor, such as one with canaries.

        Args:
            change: Makes that contributor from the present one.

        Returns:
            The sums.
        """
        return SimulatedSums(change(self._contributor), self._mechanism, generator=self._generator)

    def statement(self) -> str:
        """Return what is summed, in a sentence.

        Returns:
            The sentence.
        """
        return self._contributor.statement()

    def noisy_sum(
        self, model: nn.Module, batch: Sequence[Any], *, step: int, noise_multiplier: float
    ) -> dict[str, Tensor] | None:
        """Return the noisy sum over a batch of clients.

        Args:
            model: The model of the server.
            batch: The numbers of the clients, as one tensor; empty if nobody contributes.
            step: The number of the round, from 0 on.
            noise_multiplier: The noise of the round.

        Returns:
            For each trainable parameter, by name, the sum.

        Raises:
            InvalidParameterError: If the model has another dimension than the mechanism.
        """
        mechanism = self._mechanism.scaled(noise_multiplier)
        parameters = parameter_values.find(model).parameters
        seed, total = round_seed(self._generator, step), np.zeros(mechanism.size, np.int64)
        updates = self._updates(model, batch, step) if batch and len(batch[0]) else ()
        for number, (noisy, update) in enumerate(
            itertools.zip_longest(itertools.repeat(True, mechanism.cohort), updates)
        ):
            own = client_generator(self._generator, number, seed)
            if noisy is None:
                total += whole_numbers(update, mechanism, seed=seed, generator=own)
            elif update is None:
                total += noise_share(mechanism, generator=own.fork("noise", 0))
            else:
                total += encode(update, mechanism, seed=seed, generator=own)
        return split_sum(decode(total, mechanism, seed=seed), parameters)

    def _updates(self, model: nn.Module, batch: Sequence[Any], step: int) -> Iterator[Floats]:
        """Yield the update of each client, one at a time in float64."""
        given = self._contributor.contributions(model, batch, step=step)
        names = list(parameter_values.find(model).parameters)
        flat = torch.cat([given[name].flatten(1) for name in names], dim=1).cpu()
        for update in flat:
            yield update.double().numpy()


def round_seed(generator: Generator | None, step: int) -> int:
    """Return the public seed of a round's rotation: fresh, or for a seeded generator that of the step.

    Args:
        generator: Where it comes from; None uses the secure generator.
        step: The number of the round, from 0 on.

    Returns:
        The seed, below 2^62.

    >>> 0 <= round_seed(None, 3) < 2**62
    True
    """
    return int(words(1, resolve(generator).fork("rotation", step))[0]) >> 2


def split_sum(total: Floats, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the coordinates of a sum as tensors like the parameters, in their order.

    Args:
        total: All coordinates, one parameter after the other.
        parameters: The parameters by name.

    Returns:
        A tensor for each of them.

    >>> split_sum(np.arange(3.0), {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)})["bias"]
    tensor([2.])
    """
    pieces = torch.from_numpy(total).split([p.numel() for p in parameters.values()])
    return {
        name: piece.view(p.shape).to(p) for (name, p), piece in zip(parameters.items(), pieces, strict=True)
    }
