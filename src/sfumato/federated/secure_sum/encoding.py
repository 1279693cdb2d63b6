# SPDX-License-Identifier: Apache-2.0
"""From the update of a client to integers modulo m, and from their sum back to an update.

Guarantee  The integers before noise have a norm of at most `SecureSum.l2_bound`, whatever the update is: NaN,
           infinite, zero or enormous. The noise has exactly the law that `SecureSum` states
           (`mechanisms.exact` and `skellam`); it is drawn for this client and this round alone.
Edge cases An update with NaN or infinity counts as zeros; its client adds noise like any other. An update of
           another length is refused by `encode`, and must be replaced by zeros before.
"""

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.rotation import rotated, unrotated
from sfumato.federated.secure_sum.rounding import clipped, rounded
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.federated.secure_sum.skellam import skellam_integers
from sfumato.mechanisms import exact
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["client_generator", "decode", "encode", "noise_share", "whole_numbers"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def encode(
    update: npt.NDArray[np.floating], mechanism: SecureSum, *, seed: int, generator: Generator | None = None
) -> Integers:
    """Return what a client adds to the sum of its round: rounded, with its noise, modulo m.

    Args:
        update: The update, a vector of `mechanism.dimension` coordinates.
        mechanism: The mechanism of the round.
        seed: The public seed of the round, the same for all of its clients.
        generator: Source of the client's randomness. None uses the secure generator; any other kind is for
            study only. Two clients must not share a seed.

    Returns:
        Whole numbers from 0 to m - 1, `mechanism.size` of them.

    Raises:
        InvalidParameterError: If the update has another shape.

    >>> mechanism = SecureSum(dimension=3, clip_norm=1.0, noise_multiplier=1.0, cohort=2, least_survivors=2)
    >>> encode(np.zeros(3), mechanism, seed=0).shape
    (4,)
    """
    generator = resolve(generator)
    found = whole_numbers(update, mechanism, seed=seed, generator=generator.fork("rounding", 0))
    found += noise_share(mechanism, generator=generator.fork("noise", 0))
    return found & (mechanism.modulus - 1)


def whole_numbers(
    update: npt.NDArray[np.floating], mechanism: SecureSum, *, seed: int, generator: Generator | None = None
) -> Integers:
    """Return the clipped, rotated and rounded update, without noise. It must not leave the client.

    Args:
        update: The update, a vector of `mechanism.dimension` coordinates.
        mechanism: The mechanism of the round.
        seed: The public seed of the round.
        generator: Source of randomness for rounding. None uses the secure generator.

    Returns:
        Whole numbers, `mechanism.size` of them, with a norm of at most `mechanism.l2_bound`.

    Raises:
        InvalidParameterError: If the update has another shape.

    >>> mechanism = SecureSum(dimension=4, clip_norm=1.0, noise_multiplier=1.0, cohort=2, least_survivors=2)
    >>> whole_numbers(np.full(4, np.nan), mechanism, seed=0).tolist()
    [0, 0, 0, 0]
    """
    if update.shape != (mechanism.dimension,):
        raise InvalidParameterError(f"an update must be a vector of {mechanism.dimension} coordinates.")
    spread = rotated(clipped(update.astype(np.float64), mechanism.clip_norm), seed=seed)
    return rounded(spread * mechanism.scale, bound=mechanism.l2_bound_squared, generator=generator)


def noise_share(mechanism: SecureSum, *, generator: Generator | None = None) -> Integers:
    """Return the noise that one client adds.

    Args:
        mechanism: The mechanism of the round.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        Whole numbers, `mechanism.size` of them.

    >>> mechanism = SecureSum(dimension=4, clip_norm=1.0, noise_multiplier=1.0, cohort=2, least_survivors=2)
    >>> noise_share(mechanism).shape
    (4,)
    """
    stddev = mechanism.share_stddev
    if mechanism.noise is IntegerNoise.SKELLAM:
        return skellam_integers(mechanism.size, variance=stddev**2, generator=generator)
    return exact.gaussian_integers(mechanism.size, stddev=stddev, generator=generator)


def decode(total: Integers, mechanism: SecureSum, *, seed: int) -> Floats:
    """Return the noisy sum of updates from a sum modulo m.

    Args:
        total: The sum of encoded updates, `mechanism.size` whole numbers; it is reduced modulo m.
        mechanism: The mechanism of the round.
        seed: The public seed of the round.

    Returns:
        The sum, `mechanism.dimension` coordinates.

    Raises:
        InvalidParameterError: If the sum has another shape.

    >>> mechanism = SecureSum(dimension=3, clip_norm=1.0, noise_multiplier=1e-3, cohort=2, least_survivors=2)
    >>> clients = [encode(np.array([0.5, -0.5, 0.25]), mechanism, seed=7) for _ in range(2)]
    >>> decode(clients[0] + clients[1], mechanism, seed=7).round(1).tolist()
    [1.0, -1.0, 0.5]
    """
    if total.shape != (mechanism.size,):
        raise InvalidParameterError(f"a sum must have {mechanism.size} coordinates.")
    half = mechanism.modulus // 2
    lifted = ((total.astype(np.int64) + half) & (mechanism.modulus - 1)) - half
    return unrotated(lifted / mechanism.scale, dimension=mechanism.dimension, seed=seed)


def client_generator(generator: Generator | None, number: int, seed: int) -> Generator:
    """Return the randomness of one client in one round. It differs between clients and between rounds.

    Args:
        generator: Where it comes from. None uses the secure generator, which never repeats.
        number: The number of the client.
        seed: The public seed of the round.

    Returns:
        The generator.
    """
    return resolve(generator).fork(f"client {number}", seed)
