# SPDX-License-Identifier: Apache-2.0
"""The device that `--device` names, tried before a run is charged."""

import torch

from sfumato.errors import InvalidParameterError

__all__ = ["device_named"]


def device_named(name: str | None) -> torch.device | None:
    """Return the device of a name, or none if there is no name; raise unless tensors can be there."""
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidParameterError(f"unknown device {name!r}. Use cpu or cuda.") from None
    if device.type == "cuda":
        _require_cuda(device)
    elif device.type != "cpu":
        _require_tensors(device)
    return device


def _require_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise InvalidParameterError("there is no CUDA device here. Leave --device out to train on the CPU.")
    if (device.index or 0) >= torch.cuda.device_count():
        raise InvalidParameterError(
            f"there is no device {str(device)!r}: the last one is 'cuda:{torch.cuda.device_count() - 1}'."
        )


def _require_tensors(device: torch.device) -> None:
    try:
        torch.zeros(1, device=device).item()
    except Exception:  # of many kinds, one for each backend that is not here
        raise InvalidParameterError(f"there is no device {str(device)!r} here. Use cpu or cuda.") from None
