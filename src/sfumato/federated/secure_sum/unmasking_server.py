# SPDX-License-Identifier: Apache-2.0
"""What the server does in a round of secure aggregation: pass on keys and shares, add up, remove masks.

Guarantee  None of its own: privacy rests on what clients send (`masking_client`). The server adds vectors
           up as they come and keeps none. It skips a round by one rule: fewer than `least_survivors` vectors,
           or too few shares to remove the masks.
Failure    A client that does not answer, answers nonsense or answers late counts as dropped out from then on.
           A skipped round gives nothing, and no share was asked for if vectors were too few.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sfumato.federated.secure_sum import key_shares
from sfumato.federated.secure_sum.masking_client import mask_key, seed_commitment
from sfumato.federated.secure_sum.masks import mask

__all__ = ["UnmaskingServer"]

Integers = npt.NDArray[np.int64]


@dataclass(kw_only=True)
class UnmaskingServer:
    """The state of the server in one session.

    Attributes:
        size: How many coordinates a vector has.
        bits: Sums are taken modulo 2^bits.
        least_survivors: The least number of vectors in a sum.
        neighbors: How many other clients each client shares masks with; None: all of them.
        session: The public number of the session.
    """

    size: int
    bits: int
    least_survivors: int
    neighbors: int | None = None
    session: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _keys: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    _graph: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    _commitments: dict[int, bytes] = field(default_factory=dict[int, bytes])
    _active: set[int] = field(default_factory=set[int])
    _total: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def survivors(self) -> int:
        """How many vectors are in the sum."""
        return len(self._active)

    def meet(self, keys: Mapping[int, list[bytes]]) -> dict[int, dict[int, list[bytes]]]:
        """Take the public keys, draw who is whose neighbor, and return for each client those it needs.

        Args:
            keys: The two public keys of each client that answered.

        Returns:
            For each client, the keys of its neighbors and its own; nothing if too few answered.
        """
        if len(keys) < max(self.least_survivors, 2):
            return {}
        self._keys, ring = dict(keys), list(keys)
        secrets.SystemRandom().shuffle(ring)
        count = len(ring)
        half = (count if self.neighbors is None else min(self.neighbors, count - 1) + 1) // 2
        for i, number in enumerate(ring):
            near = {ring[(i + step) % count] for step in range(-half, half + 1)}
            self._graph[number] = sorted(near)
        return {number: {near: self._keys[near] for near in others} for number, others in self._graph.items()}

    def threshold(self, number: int) -> int:
        """Return how many shares put the secrets of a client together: more than half of them.

        Args:
            number: The number of the client.

        Returns:
            The threshold.
        """
        return len(self._graph[number]) // 2 + 1

    def forward(
        self, sealed: Mapping[int, Mapping[int, bytes]], commitments: Mapping[int, bytes]
    ) -> dict[int, dict[int, bytes]]:
        """Take encrypted shares, and return for each client those that are meant for it.

        Args:
            sealed: For each client that answered, its encrypted shares by neighbor.
            commitments: The commitment of each of these clients.

        Returns:
            For each client that answered, the shares for it by sender; nothing if too few answered.
        """
        # A client that left a neighbor out would have a mask that one of the two does not know.
        sealed = {
            number: shares
            for number, shares in sealed.items()
            if {number, *shares} == set(self._graph.get(number, ()))
        }
        if len(sealed) < self.least_survivors:
            return {}
        self._commitments = {number: commitments[number] for number in sealed}
        return {
            number: {
                near: sealed[near][number]
                for near in self._graph[number]
                if near != number and number in sealed.get(near, {})
            }
            for number in sealed
        }

    def add_up(self, vectors: Iterable[tuple[int, Integers]]) -> bool:
        """Add up masked vectors.

        Args:
            vectors: The masked vector of each client that sent one, each client once.

        Returns:
            Whether the round goes on: as many vectors as needed are in the sum.
        """
        self._total = np.zeros(self.size, np.int64)
        for number, vector in vectors:
            self._total += vector  # residues of at most 32 bits: 2^31 of them fit
            self._active.add(number)
        return self.survivors >= self.least_survivors

    def questions(self) -> dict[int, tuple[list[int], list[int]]]:
        """Return whom each client in the sum is asked about: neighbors in the sum, and dropped ones.

        Returns:
            Two lists for each client in the sum.
        """
        dropped = set(self._commitments) - self._active
        return {
            number: (
                [near for near in self._graph[number] if near in self._active],
                [near for near in self._graph[number] if near in dropped],
            )
            for number in self._active
        }

    def unmasked(self, answers: Mapping[int, Mapping[int, bytes]]) -> Integers | None:
        """Remove all masks.

        Args:
            answers: For each client that answered, the shares it revealed, by their owner.

        Returns:
            The sum modulo 2^bits; None if masks cannot be removed.
        """
        total = self._total.copy()
        for number in self._commitments:
            secret = self._put_together(number, answers)
            found = None if secret is None else self._masks_of(number, secret)
            if found is None:
                return None
            total -= found
        return total & ((1 << self.bits) - 1)

    def _put_together(self, number: int, answers: Mapping[int, Mapping[int, bytes]]) -> bytes | None:
        holders = self._graph[number]
        shares = {near: answers[near][number] for near in holders if number in answers.get(near, {})}
        needed = self.threshold(number)
        if len(shares) < needed:
            return None
        return key_shares.combine(dict(list(shares.items())[:needed]), holders=holders)

    def _masks_of(self, number: int, secret: bytes) -> Integers | None:
        """Return what the masks of one client left in the sum."""
        if number in self._active:
            right = seed_commitment(secret) == self._commitments[number]
            return self._mask(secret, "own") if right else None
        left = np.zeros(self.size, np.int64)
        for near in self._graph[number]:
            if near not in self._active or near == number:
                continue
            seed = mask_key(secret, self._keys[near][0], self._keys[number][0])
            if seed is None:
                return None
            pairwise = self._mask(seed, "pair")
            left += pairwise if near > number else -pairwise
        return left

    def _mask(self, seed: bytes, purpose: str) -> Integers:
        return mask(seed, purpose=purpose, session=self.session, count=self.size, bits=self.bits)
