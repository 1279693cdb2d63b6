# SPDX-License-Identifier: Apache-2.0
"""Settings that must be made before anything is imported."""

import os

import torch
from hypothesis import settings

settings.register_profile(
    "sfumato", deadline=None
)  # no test depends on the clock: machines are busy at times
settings.load_profile("sfumato")

if not torch.cuda.is_available():
    # Triton decides when it is first imported whether its kernels are compiled, or run by its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
