# SPDX-License-Identifier: Apache-2.0
"""Replay a question on neighboring data, and find out whether anything but noisy numbers leaves.

What `replay` does for any release, here for a question: its cost is checked against what it
states, where the costs of its mechanisms simply add up.
"""

from typing import Any

from sfumato.accounting.events import ParallelDpEvent, walk
from sfumato.audit.mechanisms.neighbor_distances import score_at
from sfumato.audit.mechanisms.replay import Call, LeakError, Tape, check_call, watched
from sfumato.audit.mechanisms.replay import replay as replay_release
from sfumato.statistics.query import Query
from sfumato.testing import seeded

__all__ = ["Call", "LeakError", "Tape", "check_call", "replay", "watched"]

_score_at = score_at


def replay(question: Any, data: Any, neighbor: Any, *, seed: int = 0, adds_up: bool = True) -> list[Call]:
    """Ask on both; raise `LeakError` unless only what was paid for can leave. Return the first run's calls.

    `adds_up=False` leaves out the check of the cost, for questions whose event is not the plain sum of its
    mechanisms'.
    """
    asked = [Query(question, given) for given in (data, neighbor)]  # it must be made for this data
    # In parallel the dearest part counts, not the sum: the accountants' own tests cover that.
    parallel = any(isinstance(part, ParallelDpEvent) for part in walk(question.event()))
    plain = adds_up and question.delta == 0 and not parallel
    calls = replay_release(
        lambda given, generator: question.answer(given, generator=generator),
        data,
        neighbor,
        claim=asked[0].guarantee if plain else None,
        generator=seeded(seed),
    )
    return list(calls)
