# SPDX-License-Identifier: Apache-2.0
"""The noise of a sum of which each rank holds a part.

Guarantee  The parts of all ranks together get the noise of the whole sum, once: each coordinate is held by
           one rank, which adds Gaussian noise of the stated standard deviation to it, and draws of different
           coordinates are independent. Within a rank that is the guarantee of `mechanisms.tensors`. Between
           ranks there are two cases. A generator without a seed has a key of its own in each process, from
           the operating system (`mechanisms.random`), so ranks share no stream; `require_own_streams`
           compares bytes of all ranks. A seeded generator may be the same on all ranks. Then each rank
           draws the noise of the whole sum, in the same order, and keeps the draws at its own coordinates:
           no draw is kept by two ranks.
Edge cases With a seed on a CPU the noise is that of one process, bit for bit, whatever the number of ranks.
           On a GPU the stream depends on how the sum is cut. Draws that a rank does not keep go to a scratch
           buffer of the largest shard, so a seeded run draws as often as all ranks together.
Failure    Ranks whose generators give the same bytes without having a seed are refused.
"""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training import distributed
from sfumato.training.sharding.layout import Shard

__all__ = ["pieces_of_all_ranks", "require_own_streams"]


def require_own_streams(generator: Generator) -> None:
    """Raise if the ranks' generators have no seed and give the same bytes. All ranks must ask.

    >>> from sfumato.mechanisms.random import resolve
    >>> require_own_streams(resolve(None))
    """
    own = None if generator.seeded else _first_bytes(generator)
    keyed = [digest for digest in distributed.gathered(own) if digest is not None]

    def compared() -> None:
        if len(set(keyed)) < len(keyed):
            raise InvalidParameterError(
                "generators of two ranks give the same bytes, so their shards would get the same noise. "
                "Leave generator out, or use one that is marked as seeded, for study."
            )

    distributed.first_decides(compared)


def _first_bytes(generator: Generator) -> bytes:
    """Return a digest of bytes that serve nothing else."""
    drawn = bytearray(32)
    generator.fork("shards", 0).fill(memoryview(drawn))
    return hashlib.sha256(drawn).digest()


def pieces_of_all_ranks(shards: Sequence[Shard], own: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the whole sum in pieces, in the order of one process: this rank's shards, and scratch memory.

    `own` are this rank's shards of the sums. Types follow one another as in `Sums.flat`.
    """
    rank, ranks = distributed.rank(), range(distributed.size())
    scratch: dict[torch.dtype, Tensor] = {}
    pieces: dict[torch.dtype, list[Tensor]] = {}
    for dtype in dict.fromkeys(total.dtype for total in own.values()):
        most = max(s.rows_each * s.row for s in shards if own[s.name].dtype == dtype)
        device = next(iter(own.values())).device
        scratch[dtype], pieces[dtype] = torch.zeros(most, dtype=dtype, device=device), []
    for shard in shards:
        total = own[shard.name]
        for other in ranks:
            size = shard.rows_of(other) * shard.row
            pieces[total.dtype].append(total if other == rank else scratch[total.dtype][:size])
    return [piece for group in pieces.values() for piece in group]
