# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest, norm

from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent, check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.discrete import GridGaussian, Rounded, discrete_gaussian, discrete_laplace, quantize
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def mechanism(**changes) -> GridGaussian:
    plain = {"clip_norm": 1.0, "granularity": 2.0**-4, "stddev": 2.0, "dimension": 3, "relation": ADD}
    return GridGaussian(**(plain | changes))


def unnoised(grid: GridGaussian, rows: np.ndarray) -> torch.Tensor:
    """The sum in grid steps that the mechanism adds noise to."""
    clipped = grid._clipped(torch.from_numpy(rows))
    if grid.rounded is Rounded.SUM:
        return quantize(clipped.sum(0), granularity=grid.granularity)
    return quantize(clipped, granularity=grid.granularity).sum(0)


any_float = st.floats(width=64)  # includes 0, huge, inf and NaN
row_sets = st.integers(1, 6).flatmap(
    lambda d: st.tuples(
        arrays(np.float64, st.tuples(st.integers(0, 5), st.just(d)), elements=st.floats(-2, 2)),
        arrays(np.float64, (1, d), elements=st.one_of(st.floats(-2, 2), any_float)),
        arrays(np.float64, (1, d), elements=st.one_of(st.floats(-2, 2), any_float)),
    )
)


@given(row_sets, st.sampled_from(list(Relation)), st.sampled_from(list(Rounded)), st.integers(-6, 1))
@settings(max_examples=300, deadline=None)
def test_a_neighbor_moves_the_rounded_sum_by_at_most_the_stated_sensitivity(
    sets, relation, rounded, exponent
):
    rows, one, other = sets
    grid = mechanism(dimension=rows.shape[1], relation=relation, rounded=rounded, granularity=2.0**exponent)
    with_unit = np.concatenate([rows, one])
    neighbor = np.concatenate([rows, other]) if relation.replaces else rows
    moved = (unnoised(grid, with_unit) - unnoised(grid, neighbor)).double().norm().item()
    assert moved <= relation.diameter * grid.sensitivity_steps


def test_the_stated_sensitivity_of_a_rounded_sum_is_reached():
    # One sum just below the middle between grid points, one just above, in every coordinate.
    grid = mechanism(dimension=4, granularity=1.0, clip_norm=2e-6, rounded=Rounded.SUM, stddev=1.0)
    base = np.full((1, 4), 0.4999999)
    step = np.full((1, 4), 2e-7)
    before = quantize(torch.from_numpy(base), granularity=1.0)
    after = quantize(torch.from_numpy(base + step), granularity=1.0)
    assert (after - before).double().norm().item() == 2.0  # sqrt(d)
    assert 2.0 <= grid.sensitivity_steps < 2.0 + 1e-5


def test_the_stated_sensitivity_of_rounded_contributions_is_reached():
    grid = mechanism(dimension=4, granularity=1.0, clip_norm=1.0, stddev=1.0)
    row = np.full((1, 4), 0.5 + 1e-9)  # of norm 1 and a little, clipped to 1/2 each, which rounds to even: 0
    assert unnoised(grid, row).tolist() == [0, 0, 0, 0]
    grid = mechanism(dimension=4, granularity=1.0, clip_norm=1.0 + 1e-6, stddev=1.0)
    assert unnoised(grid, row).double().norm().item() == 2.0  # clip_norm + sqrt(d)/2
    assert 2.0 <= grid.sensitivity_steps < 2.0 + 1e-5


@pytest.mark.parametrize(
    ("relation", "rounded", "extra"),
    [
        (ADD, Rounded.CONTRIBUTIONS, math.sqrt(3) / 2),
        (REPLACE, Rounded.CONTRIBUTIONS, math.sqrt(3) / 2),
        (ADD, Rounded.SUM, math.sqrt(3)),
        (REPLACE, Rounded.SUM, math.sqrt(3) / 2),
    ],
)
def test_the_event_states_noise_and_contribution_in_grid_steps(relation, rounded, extra):
    event = mechanism(relation=relation, rounded=rounded).event()
    check(event)
    if relation.replaces and rounded is Rounded.SUM:
        assert isinstance(event, UnsampledDpEvent)
        event = event.event
    assert event == DiscreteGaussianDpEvent(32.0, pytest.approx(16 + extra), 3)
    assert event.sensitivity >= 16 + extra


