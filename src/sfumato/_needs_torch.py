# SPDX-License-Identifier: Apache-2.0
"""Imported before anything else by packages that cannot work without PyTorch: fails where it is missing."""

from sfumato._torch import require_torch

require_torch()
