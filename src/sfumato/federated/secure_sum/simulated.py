# SPDX-License-Identifier: Apache-2.0
"""The same sums in one process: what the clients would send, added up without masks.

Masks cancel in the sum, so a sum without them has the same bits. A simulation shows accuracy. It protects
nobody from the process that runs it.

Guarantee  For the same randomness of each client the result is the one that the protocol decodes, bit by bit.
Edge cases A client that only adds noise is a row of zeros. Fewer rows than `least_survivors` are not decoded.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.encoding import client_generator, decode, encode
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.mechanisms.random import Generator

__all__ = ["simulated_sum"]


def simulated_sum(
    updates: npt.NDArray[np.floating],
    mechanism: SecureSum,
    *,
    seed: int,
    generator: Generator | None = None,
    numbers: Sequence[int] | None = None,
) -> npt.NDArray[np.float64] | None:
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
