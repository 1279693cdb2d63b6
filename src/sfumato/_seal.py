# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of plain facts, such as what a run says of itself in a file.

Guarantee  A file that was changed, by accident or by hand, no longer matches its fingerprint.
Not here   A signature. Whoever changes a file on purpose can compute its fingerprint anew with this code.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["SEAL", "fits", "sealed"]

SEAL = "sha256"  # the name of the fingerprint among the facts


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with their fingerprint.

    >>> fits(sealed({"epsilon": 1.0})), fits(sealed({"epsilon": 1.0}) | {"epsilon": 0.5})
    (True, False)
    """
    plain = {name: value for name, value in facts.items() if name != SEAL}
    text = json.dumps(plain, sort_keys=True)
    return {**plain, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def fits(facts: Mapping[str, Any]) -> bool:
    """Return whether facts have the fingerprint they came with."""
    return SEAL in facts and sealed(facts)[SEAL] == facts[SEAL]
