# SPDX-License-Identifier: Apache-2.0
"""Hugging Face: `PrivateTrainer` is a `transformers.Trainer` that trains with differential privacy.

It needs the extra `huggingface`.
"""

from sfumato.integrations.hugging_face import _needs_transformers  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where it is missing
from sfumato.integrations.hugging_face.trainer import PrivateTrainer, TrainerKeywords

__all__ = ["PrivateTrainer", "TrainerKeywords"]
