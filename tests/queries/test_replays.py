# SPDX-License-Identifier: Apache-2.0
"""Replays of queries on neighboring data: only numbers that got noise leave, and it is enough noise."""

from dataclasses import replace

import ibis
import pandas as pd
import pyarrow as pa
import pytest

from sfumato import queries as q
from sfumato.audit import replay
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.queries.group_ranges import GroupRanges
from sfumato.queries.spending import Reach
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.groups.key_discovery import KeyDiscovery
from sfumato.statistics.query import Answer
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

KEYS = ["a", "b", "c"]
B = {"bounds": (0.0, 10.0)}
OTHERS = [(1 + i // 2, KEYS[i % 2], float(i % 7)) for i in range(40)]
CROWDED = [(0, KEYS[i % 3], 10.0) for i in range(24)]  # a unit with many rows everywhere
NUMBERS = {
    "n": q.count(),
    "known": q.count("x"),
    "total": q.sum("x", **B),
    "mean": q.mean("x", **B),
    "spread": q.standard_deviation("x", **B),
    "people": q.count_distinct("who"),
    "values": q.count_distinct("x"),
}
AGE = {"age": q.sum("age", bounds=(0.0, 90.0))}
RANKS = {"mid": q.median("x", **B), "high": q.quantile("x", 0.9, interval=True, **B)}


def frame(rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["who", "key", "x"])


NEIGHBORS = {
    "add-remove": (frame(CROWDED + OTHERS), frame(OTHERS)),
    "replace-one": (frame(CROWDED + OTHERS), frame([(0, "c", 0.0), (0, "b", 3.0)] * 9 + OTHERS)),
}


def opened(rows: pd.DataFrame):
    return private_table(rows, privacy_unit="who", contribution_bound=4)


def joined(rows: pd.DataFrame):
    return opened(rows).join(pd.DataFrame({"key": KEYS, "office": ["n", "s", "n"]}), on="key")


def by_unit(rows: pd.DataFrame):
    connection = ibis.duckdb.connect()
    ages = rows[["who"]].drop_duplicates().assign(age=lambda found: 20.0 + found.who)
    frames = {"visits": rows.astype({"who": "int64"}), "people": pd.concat([ages, ages])}  # two of each
    visits, people = (
        private_table(
            connection.create_table(name, pa.Table.from_pandas(given, preserve_index=False)),
            privacy_unit="who",
            contribution_bound=bound,
        )
        for (name, given), bound in zip(frames.items(), (4, 1), strict=True)
    )
    return visits.join_by_unit(people)


def asked(make, **terms):
    """Return a release of a query of data: everything that leaves."""

    def release(rows, generator):
        found = make(rows).agg(epsilon=1.0, **terms).release(generator=generator)
        return found.to_json()

    return release


QUERIES = {
    "workload": (lambda rows: q.group_by(opened(rows), "key", keys=KEYS), NUMBERS),
    "all rows": (lambda rows: q.group_by(opened(rows)), NUMBERS | RANKS),
    "in few groups": (
        lambda rows: q.group_by(opened(rows), "key", keys=KEYS, rows_per_group=2, groups_per_unit=2),
        NUMBERS,
    ),
    "quantiles": (lambda rows: q.group_by(opened(rows), "key", keys=KEYS, rows_per_group=2), RANKS),
    "joined": (lambda rows: q.group_by(joined(rows), "office", keys=["n", "s"]), NUMBERS),
    "by unit": (lambda rows: q.group_by(by_unit(rows), "key", keys=KEYS), NUMBERS | AGE),
}


CASES = [(name, 0.0, relation) for name in QUERIES for relation in NEIGHBORS]
CASES += [("in few groups", 1e-6, relation) for relation in NEIGHBORS]
SLOW = ("all rows", "by unit")
CASES = [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in SLOW)) for case in CASES]


@pytest.mark.parametrize(("name", "delta", "relation"), CASES)
def test_only_numbers_with_enough_noise_leave(name, delta, relation):
    make, statistics = QUERIES[name]
    if relation == "replace-one":
        # Draws are those of added rows at half of epsilon, so a replay sees twice their sensitivity. That
        # their losses lie within the charge is a property of its own (`test_quantiles`).
        statistics = {n: each for n, each in statistics.items() if n not in RANKS} or {"n": q.count()}
    data, neighbor = NEIGHBORS[relation]
    release = asked(make, relation=relation, delta=delta, **statistics)
    query = make(data).agg(epsilon=1.0, relation=relation, delta=delta, **statistics)
    # Draws of quantiles in several groups are charged together: less than the sum of their mechanisms.
    claim = query.guarantee if delta == 0 and name != "quantiles" else None
    calls = replay(release, data, neighbor, claim=claim, generator=seeded(0))
    assert len(calls) >= len(statistics)


