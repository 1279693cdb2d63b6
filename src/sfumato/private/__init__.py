# SPDX-License-Identifier: Apache-2.0
"""Private data with a unit and a budget, to which every question, fit and training run is charged."""

from sfumato.private.estimator_rows import fit
from sfumato.private.private_data import PrivateData, open

__all__ = ["PrivateData", "fit", "open"]
