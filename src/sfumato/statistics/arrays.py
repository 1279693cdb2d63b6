# SPDX-License-Identifier: Apache-2.0
"""Types of the arrays that statistics compute with."""

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Integers"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
