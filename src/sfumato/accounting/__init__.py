# SPDX-License-Identifier: Apache-2.0
"""What does it cost? Events in, guarantee out; pure functions, no I/O, no randomness.

`price` an event, `calibrate` a mechanism to a budget, `plan` a training run. The accountants themselves are
modules: `composition` (basic, parallel, advanced, optimal), `zcdp`, `rdp`, `pld`, `gaussian`.
"""

from sfumato.accounting.calibrate import calibrate, calibrate_count
from sfumato.accounting.events import (
    ApproximateDpEvent,
    DiscreteGaussianDpEvent,
    DpEvent,
    ExponentialDpEvent,
    ParallelDpEvent,
    PureDpEvent,
    SparseVectorDpEvent,
    UnsampledDpEvent,
    compose,
    dp_sgd,
)
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.accounting.plan import Plan, plan
from sfumato.accounting.price import Accountant, Price, price

__all__ = [
    "Accountant",
    "ApproximateDpEvent",
    "DiscreteGaussianDpEvent",
    "DpEvent",
    "ExponentialDpEvent",
    "Guarantee",
    "ParallelDpEvent",
    "Plan",
    "Price",
    "PureDpEvent",
    "Relation",
    "SparseVectorDpEvent",
    "UnsampledDpEvent",
    "calibrate",
    "calibrate_count",
    "compose",
    "dp_sgd",
    "plan",
    "price",
    "round_up",
]
