# SPDX-License-Identifier: Apache-2.0
"""What one client does in a round of secure aggregation: keys, shares, masked vector, shares to unmask.

The protocol is SecAgg+, as in Flower: in each round a client makes two fresh key pairs. It adds to its vector
a mask of its own and one mask for each neighbor, which cancels that neighbor's. Neighbors hold shares of its
secrets, so that the server can remove the masks of clients that drop out. Key agreement and encryption are
Flower's. Masks and shares are ours (`masks` and `key_shares` say why).

Guarantee  Against a server that follows the protocol and reads everything, a vector looks uniform, and only
           the sum is learned. A client reveals shares once in a session, of one kind for each neighbor:
           either of the mask of a client in the sum or of the key of one that dropped out. It reveals none
           if fewer clients than `least_active` are in the sum.
Failure    What contradicts the protocol raises `ProtocolError`. The client then counts as dropped out.
Not here   A server that lies about who dropped out, differently to different clients: SecAgg+ needs signed
           lists against it. With a threshold above half of the neighbors, which is required here, it
           cannot get both kinds of shares of one client from honest neighbors alone.
Source     Bonawitz et al. 2017 (SecAgg); Bell et al. 2020 (SecAgg+), eprint 2020/704.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs, public_key_to_bytes

from sfumato.errors import SfumatoError
from sfumato.federated.secure_sum import key_shares
from sfumato.federated.secure_sum.masks import mask

__all__ = ["MaskingClient", "ProtocolError", "mask_key", "seed_commitment"]

Integers = npt.NDArray[np.int64]

_SEED_BYTES = 32
_KEY_BYTES = 48  # a private value of the curve P-384
_SHARE_BYTES = 66


class ProtocolError(SfumatoError):
    """A message of secure aggregation contradicts the protocol. Nothing is revealed."""


@dataclass(kw_only=True)
class MaskingClient:
    """The state of a client in one session. It holds secrets, which never leave the client unencrypted.

    Attributes:
        number: The number of the client.
        session: The public number of the session, in hexadecimal.
        least_active: The least number of clients in a sum for which shares are revealed.
        stage: The stage that was finished last.
        threshold: How many shares are needed to put a secret together.
    """

    number: int
    session: str
    least_active: int
    stage: str = "new"
    threshold: int = 0
    _keys: list[str] = field(default_factory=list[str])
    _seed: str = ""
    _public: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    _held: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def public_keys(self) -> list[bytes]:
        """Make fresh keys, and return the public ones: for masks and for encryption.

        Returns:
            Two public keys.

        Raises:
            ProtocolError: If keys were made already.
        """
        self._enter("keys", after="new")
        pairs = [generate_key_pairs() for _ in range(2)]
        self._keys = [_private_bytes(private).hex() for private, _ in pairs]
        return [public_key_to_bytes(public) for _, public in pairs]

    def shares(self, public: Mapping[int, list[bytes]], *, threshold: int) -> tuple[dict[int, bytes], bytes]:
        """Split the own secrets among the neighbors.

        Args:
            public: The public keys of the neighbors and of this client, by number.
            threshold: How many shares are needed to put a secret together: more than half of them.

        Returns:
            The encrypted shares by neighbor, and a commitment to the seed of the own mask.

        Raises:
            ProtocolError: If keys are missing, wrong or not all different, or the threshold is too low.
        """
        self._enter("shares", after="keys")
        self._require_keys(public)
        if not len(public) / 2 < threshold <= len(public):
            raise ProtocolError("the threshold must be more than half of the shares.")
        self.threshold, seed = threshold, os.urandom(_SEED_BYTES)
        self._seed = seed.hex()
        self._public = {number: [key.hex() for key in keys] for number, keys in public.items()}
        holders = list(public)
        parts = [
            key_shares.split(secret, threshold=threshold, holders=holders)
            for secret in (seed, bytes.fromhex(self._keys[0]))
        ]
        self._held = {self.number: [part[self.number].hex() for part in parts]}
        sealed = {
            number: encrypt(
                self._shared(number, 1),
                self._label(self.number, number) + parts[0][number] + parts[1][number],
            )
            for number in holders
            if number != self.number
        }
        return sealed, seed_commitment(seed)

    def masked(self, vector: Integers, sealed: Mapping[int, bytes], *, bits: int) -> Integers:
        """Keep the shares of the neighbors, and return the own vector under masks.

        Args:
            vector: Residues modulo 2^bits.
            sealed: The encrypted shares of those neighbors that sent some.
            bits: The modulus is 2^bits.

        Returns:
            Residues that look uniform.

        Raises:
            ProtocolError: If too few neighbors are left, or shares are not what they should be.
        """
        self._enter("vector", after="shares")
        if len(set(sealed) - {self.number}) + 1 < self.threshold:
            raise ProtocolError("too few neighbors are left in this round.")
        make = partial(mask, session=bytes.fromhex(self.session), count=vector.size, bits=bits)
        total = vector + make(bytes.fromhex(self._seed), purpose="own")
        for number, ciphertext in sealed.items():
            self._held[number] = [share.hex() for share in self._opened(number, ciphertext)]
            pairwise = make(self._shared(number, 0), purpose="pair")
            total += pairwise if self.number > number else -pairwise
        return total & ((1 << bits) - 1)

    def reveal(self, active: Iterable[int], dropped: Iterable[int]) -> dict[int, bytes]:
        """Return the shares with which the server removes masks. It is done once.

        Args:
            active: Neighbors, this client among them, whose vectors are in the sum.
            dropped: Neighbors that sent shares and no vector.

        Returns:
            A share for each of them.

        Raises:
            ProtocolError: If a neighbor is named twice or unknown, or if too few are in the sum.
        """
        self._enter("done", after="vector")
        inside, outside = list(active), list(dropped)
        named = inside + outside
        if len(set(named)) != len(named) or not set(named) <= set(self._held) or self.number not in inside:
            raise ProtocolError("the lists of active and dropped clients contradict each other.")
        if len(inside) < max(self.threshold, self.least_active):
            raise ProtocolError("too few clients are in the sum: it would not have the noise it should have.")
        found = {number: bytes.fromhex(self._held[number][0]) for number in inside}
        found.update({number: bytes.fromhex(self._held[number][1]) for number in outside})
        self._keys, self._seed, self._held = [], "", {}  # a second question finds nothing
        return found

    # --- the state between two messages ------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the state as text, for the client's own memory.

        Returns:
            JSON, with secrets in it.
        """
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "MaskingClient":
        """Return the state that `to_json` wrote.

        Args:
            text: What `to_json` returned.

        Returns:
            The client.
        """
        state = json.loads(text)
        for name in ("_public", "_held"):  # JSON has text for keys
            state[name] = {int(number): value for number, value in state[name].items()}
        return MaskingClient(**state)

    # --- pieces ------------------------------------------------------------------------------------------

    def _enter(self, stage: str, *, after: str) -> None:
        if self.stage != after:
            raise ProtocolError(
                f"stage {stage!r} comes after {after!r}, but {self.stage!r} was the last one."
            )
        self.stage = stage

    def _require_keys(self, public: Mapping[int, list[bytes]]) -> None:
        own = [public_key_to_bytes(_private(bytes.fromhex(key)).public_key()) for key in self._keys]
        keys = [key for pair in public.values() for key in pair]
        if public.get(self.number) != own or len(set(keys)) != 2 * len(public):
            raise ProtocolError("the public keys are not those of different clients and of this one.")

    def _shared(self, number: int, which: int) -> bytes:
        theirs = bytes_to_public_key(bytes.fromhex(self._public[number][which]))
        return generate_shared_key(_private(bytes.fromhex(self._keys[which])), theirs)

    def _label(self, source: int, target: int) -> bytes:
        text = f"{self.session} {source} {target}".encode()
        return hashlib.sha256(text).digest()

    def _opened(self, number: int, ciphertext: bytes) -> tuple[bytes, bytes]:
        if number not in self._public or number == self.number:
            raise ProtocolError("shares came from a client that is no neighbor.")
        try:
            plain = decrypt(self._shared(number, 1), ciphertext)
        except InvalidToken:
            raise ProtocolError("shares of a neighbor could not be decrypted.") from None
        label, rest = plain[:32], plain[32:]
        if label != self._label(number, self.number) or len(rest) != 2 * _SHARE_BYTES:
            raise ProtocolError("shares of a neighbor are not meant for this client and session.")
        return rest[:_SHARE_BYTES], rest[_SHARE_BYTES:]


def mask_key(secret: bytes, theirs: bytes, own: bytes) -> bytes | None:
    """Return the secret of two clients' common mask from the key of one that dropped out.

    Args:
        secret: The private key, put together from shares.
        theirs: The public key of the other client.
        own: The public key of the one that dropped out, which the secret must belong to.

    Returns:
        The seed of the mask; None if the secret is not that of `own`.
    """
    if len(secret) != _KEY_BYTES or not any(secret):
        return None
    try:
        private = _private(secret)
    except ValueError:  # not a number of the curve
        return None
    if public_key_to_bytes(private.public_key()) != own:
        return None
    return generate_shared_key(private, bytes_to_public_key(theirs))


def seed_commitment(seed: bytes) -> bytes:
    """Return a hash that tells whether a seed was put together rightly. It hides a seed of 256 random bits.

    Args:
        seed: The seed of a client's own mask.

    Returns:
        The hash.
    """
    return hashlib.sha256(b"sfumato mask seed" + seed).digest()


def _private(secret: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP384R1())


def _private_bytes(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_numbers().private_value.to_bytes(_KEY_BYTES, "big")
