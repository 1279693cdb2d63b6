# SPDX-License-Identifier: Apache-2.0
"""Settings that must be made before anything is imported."""

import os

import torch

if not torch.cuda.is_available():
    # Triton decides when it is first imported whether its kernels are compiled, or run by its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
