# SPDX-License-Identifier: Apache-2.0
"""The rounds, with a thread for each rank; `test_sharded_model` has real processes."""

import random
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from sfumato.training import distributed
from sfumato.training.distributed import OtherRankError
from sfumato.training.sharding import exchange
from sfumato.training.sharding.exchange import Exchange
from sfumato.training.sharding.layout import Shard
from sfumato.training.sharding.sharded_model import ShardedModel

UNITS, WAIT = 3, 20.0  # seconds until a rank that waits in vain is seen


class Together:
    """Collectives of threads: each is a meeting of all ranks, which must have come for the same."""

    def __init__(self, ranks) -> None:
        self.ranks, self.meeting = ranks, threading.Barrier(ranks, timeout=WAIT)
        self.told, self.came = [None] * ranks, [None] * ranks
        self.own = threading.local()

    def meet(self, purpose, value):
        self.came[self.own.rank], self.told[self.own.rank] = purpose, value
        self.meeting.wait()
        told, came = list(self.told), set(self.came)
        self.meeting.wait()
        assert len(came) == 1, came
        return told

    def gathered(self, own, group):
        return torch.cat(self.meet("wishes", own))

    def whole(self, parameter):
        self.meet(f"whole {parameter.name}", None)
        return parameter.name

    def added_up(self, shard, total):
        return sum(value for value in self.meet(f"sum {shard.name}", total) if value is not None)


@pytest.fixture
def ranks(monkeypatch):
    """Run one function for each rank; give what each returned, or raised."""

    def run(count, work):
        together = Together(count)
        for name in ("gathered", "whole", "added_up"):
            monkeypatch.setattr(exchange, name, getattr(together, name))
        monkeypatch.setattr(exchange.dist, "get_backend_config", lambda group: "cpu:gloo")
        monkeypatch.setattr(distributed, "size", lambda: count)
        found = [None] * count

        def one(rank):
            together.own.rank = rank
            try:
                found[rank] = work(rank)
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    return run


def opened(take):
    mesh = SimpleNamespace(get_group=lambda: None)
    return Exchange(
        [
            Shard(
                name=f"p{unit}",
                unit=unit,
                parameter=SimpleNamespace(name=f"p{unit}", device_mesh=mesh),
                trainable=unit != 1,
            )
            for unit in range(UNITS)
        ],
        take,
    )


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_want_other_things_in_another_order_all_end_and_each_sum_is_added_once(ranks, seed):
    draws = random.Random(seed)
    count = draws.randint(1, 4)
    plans = [[draws.randrange(2 * UNITS) for _ in range(draws.randint(0, 9))] for _ in range(count)]

    def work(rank):
        totals = Counter()
        own = opened(lambda sums: totals.update({name: int(value) for name, value in sums.items()}))
        for place, wish in enumerate(plans[rank]):
            unit, adds = divmod(wish, 2)
            if not adds:
                assert own.value(f"p{unit}") == f"p{unit}"
            elif unit != 1:
                own.add([f"p{unit}"], {f"p{unit}": torch.tensor(100**rank * (place + 1))})
        own.serve()
        return totals

    wanted = Counter()
    for rank, plan in enumerate(plans):
        for place, wish in enumerate(plan):
            if wish % 2 and wish // 2 != 1:
                wanted[f"p{wish // 2}"] += 100**rank * (place + 1)
    found = ranks(count, work)
    assert all({k: v for k, v in totals.items() if v} == dict(wanted) for totals in found)


def test_a_rank_that_fails_is_heard_by_all_others_and_none_goes_on(ranks):
    def work(rank):
        own = opened(lambda sums: None)
        own.value("p0")
        if rank == 1:
            own.fail()
        try:
            own.serve()
        except OtherRankError as error:
            with pytest.raises(OtherRankError, match="anew"):
                own.value("p0")
            return str(error)

    first, second, third = ranks(3, work)
    assert "rank 1 failed" in first and "rank 1 failed" in third and "on this rank" in second


def test_a_rank_that_was_interrupted_in_a_step_takes_no_other_one(ranks):
    added = []

    def work(rank):
        own = opened(added.append)
        sharded = ShardedModel.__new__(ShardedModel)
        sharded._exchange = own
        with pytest.raises(KeyboardInterrupt), sharded.failing():
            own.add(["p0"], {"p0": torch.ones(())})
            raise KeyboardInterrupt
        with pytest.raises(OtherRankError, match="interrupted on this rank"):
            own.add(["p0"], {"p0": torch.ones(())})  # the same rows again

    assert ranks(1, work) == [None] and len(added) == 1


def test_no_more_than_two_units_are_held(ranks):
    def work(rank):
        own = opened(lambda sums: None)
        for unit in (0, 1, 0, 2, 0):
            own.value(f"p{unit}")
        held = sorted(own._held)
        own.serve()
        return held, sorted(own._held)

    assert ranks(2, work) == [([0, 2], [])] * 2
