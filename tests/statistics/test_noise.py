# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from scipy.stats import kstest, laplace, norm

from sfumato.accounting import composition
from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import Gaussian
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.testing import seeded

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ALPHA = 1e-6


def noise(**changes) -> WholeNoise:
    plain = {
        "epsilon": 0.5, "delta": 0.0, "relation": ADD, "kind": Kind.COUNTS,
        "l1_sensitivity": 1, "l2_sensitivity": 1.0, "coordinates": 1,
    }  # fmt: skip
    return WholeNoise(**(plain | changes))


@pytest.mark.parametrize("relation", [ADD, REPLACE], ids=str)
@pytest.mark.parametrize("reach", [1, 2, 7, 2**21])
def test_pure_noise_costs_its_epsilon(relation, reach):
    event = noise(l1_sensitivity=reach, relation=relation).event()
    spent = composition.basic_epsilon(event, delta=0.0, relation=relation)
    assert spent == pytest.approx(0.5, rel=1e-9)
    # Under replacement an odd sensitivity is charged as the next even one, and gets that noise.
    even = reach + reach % 2 if relation is REPLACE else reach
    assert noise(l1_sensitivity=reach, relation=relation).law.scale == pytest.approx(even / 0.5)


@pytest.mark.parametrize("relation", [ADD, REPLACE], ids=str)
@pytest.mark.parametrize("kind", list(Kind), ids=str)
@pytest.mark.parametrize("coordinates", [1, 3])
def test_gaussian_noise_costs_its_epsilon_at_its_delta(relation, kind, coordinates):
    made = noise(
        delta=1e-6,
        relation=relation,
        kind=kind,
        coordinates=coordinates,
        l1_sensitivity=3,
        l2_sensitivity=2.0,
    )
    spent = price(made.event(), delta=1e-6, relation=relation).epsilon
    assert 0.5 * (1 - 1e-3) < spent <= 0.5 * (1 + 1e-9)


def test_the_events_name_their_noise():
    assert noise().event() == dp.DiscreteLaplaceDpEvent(0.5, 1)
    counts = noise(delta=1e-6, relation=REPLACE, coordinates=2, l2_sensitivity=math.sqrt(2)).event()
    assert isinstance(counts, UnsampledDpEvent)
    assert isinstance(counts.event, DiscreteGaussianDpEvent)
    assert (counts.event.sensitivity, counts.event.dimension) == (math.sqrt(2) / 2, 2)
    assert isinstance(noise(delta=1e-6, kind=Kind.STEPS).event(), dp.GaussianDpEvent)


@pytest.mark.parametrize("parts", [(1, 1), (1, 2), (1, 1, 1, 1), (3, 1)])
@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_a_move_spread_over_several_numbers_costs_no_more_than_one_of_one_number(parts, scale):
    spread = compose(*(dp.DiscreteLaplaceDpEvent(1 / scale, part) for part in parts))
    at_once = dp.DiscreteLaplaceDpEvent(1 / scale, sum(parts))
    for delta in (0.3, 0.1, 1e-2, 1e-4, 1e-9):
        assert price(spread, delta=delta).epsilon <= price(at_once, delta=delta).epsilon * (1 + 1e-4)


def test_the_noise_has_its_law_on_every_number():
    for made, law, wrong in [
        (noise(l1_sensitivity=1000), laplace(scale=2000), laplace(scale=2300)),
        (noise(l2_sensitivity=1000.0, delta=1e-6), None, None),
        (noise(l2_sensitivity=1000.0, delta=1e-6, kind=Kind.STEPS), None, None),
    ]:
        size = 20_000 if made.kind is Kind.COUNTS else 8000
        drawn = made.add(np.full(size, 5), generator=seeded(1)) - 5
        right = law or norm(scale=made.law.stddev)
        off = wrong or norm(scale=made.law.stddev * 1.15)
        assert kstest(drawn, right.cdf).pvalue > ALPHA
        assert kstest(drawn, off.cdf).pvalue < ALPHA


def test_noise_is_secure_and_fresh_unless_seeded():
    made = noise(epsilon=0.001)
    assert made.add([1, 2]).tolist() != made.add([1, 2]).tolist()
    assert made.add([1, 2], generator=seeded(3)).tolist() == made.add([1, 2], generator=seeded(3)).tolist()


def test_numbers_beyond_62_bits_are_clamped_not_wrapped():
    assert noise().add([2**63 - 1], generator=seeded(0))[0] == pytest.approx(2.0**62)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 10**30])
def test_steps_beyond_what_float64_holds_are_clamped_before_gaussian_noise(number, monkeypatch):
    given = []
    monkeypatch.setattr(
        Gaussian, "release", lambda self, value, *, generator=None: given.append(value) or 0.0
    )
    noise(delta=1e-6, kind=Kind.STEPS).add([number, -number])
    assert given == [2**53, -(2**53)]


def test_integers_of_any_size_are_clamped_before_laplace_noise():
    assert noise().add([10**30, -(10**30)], generator=seeded(0)) == pytest.approx([2.0**62, -(2.0**62)])


def test_counts_of_a_replaced_unit_never_point_the_same_way():
    assert l2_of_counts(3, ADD) == 3
    assert l2_of_counts(3, REPLACE) == pytest.approx(3 * math.sqrt(2))
    worst = max(math.hypot(a - b, (3 - a) - (3 - b)) for a in range(4) for b in range(4))
    assert worst == pytest.approx(l2_of_counts(3, REPLACE))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [(f, w) for f in ("epsilon", "l2_sensitivity") for w in (0.0, -1.0, math.nan, math.inf)]
    + [(f, w) for f in ("l1_sensitivity", "coordinates") for w in (0, -1, 1.5)]
    + [("delta", w) for w in (-0.1, 1.0, math.nan)]
    + [("relation", "add-remove")],
)
def test_parameters_that_make_no_sense_are_refused(field, wrong):
    with pytest.raises(InvalidParameterError, match=field):
        noise(**{field: wrong})
