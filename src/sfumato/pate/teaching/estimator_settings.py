# SPDX-License-Identifier: Apache-2.0
"""The settings of an estimator: a hash of them, and copies with seeds of their own.

Edge cases Parameters called `random_state` or `seed`, also of parts of a pipeline, are replaced for each
           teacher. Functions and classes are known by their names: a change of their code is not noticed.
           Weights of a torch module are part of the settings.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import joblib
import sklearn
from sklearn.base import clone

from sfumato._torch import is_tensor

__all__ = ["fresh", "settings_digest"]

_SEEDS = ("random_state", "seed")


def fresh(estimator: Any, secret: bytes, number: int) -> Any:
    """Return an unfitted copy of an estimator, with the seeds of one teacher.

    Args:
        estimator: The estimator.
        secret: The key that seeds are derived from.
        number: The number of the teacher.

    Returns:
        The copy.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> fresh(DecisionTreeClassifier(), bytes(32), 1) is fresh(DecisionTreeClassifier(), bytes(32), 1)
    False
    """
    copy: Any = clone(estimator)
    names = [name for name in copy.get_params(deep=True) if name.rpartition("__")[2] in _SEEDS]
    seeds = {name: seed_of(secret, number, name) for name in names}
    return copy.set_params(**seeds) if seeds else copy


def seed_of(secret: bytes, number: int, purpose: str) -> int:
    """Return a seed below 2^31, from which the key cannot be computed."""
    text = f"{number} {purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, key=secret, digest_size=8).digest(), "big") % 2**31


def settings_digest(estimator: Any) -> str:
    """Return a hash of an estimator's class and settings, the same in every process.

    Args:
        estimator: The estimator.

    Returns:
        The hash, in hex.
    """
    return str(joblib.hash((_described(estimator), sklearn.__version__), hash_name="sha1"))


def _described(value: Any) -> Any:
    """Return a value that joblib hashes by content."""
    if isinstance(value, type):
        return value
    if hasattr(value, "get_params"):
        return _name(value), _described(value.get_params(deep=False))
    if is_tensor(value):
        return _bytes_of(value)
    if hasattr(value, "state_dict") and hasattr(value, "named_parameters"):
        return _name(value), str(value), _described(dict(value.state_dict()))
    if isinstance(value, Mapping):
        return {str(name): _described(part) for name, part in value.items()}
    return [_described(part) for part in value] if isinstance(value, list | tuple) else value


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _bytes_of(tensor: Any) -> Any:
    import torch

    flat = tensor.detach().cpu().contiguous().flatten()
    return str(tensor.dtype), list(tensor.shape), flat.view(torch.uint8).numpy()
