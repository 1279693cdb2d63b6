# SPDX-License-Identifier: Apache-2.0
"""Bugs of statistics: questions that are replayed on neighbors, and answers that are told apart."""

import importlib
import math
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.event_search import LowBits
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism
from sfumato.audit.mechanisms.replay import replay
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import tensors
from sfumato.statistics import private_table
from sfumato.statistics.columns import columns, table_columns
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.contributions import owned_rows
from sfumato.statistics.groups import grouped_rows
from sfumato.statistics.intervals import around, whole_half_width
from sfumato.statistics.noise import WholeNoise
from sfumato.statistics.query import Answer, Query, Question
from sfumato.statistics.questions.counts import Count, Sum
from sfumato.statistics.questions.histograms import BinCounts, CategoryCounts
from sfumato.statistics.questions.means import Mean
from sfumato.statistics.questions.stable_histograms import StableCounts
from sfumato.statistics.questions.top_k import TopK
from sfumato.statistics.sources import private_tables, table_sources
from sfumato.testing import seeded

from .catalogue import CONFIDENCE, Planted, leaks

__all__ = ["BUGS"]

EPSILON = 1.0
selecting = importlib.import_module(
    "sfumato.statistics.questions.top_k"
)  # its package has a function of that name


def replayed(question: Question[Any], *pairs: tuple[Any, Any]) -> Callable[[int], bool]:
    """Return an audit that asks a question of neighbors, with every mechanism's answer the same."""

    def audit(seed: int) -> bool:
        def release(data: Any, generator: Any) -> Answer[Any]:
            return question.answer(data, generator=generator)

        return any(
            leaks(
                lambda pair=pair: replay(
                    release, *pair, claim=Query(question, pair[0]).guarantee, generator=seeded(seed)
                )
            )
            for pair in pairs
        )

    return audit


def told_apart(
    question: Question[Any], first: Any, second: Any, *, trials: int, **settings: Any
) -> Callable[[int], bool]:
    """Return an audit that asks many times, and looks for an event that tells two neighbors apart."""

    def audit(seed: int) -> bool:
        return audit_mechanism(
            lambda data, generator: question.answer(data, generator=generator).value,
            first,
            second,
            trials=trials,
            confidence=CONFIDENCE,
            claim=Query(question, first).guarantee,
            generator=seeded(seed),
            **settings,
        ).refuted

    return audit


FEW = [0.2, 0.9, 0.4]
NUMBERS = (
    (column_of([]), column_of([0.7])),
    (column_of(FEW), column_of([*FEW, 1.0])),
    (column_of(FEW), column_of([*FEW, 1e6])),
    (column_of(FEW), column_of([*FEW, -1e6])),
)
DRINKS = (
    (categories_of(["tea"] * 3), categories_of(["tea"] * 4)),
    (categories_of(["tea"] * 3), categories_of(["tea"] * 3 + ["milk"])),
)


def owned(rows: Sequence[float], owners: Sequence[int]) -> Any:
    return column_of(rows, owners=owners, contribution_bound=2)


# --- sensitivity ------------------------------------------------------------------------------------------


def sum_without_clipping(patch: pytest.MonkeyPatch) -> None:
    def in_steps(values, bounds):
        lower, upper = bounds
        return np.rint((values - (lower + upper) / 2) * (columns.STEPS / (upper / 2 - lower / 2)))

    patch.setattr(columns, "in_steps", in_steps)


