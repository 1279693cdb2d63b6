# SPDX-License-Identifier: Apache-2.0
"""Privacy accounting: what an event costs, and how much noise a budget needs.

`price` an event, `calibrate` a mechanism to a budget, `plan` a training run. All are pure functions, without
input, output or randomness. Each accountant is a module: `composition` (basic, parallel, advanced, optimal),
`zcdp`, `rdp`, `pld`, `gaussian`.
"""

from sfumato.accounting.calibrate import calibrate, calibrate_count
from sfumato.accounting.default_delta import default_delta
from sfumato.accounting.events import (
    ApproximateDpEvent,
    DiscreteGaussianDpEvent,
    DpEvent,
    ExponentialDpEvent,
    JohnsonLindenstraussDpEvent,
    ObjectivePerturbationDpEvent,
    ParallelDpEvent,
    PureDpEvent,
    SelectionDpEvent,
    SkellamDpEvent,
    SparseVectorDpEvent,
    SummedDiscreteGaussianDpEvent,
    TruncatedPoissonSampledDpEvent,
    UnsampledDpEvent,
    coarsen,
    compose,
    dp_sgd,
    dp_sgd_schedule,
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
    "JohnsonLindenstraussDpEvent",
    "ObjectivePerturbationDpEvent",
    "ParallelDpEvent",
    "Plan",
    "Price",
    "PureDpEvent",
    "Relation",
    "SelectionDpEvent",
    "SkellamDpEvent",
    "SparseVectorDpEvent",
    "SummedDiscreteGaussianDpEvent",
    "TruncatedPoissonSampledDpEvent",
    "UnsampledDpEvent",
    "calibrate",
    "calibrate_count",
    "coarsen",
    "compose",
    "default_delta",
    "dp_sgd",
    "dp_sgd_schedule",
    "plan",
    "price",
    "round_up",
]
