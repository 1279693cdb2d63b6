# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU multiplies float32 numbers exactly, or rounded to tf32, which is faster.

Torch has two interfaces for this setting, and from 2.9 on refuses to mix them. This module uses the newer one
if it exists.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["TF32_EPS", "convolution_eps", "uses_tf32", "whole_floats"]

TF32_EPS: Final = 2.0**-9  # twice the bound on the error of a product whose operands are cut to 10 bits


def uses_tf32() -> bool:
    """Whether products of matrices in float32 are cut to tf32.

    >>> with whole_floats(torch.device("cuda")):
    ...     uses_tf32()
    False
    """
    products: Any = torch.backends.cuda.matmul
    found = getattr(products, "fp32_precision", None)
    return bool(products.allow_tf32) if found is None else found == "tf32"


def convolution_eps(x: Tensor) -> float:
    """Return how coarsely convolutions round their operands, relative to them; 0 if as all products do.

    The setting for convolutions is another than that for matrices, and cuts them unless it was changed.
    """
    if not x.is_cuda or x.dtype is not torch.float32:
        return 0.0
    cudnn: Any = torch.backends.cudnn
    found = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    cut = cudnn.allow_tf32 if found is None else found == "tf32"
    return TF32_EPS if cut else 0.0


@contextmanager
def whole_floats(device: torch.device) -> Generator[None]:
    """Return a context in which nothing is cut on a GPU; elsewhere it does nothing."""
    before = [(place, getattr(place, name), name, whole) for place, name, whole in _switches(device)]
    try:
        for place, _, name, whole in before:
            setattr(place, name, whole)
        yield
    finally:
        for place, value, name, _ in before:
            setattr(place, name, value)


def _switches(device: torch.device) -> list[tuple[Any, str, Any]]:
    """Return the places where torch keeps its choice, its name there, and the choice of whole floats."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if device.type != "cuda":
        return []
    if hasattr(products, "fp32_precision"):
        return [(place, "fp32_precision", "ieee") for place in (products, cudnn.conv, cudnn.rnn)]
    return [(place, "allow_tf32", False) for place in (products, cudnn)]