def width_for_sensitivity(patch: pytest.MonkeyPatch) -> None:
    def _sensitivity(self):
        least, most = self._middle() - columns.STEPS * 2**20, self._middle() + columns.STEPS * 2**20
        return -(-self.contribution_bound * (most - least) // self._coarse())  # upper - lower

    patch.setattr(Sum, "_sensitivity", _sensitivity)


def added_for_replaced(patch: pytest.MonkeyPatch) -> None:
    original = Mean._noise_of_sum

    def _noise_of_sum(self):
        return original(replace(self, relation=Relation.ADD_REMOVE))

    patch.setattr(Mean, "_noise_of_sum", _noise_of_sum)


def keep_all_rows(patch: pytest.MonkeyPatch) -> None:
    def bounded_rows(rows, owners, contribution_bound):
        return rows[~np.isnan(rows).any(1)]

    patch.setattr(columns, "bounded_rows", bounded_rows)


def bound_units_ignored(seed: int) -> bool:
    question = Count(epsilon=EPSILON, contribution_bound=2)
    one = owned([0.5], [1])
    two = owned([0.5, 0.1, 0.2, 0.3, 0.4, 0.5], [1, 2, 2, 2, 2, 2])  # made here: the bug is in making it
    return replayed(question, (one, two))(seed)


# --- which rows count -------------------------------------------------------------------------------------


def biased(answer: Callable[[int], tuple[float, float, float]]) -> Callable[[int], bool]:
    """Return an audit that compares an answer with rows drawn uniformly from each unit.

    `answer(seed)` returns it almost without noise, with the expectation and the standard deviation of what
    uniform sampling would give for units of that seed.
    """

    def audit(seed: int) -> bool:
        found, expected, error = answer(seed)
        return bool(abs(found - expected) > norm.isf((1 - CONFIDENCE) / 2) * error)

    return audit


def rare_flag(seed: int) -> tuple[float, float, float]:
    """The mean of a flag that one of 20 rows of each of 1000 units has; two rows of a unit may count."""
    units, rows = np.divmod(np.arange(20_000), 20)
    frame = pd.DataFrame({"unit": units + 1000 * seed, "flag": (rows == 0).astype(float)})
    table = private_table(frame, privacy_unit="unit", contribution_bound=2)
    question = Mean(bounds=(0, 1), epsilon=1e6, contribution_bound=2, column="flag")
    found = question.answer(table["flag"], generator=seeded(seed)).value
    return found, 0.05, math.sqrt(0.1 * 0.9 / 1000) / 2  # a unit's flag counts with probability 2 / 20


def asked_pairs(seed: int) -> tuple[float, float, float]:
    """The rows of two pairs, of 1000 units that have one row with one of them and two with other pairs."""
    units, rows = np.divmod(np.arange(3000), 3)
    towns, years = np.where(rows == 1, "Oslo", "Rome"), np.where(rows == 2, 2021, 2020)
    frame = pd.DataFrame({"unit": units + 1000 * seed, "town": towns, "year": years})
    keys = [("Rome", 2020), ("Oslo", 2021)]
    query = private_table(frame, privacy_unit="unit").group_by("town", "year", keys=keys).count(epsilon=1e6)
    found = query.question.answer(query.data, generator=seeded(seed)).value
    return sum(found.values()), 1000.0, 1e-9  # one row of each unit, whatever else it has


def smallest_rows_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owned_rows, "is_kept", lambda place, *, rows, draw, bound: place < bound)


def values_and_not_rows(patch: pytest.MonkeyPatch) -> None:
    def _bounded(self, rows, **_):
        hashes = rows["unit"].hash() ^ rows["value"].hash()  # equal rows have one: all of them are next
        place = ibis.row_number().over(group_by="unit", order_by=[hashes, rows["value"]])
        rows = rows.mutate(place=place)
        return rows.filter(rows["place"] < self.contribution_bound).drop("place")

    patch.setattr(owned_rows.OwnedRows, "_bounded", _bounded)


def same_place_in_each_unit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owned_rows, "drawn", lambda seed, *, engine: ibis.literal(0, type="int64"))


def keys_part_by_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grouped_rows, "_has_one", grouped_rows._has_parts)


# --- read from the data -----------------------------------------------------------------------------------


def bounds_from_the_data(patch: pytest.MonkeyPatch) -> None:
    original = Mean.answer

    def answer(self, data, *, generator):
        values = data.ordered(self.bounds)
        if len(values) > 1 and values[0] < values[-1]:  # tighter bounds, less noise
            self = replace(self, bounds=(float(values[0]), float(values[-1])))
        return original(self, data, generator=generator)

    patch.setattr(Mean, "answer", answer)


def categories_from_the_data(patch: pytest.MonkeyPatch) -> None:
    original = CategoryCounts.answer

    def answer(self, data, *, generator):
        found = tuple(category for category in self.categories if data.tallies().get(category, 0) > 0)
        return original(replace(self, categories=found), data, generator=generator)

    patch.setattr(CategoryCounts, "answer", answer)


def domain_without_threshold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StableCounts, "threshold", property(lambda self: 1))  # "what is not there is not shown"


# --- a schema guessed from values -------------------------------------------------------------------------


def types_found_in_the_file(patch: pytest.MonkeyPatch) -> None:
    def read(path, engine):
        return engine.read_csv(path), engine  # DuckDB looks at the rows, and decides what the columns are

    patch.setitem(table_sources._READERS, ".csv", read)