@pytest.mark.parametrize("rounded", list(Rounded))
def test_a_release_is_the_clipped_sum_plus_noise_on_the_grid(rounded):
    grid = mechanism(rounded=rounded, dimension=20_000, stddev=0.5, granularity=2.0**-6)
    rows = torch.zeros(3, 20_000)
    rows[0, 0] = 50.0  # clipped to 1
    rows[1, 0] = 0.25
    rows[2] = torch.nan
    out = grid.release(rows, generator=seeded(1))
    assert out.dtype == torch.float64
    assert torch.equal(out * 2**6, (out * 2**6).round())
    assert abs(out[0] - 1.25) < 5 * 0.5
    assert kstest(out[1:].numpy(), norm(scale=0.5).cdf).pvalue > ALPHA
    assert kstest(out[1:].numpy(), norm(scale=0.55).cdf).pvalue < ALPHA
    assert torch.equal(out, grid.release(rows, generator=seeded(1)))
    assert not torch.equal(grid.release(rows), grid.release(rows))


def test_no_units_give_noise_alone():
    assert mechanism().release(torch.zeros(0, 3), generator=seeded(2)).shape == (3,)


def test_clipping_keeps_direction_and_short_rows():
    grid = mechanism(granularity=2.0**-20)
    rows = np.array([[3.0, 0.0, 4.0], [0.25, 0.5, 0.0], [1e300, 0.0, 0.0], [0.0, 0.0, 0.0]])
    clipped = grid._clipped(torch.from_numpy(rows))
    expected = torch.tensor([[0.6, 0, 0.8], [0.25, 0.5, 0], [1.0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    assert torch.allclose(clipped, expected, atol=1e-12)


def test_a_rounded_sum_needs_a_mechanism_charged_for_it():
    total = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(InvalidParameterError, match=r"rounded=Rounded\.SUM"):
        mechanism().release_sum(total)
    assert mechanism(rounded=Rounded.SUM).release_sum(total).shape == (3,)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300])
def test_a_sum_that_is_not_finite_or_far_too_large_is_refused_without_being_shown(wrong):
    total = torch.tensor([0.0, wrong, 0.0], dtype=torch.float64)
    with pytest.raises(InvalidParameterError, match="nothing was released") as error:
        mechanism(rounded=Rounded.SUM).release_sum(total)
    assert str(wrong) not in str(error.value)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (1, 2, 3)])
def test_contributions_of_another_shape_are_refused(shape):
    with pytest.raises(InvalidParameterError, match="shape"):
        mechanism().release(torch.zeros(shape))


@given(arrays(np.float64, 5, elements=st.floats(-1e6, 1e6)), st.integers(-20, 10))
def test_quantizing_moves_each_number_by_at_most_half_a_step(values, exponent):
    step = 2.0**exponent
    back = quantize(torch.from_numpy(values), granularity=step).double().numpy() * step
    assert np.abs(back - values).max() <= step / 2


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 0.1, 3.0])
def test_granularity_must_be_a_power_of_two(wrong):
    for call in (lambda: quantize(torch.zeros(1), granularity=wrong), lambda: mechanism(granularity=wrong)):
        with pytest.raises(InvalidParameterError, match="granularity must be"):
            call()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [(f, w) for f in ("clip_norm", "stddev") for w in (0.0, -1.0, math.nan, math.inf, 1e30)]
    + [
        ("stddev", 1e-30),
        ("dimension", 0),
        ("dimension", 1.5),
        ("relation", "add-remove"),
        ("rounded", "sum"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(field, wrong):
    with pytest.raises(InvalidParameterError, match=field):
        mechanism(**{field: wrong})


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 2.0**51])
def test_noise_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match="stddev must be"):
        discrete_gaussian((1,), stddev=wrong)
    with pytest.raises(InvalidParameterError, match="scale must be"):
        discrete_laplace((1,), scale=wrong)


