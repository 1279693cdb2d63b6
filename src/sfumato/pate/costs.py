# SPDX-License-Identifier: Apache-2.0
"""What the first queries of a job cost, for pages: computed from events alone, without a vote.

Guarantee  Nothing private is used. For a job with a test of agreement the whole job has one price, which does
           not grow with the queries; what its noise would cost without the test is shown beside it.
"""

import numpy as np

from sfumato.accounting.events import DpEvent
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.pate.planning import Job
from sfumato.pate.votes.labeling import Labeling
from sfumato.pate.votes.stability import StableLabeling

__all__ = ["cost_curves"]

_POINTS = 16

Curve = list[tuple[float, float]]


def cost_curves(job: Job) -> dict[str, Curve]:
    """Return the epsilon of the first queries, at the noise of a job.

    Args:
        job: The job.

    Returns:
        Points (queries, epsilon), by the name of a line: one line, or one for each privacy group.

    >>> from sfumato.pate.votes.aggregators import GNMax
    >>> job = Labeling(aggregator=GNMax(stddev=40.0), queries=100, teachers=250, delta=1e-5)
    >>> [(queries, round(epsilon, 2)) for queries, epsilon in cost_curves(job)["epsilon"]][-1]
    (100.0, 1.36)
    """
    grid = np.unique(np.linspace(1, job.queries, _POINTS).round().astype(int)).tolist()
    if isinstance(job, StableLabeling):
        alone = [(float(n), _epsilon(job, job.aggregator.event(n))) for n in grid]
        whole = [(0.0, job.epsilon), (float(job.queries), job.epsilon)]
        return {"with the test of agreement": whole, "without it": alone}
    groups = len(job.events())
    names = ["epsilon"] if groups == 1 else [f"group {number}" for number in range(groups)]
    events = [(n, _events(job, n)) for n in grid]
    return {
        name: [(float(n), _epsilon(job, found[place])) for n, found in events]
        for place, name in enumerate(names)
    }


def _events(job: Labeling, queries: int) -> tuple[DpEvent, ...]:
    """Return the event of the first queries for each group; queries that a group leaves out are the last."""
    if job.individual is None:
        return (job.aggregator.event(queries),)
    moved = job.individual.weights(job.teachers) * np.array(job.individual.copies())
    voted = [min(queries, most) for most in job.individual.attendance(job.queries)]
    return tuple(
        job.aggregator.event(number, weight=float(weight)) if number else dp.NoOpDpEvent()
        for number, weight in zip(voted, moved, strict=True)
    )


def _epsilon(job: Job, event: DpEvent) -> float:
    if isinstance(event, dp.NoOpDpEvent):
        return 0.0
    return price(event, delta=job.delta, relation=job.relation).epsilon