def texts_that_look_like_numbers(patch: pytest.MonkeyPatch) -> None:
    original = table_columns.numeric

    def numeric(owned, name):
        value = table_columns.column(owned, name)
        if not value.type().is_string():
            return original(owned, name)
        cast = value.try_cast("float64")
        rows = owned.expression.select(text=value, cast=cast)
        other = owned.row(rows.aggregate(count=(rows["text"].notnull() & rows["cast"].isnull()).sum()))
        return original(owned, name) if other["count"] else cast  # numbers, if all of them are

    for module in (table_columns, private_tables):
        patch.setattr(module, "numeric", numeric)


def of_two_files(ask: Callable[[Any, Any], Any]) -> Callable[[int], bool]:
    """Return an audit that asks of a file of codes, all of them digits, and of one with another row."""

    def release(path: str, generator: Any) -> tuple[Any, Any]:
        table = private_table(path)
        counted = table.count(epsilon=EPSILON / 2).release(generator=generator).value
        try:
            return counted, ask(table, generator)
        except InvalidParameterError:
            return counted, "refused"

    def audit(seed: int) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            pair = [f"{folder}/{name}.csv" for name in ("data", "neighbor")]
            for path, rows in zip(pair, (["7", "12"], ["7", "12", "x"]), strict=True):
                Path(path).write_text("\n".join(["who,code", *(f"p{i},{row}" for i, row in enumerate(rows))]))
            return leaks(lambda: replay(release, *pair, generator=seeded(seed)))

    return audit


def codes_counted(table: Any, generator: Any) -> Any:
    question = CategoryCounts(categories=("7", "x"), epsilon=EPSILON / 2)
    return Query(question, table.categories("code")).release(generator=generator).value.counts


def codes_averaged(table: Any, generator: Any) -> Any:
    question = Mean(bounds=(0, 20), epsilon=EPSILON / 2)
    return Query(question, table["code"]).release(generator=generator).value


# --- noise ------------------------------------------------------------------------------------------------


def nothing_needs_no_noise(patch: pytest.MonkeyPatch) -> None:
    original = Count.answer

    def answer(self, data, *, generator):
        if int(data.histogram(np.array([0.0, 1.0])).sum()) == 0:
            return Answer(value=0)
        return original(self, data, generator=generator)

    patch.setattr(Count, "answer", answer)


def interval_around_the_truth(patch: pytest.MonkeyPatch) -> None:
    original = Count.answer

    def answer(self, data, *, generator):
        found = original(self, data, generator=generator)
        true = int(data.histogram(np.array([0.0, 1.0])).sum())
        distance = whole_half_width(self._noise().law, level=self.level)
        around_true = around(true, distance, level=self.level, within=(0.0, math.inf))
        return Answer(value=found.value, interval=around_true)

    patch.setattr(Count, "answer", answer)


def one_draw_for_all_bins(patch: pytest.MonkeyPatch) -> None:
    original = WholeNoise.add

    def add(self, numbers, *, generator=None):
        return np.asarray(numbers, dtype=np.float64) + original(self, [0], generator=generator)[0]

    patch.setattr(WholeNoise, "add", add)


def floating_point_noise(patch: pytest.MonkeyPatch) -> None:
    def add(self, numbers, *, generator=None):
        known = np.array([float(number) for number in numbers])
        scale = self.l1_sensitivity / self.epsilon
        noise = tensors.laplace(known.shape, scale=scale, generator=generator, dtype=tensors.torch.float64)
        return known + noise.numpy()

    patch.setattr(WholeNoise, "add", add)


def whole_epsilon_for_each(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selecting, "_epsilon_of_one", lambda epsilon, delta, k, relation: epsilon)
    patch.setattr(TopK, "event", lambda self: self._selection().event())


_BINS = BinCounts(edges=(0.0, 0.5, 1.0), epsilon=EPSILON)
_CATEGORIES: tuple[Hashable, ...] = ("tea", "coffee", "milk")

