# SPDX-License-Identifier: Apache-2.0
import decimal
import math
from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare, kstest, norm

from sfumato.mechanisms import exact
from sfumato.mechanisms.random import words
from sfumato.testing import seeded

ALPHA = 1e-6
BITS = 128


def probabilities(power: int, spread: float, reach: int) -> np.ndarray:
    """The obvious version: weights of -reach ... reach, normalized."""
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-(np.abs(x) ** power) / spread)
    return weights / weights.sum()


def check_law(drawn: np.ndarray, power: int, spread: float, off: float = 1.0) -> float:
    """Return the p-value of a chi-square test against the law with its scale multiplied by `off`."""
    scale = math.sqrt(spread / 2) if power == 2 else spread
    reach = math.ceil(12 * scale) + 40
    expected = probabilities(power, spread * off**power, 4 * reach)[3 * reach : -3 * reach or None]
    counts = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    keep = expected * drawn.size > 10
    observed = np.append(counts[keep], counts[~keep].sum())
    ideal = np.append(expected[keep], 1 - expected[keep].sum()) * drawn.size
    if ideal[-1] < 1e-6:
        observed, ideal = observed[:-1], ideal[:-1]
    return chisquare(observed, ideal * observed.sum() / ideal.sum()).pvalue


LAWS = [
    (2, Fraction(2) * Fraction(0.7) ** 2),
    (2, Fraction(18)),
    (2, Fraction(2) * Fraction(40.3) ** 2),
    (1, Fraction(1, 2)),
    (1, Fraction(7, 3)),
    (1, Fraction(100.7)),
]


@pytest.mark.parametrize(("power", "spread"), LAWS)
def test_integers_have_the_stated_law(power, spread):
    drawn = exact.integers(400_000, power=power, spread=spread, generator=seeded(1))
    assert check_law(drawn, power, float(spread)) > ALPHA
    assert check_law(drawn, power, float(spread), off=1.05) < ALPHA  # 5% off is caught


@pytest.mark.parametrize("power", [1, 2])
def test_large_scales_are_split_without_changing_the_law(power, monkeypatch):
    monkeypatch.setattr(exact, "_TABLE_SCALE", 4)
    monkeypatch.setattr(exact, "_STEPS", 1)  # coarse steps of 12, so that most proposals meet a real coin
    spread = Fraction(2 * 12**2) if power == 2 else Fraction(12)
    drawn = exact.integers(400_000, power=power, spread=spread, generator=seeded(2))
    assert check_law(drawn, power, float(spread)) > ALPHA
    assert check_law(drawn, power, float(spread), off=1.05) < ALPHA


def test_a_very_large_discrete_gaussian_looks_continuous():
    scale = 2.0**45 + 12345.0
    drawn = exact.integers(100_000, power=2, spread=2 * Fraction(scale) ** 2, generator=seeded(3))
    assert kstest(drawn / scale, norm.cdf).pvalue > ALPHA
    assert kstest(drawn / scale, norm(scale=1.1).cdf).pvalue < ALPHA
    assert abs(np.mean(drawn % 2) - 0.5) < 5 * 0.5 / math.sqrt(100_000)  # the last bit is random, too


@pytest.mark.parametrize(("power", "spread"), LAWS[:5])
@pytest.mark.parametrize("half", [False, True])
def test_borders_enclose_the_true_ones(power, spread, half):
    lower, upper = exact._borders(power, spread, half, BITS)
    context = decimal.Context(prec=120)

    def weight(x: int) -> decimal.Decimal:
        ratio = Fraction(x**power) / spread
        return context.exp(
            context.divide(decimal.Decimal(-ratio.numerator), decimal.Decimal(ratio.denominator))
        )

    reach = len(lower) + 200
    weights = [weight(abs(exact._outcome(i, half))) for i in range(reach)]
    total = Fraction(0)
    running = []
    for w in weights:
        total += Fraction(w)
        running.append(total)
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        assert low <= running[i] / total * 2**BITS <= high
        assert high - low <= 2  # and tightly: to the last bit or so


@pytest.mark.parametrize(("power", "spread"), LAWS)
def test_a_table_decides_only_what_is_certain(power, spread):
    lower, upper = exact._borders(power, spread, False, 192)  # 128 bits beyond the table's
    out = exact._table(power, spread, False).draw(3000, seeded(4))
    for word, outcome in zip(words(3000, seeded(4)).tolist(), out.tolist(), strict=True):
        cell = bisect_right(upper, word << 128)
        assert exact._outcome(cell, False) == outcome
        assert (word + 1) << 128 <= lower[cell]