def test_discrete_noise_has_its_shape_and_can_be_empty():
    assert discrete_gaussian((2, 3), stddev=5.0, generator=seeded(3)).shape == (2, 3)
    assert discrete_laplace((0,), scale=5.0).numel() == 0


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.complex128]
)
def test_a_sum_that_was_not_added_up_exactly_enough_is_refused(dtype):
    with pytest.raises(InvalidParameterError, match="float64 or of integers"):
        mechanism(rounded=Rounded.SUM).release_sum(torch.zeros(3).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.uint8])
def test_a_sum_in_float64_or_integers_is_released(dtype):
    total = torch.tensor([1, 200, 3]).to(dtype)
    noisy = mechanism(rounded=Rounded.SUM).release_sum(total, generator=seeded(5))
    assert (noisy - torch.tensor([1.0, 200.0, 3.0])).abs().max() < 20  # 10 stddevs


def test_one_unit_moves_a_float32_sum_by_more_than_its_norm():
    # Why float32 is refused: the unit pushes the sum past 2^24, from where on ones are rounded away.
    def total(*unit: float) -> float:
        ones = np.ones(1000, dtype=np.float32)
        start = np.array([2.0**24, *unit], dtype=np.float32)
        return float(np.cumsum(np.concatenate([start, ones, -ones]), dtype=np.float32)[-1])

    assert total(1.5) - total() > 100


@pytest.mark.parametrize("wrong", [[[1.0, 2.0, 3.0]], "secret", None, np.zeros((1, 3))])
def test_contributions_and_sums_must_be_tensors(wrong):
    for call in (mechanism().release, mechanism(rounded=Rounded.SUM).release_sum):
        with pytest.raises(InvalidParameterError, match="nothing was released") as error:
            call(wrong)
        assert "secret" not in str(error.value)


def test_complex_contributions_are_refused():
    with pytest.raises(InvalidParameterError, match="real numbers"):
        mechanism().release(torch.zeros(1, 3, dtype=torch.complex64))


def test_integers_that_float64_cannot_hold_are_refused():
    with pytest.raises(InvalidParameterError, match="does not hold"):
        quantize(torch.tensor([2**53 + 1]), granularity=4.0)
    assert quantize(torch.tensor([2**53 - 4]), granularity=4.0).tolist() == [2**51 - 1]


def test_an_audit_of_the_grid_stays_below_the_claim_and_catches_weak_noise(epsilon_lower_bound):
    # One coordinate, one unit: many independent coordinates stand for many runs of it.
    trials, delta = 200_000, 0.1

    def audit(stddev: float, seed: int) -> float:
        many = mechanism(dimension=trials, granularity=1.0, stddev=stddev, rounded=Rounded.SUM)
        generator = seeded(seed)
        with_unit = many.release_sum(torch.ones(trials, dtype=torch.float64), generator=generator) >= 2
        without = many.release_sum(torch.zeros(trials, dtype=torch.float64), generator=generator) >= 2
        return epsilon_lower_bound(int(with_unit.sum()), int(without.sum()), trials, delta)

    x = np.arange(-60, 61)
    weights = np.exp(-(x**2) / 2.0)
    law = weights / weights.sum()
    grid = np.linspace(0, 5, 5001)
    deltas = np.array([np.maximum(np.roll(law, 1) - math.exp(e) * law, 0).sum() for e in grid])
    claim = grid[np.argmax(deltas <= delta)]
    assert 0.8 * claim < audit(1.0, 4) <= claim
    assert audit(0.85, 5) > claim