@pytest.mark.parametrize("relation", NEIGHBORS)
def test_ranges_are_computed_from_noisy_counts_alone(relation):
    data, neighbor = NEIGHBORS[relation]

    def release(rows, generator):
        found = q.ranges(opened(rows)["x"], **B, bins=16, epsilon=1.0, relation=relation, generator=generator)
        return found.between(2, 7), found.cdf(5), found.release.value

    claim = q.ranges(opened(data)["x"], **B, bins=16, epsilon=1.0, relation=relation).guarantee
    assert len(replay(release, data, neighbor, claim=claim, generator=seeded(0))) == 1


IN_GROUPS = {"plain": {}, "in few groups": {"rows_per_group": 2, "groups_per_unit": 2}}


def ranges_of_groups(relation, delta=0.0, **within):
    """Return a release of ranges of groups: everything that leaves."""

    def release(rows, generator):
        groups = q.group_by(opened(rows), "key", keys=KEYS, **within)
        found = groups.ranges(
            "x", **B, bins=8, epsilon=1.0, delta=delta, relation=relation, generator=generator
        )
        return found.release.to_json(), found["a"].between(2, 7), found["b"].cdf(5), found.guarantee

    return release


@pytest.mark.parametrize("relation", NEIGHBORS)
@pytest.mark.parametrize("within", IN_GROUPS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_ranges_of_groups_are_computed_from_noisy_counts_alone(relation, within, delta):
    data, neighbor = NEIGHBORS[relation]
    release = ranges_of_groups(relation, delta, **IN_GROUPS[within])
    claim = None if delta else release(data, seeded(0))[-1]
    assert len(replay(release, data, neighbor, claim=claim, generator=seeded(0))) == 1


def forgets_every_bound(patch) -> None:
    patch.setattr(OwnedRows, "_bounded", lambda self, rows, **_: rows)


def forgets_the_rows_of_a_group(patch) -> None:
    patch.setattr(OwnedRows, "_at_most", lambda self, bound, rows, **_: rows)


def forgets_that_a_unit_is_in_several_groups(patch) -> None:
    patch.setattr(Reach, "l1", property(lambda self: self.rows))


@pytest.mark.parametrize(
    "bug", [forgets_every_bound, forgets_the_rows_of_a_group, forgets_that_a_unit_is_in_several_groups]
)
def test_a_forgotten_bound_of_groups_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    release = asked(QUERIES["in few groups"][0], **NUMBERS)
    with pytest.raises(LeakError):
        replay(release, *NEIGHBORS["add-remove"], generator=seeded(0))


def forgets_that_a_row_is_in_a_block_too(patch) -> None:
    noise = GroupRanges.noise
    patch.setattr(
        GroupRanges, "noise", lambda self: replace(noise(self), l1_sensitivity=self.reach.l1, coordinates=1)
    )


@pytest.mark.parametrize(
    "bug",
    [
        forgets_every_bound,
        forgets_the_rows_of_a_group,
        forgets_that_a_unit_is_in_several_groups,
        forgets_that_a_row_is_in_a_block_too,
    ],
)
def test_a_forgotten_bound_of_ranges_of_groups_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    release = ranges_of_groups("add-remove", **IN_GROUPS["in few groups"])
    with pytest.raises(LeakError):
        replay(release, *NEIGHBORS["add-remove"], generator=seeded(0))


def discovered(rows, generator):
    groups = q.group_by(opened(rows), "key", keys=q.Discovered())
    return groups.agg(n=q.count(), epsilon=1.0, delta=1e-6).release(generator=generator).to_json()


def test_keys_that_are_read_for_free_are_caught(monkeypatch):
    def free(self, data, *, generator):
        found = data.owned.table(data.owned.expression.select("key").distinct()).to_pydict()["key"]
        return Answer(value=sorted(found))

    monkeypatch.setattr(KeyDiscovery, "answer", free)  # the planted bug
    with pytest.raises(LeakError):
        replay(discovered, *NEIGHBORS["add-remove"], generator=seeded(0))
