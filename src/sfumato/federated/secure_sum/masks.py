# SPDX-License-Identifier: Apache-2.0
"""Masks: vectors that look uniform modulo 2^bits to everyone who does not know their seed.

Flower's own generator of masks (`pseudo_rand_gen` in flwr 1.41) folds each seed of 32 bytes into 32 bits, of
which 28 vary for a shared key, and starts a Mersenne Twister with them. A server could try them all. Its
values also leave out the largest residue. These masks are therefore AES-256 in counter mode, from the whole
seed.

Guarantee  If AES-256 and SHA-256 are secure, a mask of an unknown seed cannot be told from uniform residues.
           Each purpose and each session has a key of its own.
"""

import hashlib

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

__all__ = ["mask", "packed", "unpacked"]

Integers = npt.NDArray[np.int64]

_COUNTER_START = bytes(16)


def mask(seed: bytes, *, purpose: str, session: bytes, count: int, bits: int) -> Integers:
    """Return residues modulo 2^bits that depend on the seed.

    Args:
        seed: The secret.
        purpose: What the mask is for: a seed may serve several purposes.
        session: The public number of the session.
        count: How many residues.
        bits: The modulus is 2^bits, at most 2^32.

    Returns:
        The residues.

    >>> mask(b"s" * 32, purpose="own", session=b"1", count=3, bits=16).shape
    (3,)
    """
    parts = (b"sfumato mask", purpose.encode(), session, seed)
    key = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
    width = _width(bits)
    stream = Cipher(algorithms.AES(key), modes.CTR(_COUNTER_START)).encryptor().update(bytes(count * width))
    return np.frombuffer(stream, dtype=f"<u{width}").astype(np.int64) & ((1 << bits) - 1)


def packed(residues: Integers, *, bits: int) -> bytes:
    """Return residues as bytes: 2 for each if `bits` is at most 16, otherwise 4.

    Args:
        residues: Whole numbers from 0 to 2^bits - 1.
        bits: The modulus is 2^bits.

    Returns:
        The bytes.

    >>> packed(np.array([1, 258]), bits=16)
    b'\\x01\\x00\\x02\\x01'
    """
    return residues.astype(f"<u{_width(bits)}").tobytes()


def unpacked(given: bytes, *, count: int, bits: int) -> Integers | None:
    """Return the residues that bytes stand for, or None if they do not stand for `count` residues.

    Args:
        given: What `packed` returned, or anything that a client sends.
        count: How many residues there must be.
        bits: The modulus is 2^bits.

    Returns:
        The residues, or None.

    >>> unpacked(b"\\x01\\x00\\x02\\x01", count=2, bits=16).tolist()
    [1, 258]
    """
    width = _width(bits)
    if len(given) != count * width:
        return None
    found = np.frombuffer(given, dtype=f"<u{width}").astype(np.int64)
    return found if count == 0 or int(found.max()) < 1 << bits else None


def _width(bits: int) -> int:
    return 2 if bits <= 16 else 4