@pytest.mark.parametrize(("power", "spread"), LAWS)
def test_every_entry_of_the_index_is_right(power, spread):
    table = exact._table(power, spread, False)
    lower, upper = exact._borders(power, spread, False, 192)
    shift = int(table._shift) + 128
    decided = [(i, x) for i, x in enumerate(table._index.tolist()) if x != exact._UNDECIDED]
    assert len(decided) > 0.9 * table._index.size
    for i, outcome in decided:
        cell = bisect_right(upper, i << shift)
        assert exact._outcome(cell, False) == outcome
        assert (i + 1) << shift <= lower[cell]


def test_words_on_a_border_are_sent_to_the_exact_path(monkeypatch):
    table = exact._table(2, Fraction(18), False)
    asked = []
    monkeypatch.setattr(exact, "refine", lambda number, *law, generator: asked.append(number) or 99)
    border = int(table._lower[3])
    on_border = np.array([border, 2**64 - 1], dtype=np.uint64)  # a border, and the open end
    monkeypatch.setattr(exact, "words", lambda count, generator: on_border)
    assert table.draw(2, None).tolist() == [99, 99]
    assert asked == on_border.tolist()


@pytest.mark.parametrize("more", [3, 17])
@pytest.mark.parametrize(("power", "spread", "half"), [(2, Fraction(18), False), (1, Fraction(2), True)])
def test_reading_bits_one_by_one_has_the_stated_law(power, spread, half, more):
    generator = seeded(5)
    drawn = np.array(
        [exact.refine(0, 0, power, spread, half, generator=generator, more=more) for _ in range(6000)]
    )
    if half:  # fold the symmetric law: zero once, others twice
        counts = np.bincount(drawn, minlength=60)[:12]
        ideal = np.exp(-np.arange(60) / 2.0)
        ideal = ideal[:12] / ideal.sum()
        assert chisquare(counts, ideal * counts.sum() / ideal.sum()).pvalue > ALPHA
        assert drawn.min() == 0
    else:
        assert check_law(drawn, power, float(spread)) > ALPHA
        assert check_law(drawn, power, float(spread), off=1.2) < ALPHA


def test_tiny_scales_give_zero_and_do_not_hang():
    assert not exact.integers(1000, power=2, spread=Fraction(1e-12), generator=seeded(6)).any()


@given(st.fractions(min_value=0, max_value=200), st.integers(8, 200))
@settings(max_examples=60, deadline=None)
def test_fixed_point_exponentials_are_right_to_one_unit(rate, point):
    context = decimal.Context(prec=150)
    true = context.exp(context.divide(decimal.Decimal(-rate.numerator), decimal.Decimal(rate.denominator)))
    assert abs(Fraction(exact._exp_fixed(rate, point)) - Fraction(true) * 2**point) <= 1


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(1, 7), Fraction(1), Fraction(3)])
def test_coins_fall_with_the_stated_chance(rate):
    n = 200_000
    heads = exact.bernoulli_exp(np.full(n, float(rate)), lambda i: rate, seeded(7)).sum()
    assert binomtest(int(heads), n, math.exp(-rate)).pvalue > ALPHA
    if rate:
        assert binomtest(int(heads), n, math.exp(-rate) * 0.9).pvalue < ALPHA


def test_close_calls_are_left_to_exact_coins(monkeypatch):
    asked = []
    monkeypatch.setattr(exact, "_coin", lambda number, bits, rate, generator: asked.append(rate) or True)
    close = np.array([int(math.exp(-0.5) * 2**64)], dtype=np.uint64)
    monkeypatch.setattr(exact, "words", lambda count, generator: close)
    assert exact.bernoulli_exp(np.array([0.5]), lambda i: Fraction(1, 2)).tolist() == [True]
    assert asked == [Fraction(1, 2)]


@pytest.mark.parametrize("more", [1, 5, 64])
def test_exact_coins_fall_with_the_stated_chance(more):
    generator = seeded(8)
    heads = sum(exact._coin(0, 0, Fraction(1, 3), generator, more) for _ in range(8000))
    assert binomtest(heads, 8000, math.exp(-1 / 3)).pvalue > ALPHA
    assert binomtest(heads, 8000, math.exp(-1 / 3) * 0.95).pvalue < ALPHA


