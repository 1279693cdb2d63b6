# SPDX-License-Identifier: Apache-2.0
"""Hugging Face: `PrivateTrainer` is a `transformers.Trainer` that trains with differential privacy."""

__all__: list[str] = []
