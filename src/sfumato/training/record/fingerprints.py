# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of a finished run: of its report, and of its final weights.

Guarantee  A file or a weight that was changed after the run, by accident or by hand, no longer matches its
           fingerprint.
Not here   A signature. Whoever changes a file on purpose can compute its fingerprint anew with this code, so
           a folder is evidence only about people who could not write to it. The ledger stores what a run was
           charged; it does not store the result of an audit.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sfumato._seal import SEAL, fits, sealed

__all__ = ["SEAL", "fingerprint_of", "fits", "sealed"]


def fingerprint_of(weights: Mapping[str, Any]) -> str:
    """Return the fingerprint of weights: their names, shapes, types and bytes.

    >>> fingerprint_of({"w": torch.zeros(2)})[:8] == fingerprint_of({"w": torch.ones(2)})[:8]
    False
    """
    digest = hashlib.sha256()
    for name, held in sorted(weights.items()):
        digest.update(f"{name}\n".encode())
        digest.update(_bytes_of(held))
    return digest.hexdigest()


def _bytes_of(held: Any) -> bytes:
    """Return what a tensor holds. Of extra state, which may be anything, the type alone."""
    if not isinstance(held, Tensor):
        return str(type(held)).encode()
    header = f"{list(held.shape)} {held.dtype}\n".encode()
    try:
        plain = held.detach().cpu().to_dense() if held.layout is not torch.strided else held.detach().cpu()
        plain = plain.resolve_conj().resolve_neg().contiguous().flatten()
        return header + plain.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # of a kind whose bytes torch does not show
        return header