LOGS = [Fraction(0), Fraction(-1), Fraction(2), Fraction(-1, 3), Fraction(7)]
PARTS = [Fraction(1), Fraction(2), Fraction(1, 2), Fraction(0), Fraction(1, 100)]


@pytest.mark.parametrize("bits", ["many", "few"])
def test_choices_have_the_stated_law(bits):
    ideal = np.array([float(p) * math.exp(x) for x, p in zip(LOGS, PARTS, strict=True)])
    generator = seeded(9)
    if bits == "many":
        drawn = [exact.categorical(LOGS, PARTS, generator) for _ in range(8000)]
    else:
        rates, parts = [7 - x for x in LOGS], [p / 2 for p in PARTS]
        drawn = [exact._categorical_refine(0, 0, rates, parts, generator, 7) for _ in range(8000)]
    counts = np.bincount(drawn, minlength=5)
    assert counts[3] == 0  # no weight, no chance
    keep = ideal > 0
    assert chisquare(counts[keep], ideal[keep] / ideal.sum() * 8000).pvalue > ALPHA
    ideal[2] *= 1.25
    assert chisquare(counts[keep], ideal[keep] / ideal.sum() * 8000).pvalue < ALPHA


def test_choices_survive_huge_differences_of_score():
    logs = [Fraction(10) ** 400, Fraction(0), -(Fraction(10) ** 400)]
    assert exact.categorical(logs, [Fraction(1)] * 3, seeded(10)) == 0


def test_choices_near_a_border_are_left_to_the_exact_path(monkeypatch):
    asked = []
    monkeypatch.setattr(exact, "_categorical_refine", lambda *args: asked.append(args[0]) or 0)
    monkeypatch.setattr(exact, "words", lambda count, generator: np.array([2**63], dtype=np.uint64))
    exact.categorical([Fraction(0), Fraction(0)], [Fraction(1), Fraction(1)])  # the border is at one half
    assert asked == [2**63]


@pytest.mark.parametrize("log", [Fraction(5000), Fraction(10) ** 400])
def test_a_choice_without_weight_has_no_effect_whatever_its_score(log):
    # Warnings are errors here: an overflow that only ties in the data cause would tell of the ties.
    plain = [exact.categorical([Fraction(0), Fraction(1)], [Fraction(1)] * 2, seeded(n)) for n in range(50)]
    for n, chosen in enumerate(plain):
        logs, parts = [Fraction(0), log, Fraction(1)], [Fraction(1), Fraction(0), Fraction(1)]
        assert exact.categorical(logs, parts, seeded(n)) == [0, 2][chosen]


@pytest.mark.parametrize("tiny", [Fraction(1, 2**205), Fraction(3, 10**324), Fraction(1, 10**400)])
def test_weights_too_small_for_floating_point_keep_the_stated_law(tiny):
    # Two cells that are tiny beside a hopeless third: 1 to 3, though float64 may see 1 to 2, or nothing.
    logs, parts = [Fraction(0), Fraction(0), -Fraction(10**6)], [tiny, 3 * tiny, Fraction(1)]
    generator = seeded(11)
    drawn = [exact.categorical(logs, parts, generator) for _ in range(2000)]
    counts = np.bincount(drawn, minlength=3)
    assert counts[2] == 0
    assert binomtest(int(counts[0]), 2000, 0.25).pvalue > ALPHA
    assert binomtest(int(counts[0]), 2000, 0.35).pvalue < ALPHA


def test_weights_that_are_lost_in_the_first_digits_are_looked_at_again():
    rates = [Fraction(0), Fraction(0)]
    for exponent in range(120, 136):  # among them a total that equals its own bound of error
        parts = [Fraction(1, 2**exponent)] * 2
        assert exact._categorical_refine(0, 0, rates, parts, seeded(12)) in (0, 1)


def test_numpy_settings_of_the_caller_do_not_make_choices_raise():
    with np.errstate(all="raise"):
        assert exact.categorical([Fraction(0), Fraction(-744)], [Fraction(1)] * 2, seeded(13)) == 0


def test_weights_that_float64_holds_badly_are_left_to_the_exact_path(monkeypatch):
    asked = []
    monkeypatch.setattr(exact, "_categorical_refine", lambda *args: asked.append(args[0]) or 0)
    monkeypatch.setattr(exact, "words", lambda count, generator: np.array([2**62], dtype=np.uint64))
    unit = Fraction(5e-324)
    exact.categorical([Fraction(0), Fraction(0), -Fraction(10**6)], [9 * unit, unit, Fraction(1)])
    assert asked == [2**62]
