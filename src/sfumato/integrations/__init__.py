# SPDX-License-Identifier: Apache-2.0
"""Trainers and loggers of other libraries, with the privacy of sfumato.

Each folder needs the package that it is for: `sfumato.integrations.hugging_face` needs transformers, which
comes with the extra `huggingface`, and `sfumato.integrations.lightning` needs lightning.
`sfumato.integrations.loggers` has loggers for all of them, and for `sfumato.training`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing

if TYPE_CHECKING:
    from sfumato.integrations import hugging_face, lightning, loggers

__all__ = ["hugging_face", "lightning", "loggers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"sfumato.integrations.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
