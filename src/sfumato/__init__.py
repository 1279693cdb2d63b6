# SPDX-License-Identifier: Apache-2.0
"""sfumato: learn from private data with differential privacy, under one ledger that proves what was spent.

Subpackages are imported lazily: each is loaded when one of its names is first used.
"""

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato import (
        accounting,
        audit,
        datasets,
        errors,
        estimators,
        federated,
        generative,
        integrations,
        labels,
        ledger,
        mechanisms,
        pate,
        private,
        queries,
        report,
        statistics,
        testing,
        training,
    )
    from sfumato.accounting import Accountant, Guarantee, Plan, Price, Relation, calibrate, plan, price
    from sfumato.errors import SfumatoError
    from sfumato.estimators import LogisticRegression
    from sfumato.ledger import Account, Budget, Ledger
    from sfumato.private import PrivateData, open
    from sfumato.training import PrivateGradients, Trainer, make_private, make_private_with_epsilon, train

__all__ = [
    "Account",
    "Accountant",
    "Budget",
    "Guarantee",
    "Ledger",
    "LogisticRegression",
    "Plan",
    "Price",
    "PrivateData",
    "PrivateGradients",
    "Relation",
    "SfumatoError",
    "Trainer",
    "accounting",
    "audit",
    "calibrate",
    "datasets",
    "errors",
    "estimators",
    "federated",
    "generative",
    "integrations",
    "labels",
    "ledger",
    "make_private",
    "make_private_with_epsilon",
    "mechanisms",
    "open",
    "pate",
    "plan",
    "price",
    "private",
    "queries",
    "report",
    "statistics",
    "testing",
    "train",
    "training",
]

__version__ = _version("sfumato")

_ROOMS = (
    "accounting",
    "audit",
    "datasets",
    "errors",
    "estimators",
    "federated",
    "generative",
    "integrations",
    "labels",
    "ledger",
    "mechanisms",
    "pate",
    "private",
    "queries",
    "report",
    "statistics",
    "testing",
    "training",
)
_HOMES = {
    "Account": "ledger",
    "Accountant": "accounting",
    "Budget": "ledger",
    "Guarantee": "accounting",
    "Ledger": "ledger",
    "LogisticRegression": "estimators",
    "Plan": "accounting",
    "Price": "accounting",
    "PrivateData": "private",
    "PrivateGradients": "training",
    "Relation": "accounting",
    "SfumatoError": "errors",
    "Trainer": "training",
    "calibrate": "accounting",
    "make_private": "training",
    "make_private_with_epsilon": "training",
    "open": "private",
    "plan": "accounting",
    "price": "accounting",
    "train": "training",
}


_name = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"sfumato.{name}") if name in _ROOMS else _name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