BUGS = (
    Planted(
        name="sum-not-clipped",
        bug="values are added up as they are, with noise for values within the bounds",
        found_by="replay on neighbors",
        plant=sum_without_clipping,
        audit=replayed(Sum(bounds=(0, 1), epsilon=EPSILON), *NUMBERS),
    ),
    Planted(
        name="width-of-the-bounds-for-sensitivity",
        bug="the noise of a sum is made for the width of the bounds, and not for the largest value",
        found_by="replay on neighbors",
        plant=width_for_sensitivity,
        audit=replayed(Sum(bounds=(10, 12), epsilon=EPSILON), *NUMBERS),
    ),
    Planted(
        name="replaced-row-at-sensitivity-of-an-added-one",
        bug="a mean under replace-one neighbors gets the noise of add-remove ones",
        found_by="replay on neighbors",
        plant=added_for_replaced,
        audit=replayed(
            Mean(bounds=(0, 1), epsilon=EPSILON, relation=Relation.REPLACE_ONE, public_size=3),
            (column_of(FEW), column_of([0.2, 0.9, 1.0])),
            (column_of([0.0, 0.5, 0.5]), column_of([1.0, 0.5, 0.5])),
        ),
    ),
    Planted(
        name="contribution-bound-ignored",
        bug="all rows of a unit are counted, however many it may have",
        found_by="replay on neighbors",
        plant=keep_all_rows,
        audit=bound_units_ignored,
    ),
    Planted(
        name="smallest-rows-first",
        bug="of a unit with too many rows, those with the smallest values count",
        found_by="uniform sampling",
        plant=smallest_rows_first,
        audit=biased(rare_flag),
    ),
    Planted(
        name="values-and-not-rows",
        bug="rows of a unit are sorted by a hash of their values, so that all rows of one value count first",
        found_by="uniform sampling",
        plant=values_and_not_rows,
        audit=biased(rare_flag),
    ),
    Planted(
        name="same-place-in-each-unit",
        bug="the rows that count begin at the same place in the order of each unit's values",
        found_by="uniform sampling",
        plant=same_place_in_each_unit,
        audit=biased(rare_flag),
    ),
    Planted(
        name="keys-part-by-part",
        bug="rows are filtered by each part of a key, and those of other pairs take the places of asked ones",
        found_by="uniform sampling",
        plant=keys_part_by_part,
        audit=biased(asked_pairs),
    ),
    Planted(
        name="bounds-read-from-the-data",
        bug="a mean tightens its bounds to the least and the largest value",
        found_by="replay on neighbors",
        plant=bounds_from_the_data,
        audit=replayed(Mean(bounds=(0, 1), epsilon=EPSILON), *NUMBERS[1:]),
    ),
    Planted(
        name="categories-read-from-the-data",
        bug="categories that nobody has are left out of a histogram",
        found_by="event search",
        plant=categories_from_the_data,
        audit=told_apart(CategoryCounts(categories=_CATEGORIES, epsilon=EPSILON), *DRINKS[1], trials=400),
    ),
    Planted(
        name="types-found-in-a-file",
        bug="the types of a CSV file are what its rows look like, so one text makes another column of it",
        found_by="replay on neighbors",
        plant=types_found_in_the_file,
        audit=of_two_files(codes_counted),
    ),
    Planted(
        name="texts-that-look-like-numbers",
        bug="a column of texts may be averaged if all of them are numbers, so one row stops the mean",
        found_by="replay on neighbors",
        plant=texts_that_look_like_numbers,
        audit=of_two_files(codes_averaged),
    ),
    Planted(
        name="domain-without-a-threshold",
        bug="categories that are found in the data are shown without a threshold",
        found_by="event search",
        plant=domain_without_threshold,
        audit=told_apart(StableCounts(epsilon=EPSILON, delta=1e-6), *DRINKS[1], trials=1000),
    ),
    Planted(
        name="zero-noise-statistic",
        bug="a count of nothing is released as an exact zero",
        found_by="replay on neighbors",
        plant=nothing_needs_no_noise,
        audit=replayed(Count(epsilon=EPSILON), *NUMBERS),
    ),
    Planted(
        name="interval-around-the-truth",
        bug="the confidence interval of a noisy count has the exact count in its middle",
        found_by="replay on neighbors",
        plant=interval_around_the_truth,
        audit=replayed(Count(epsilon=EPSILON), *NUMBERS),
    ),
    Planted(
        name="one-draw-for-all-bins",
        bug="one noise is drawn and added to every count of a histogram",
        found_by="event search",
        plant=one_draw_for_all_bins,
        audit=told_apart(_BINS, column_of([0.2]), column_of([0.2, 0.9]), trials=1000),
    ),
    Planted(
        name="floating-point-noise",
        bug="Laplace noise in floating point is added to a sum: its last digits tell what it was added to",
        found_by="event search (low bits)",
        plant=floating_point_noise,
        audit=told_apart(
            Sum(bounds=(0, 1), epsilon=EPSILON),
            column_of([]),
            column_of([1.0]),
            trials=1000,
            events=(LowBits(),),
        ),
    ),
    Planted(
        name="whole-epsilon-for-each-of-k",
        bug="each of k selections is given all of epsilon, and one is charged",
        found_by="replay on neighbors",
        plant=whole_epsilon_for_each,
        audit=replayed(TopK(k=2, categories=_CATEGORIES, epsilon=EPSILON), *DRINKS),
    ),
)
