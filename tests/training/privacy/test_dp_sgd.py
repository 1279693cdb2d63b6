# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from sfumato.accounting.events import JohnsonLindenstraussDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping, CoordinateClipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling, TruncatedPoissonSampling

FLAT = Clipping(clip_norm=1.0)
ADAPTIVE = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=7.0))
RATE = 0.1


def run_of(noise=((2.0, 3),), step=None, relation="add-remove"):
    step = NoisyStep(clipping=FLAT) if step is None else step
    return DpSgd(step=step, sampling=PoissonSampling(sampling_rate=RATE), noise=noise, relation=relation)


def sampled(event):
    return dp.PoissonSampledDpEvent(RATE, event)


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (NoisyStep(clipping=FLAT), dp.GaussianDpEvent(3.0)),
        (NoisyStep(clipping=CoordinateClipping(coordinate_bound=1.0)), dp.GaussianDpEvent(3.0)),
        (NoisyStep(clipping=FLAT, group_size=4), dp.GaussianDpEvent(1.5)),
        (NoisyStep(clipping=FLAT, projections=5), JohnsonLindenstraussDpEvent(3.0, 5)),
        (
            NoisyStep(clipping=ADAPTIVE),
            dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.GaussianDpEvent(7.0)]),
        ),
        # The count of groups gets twice the noise (`Clipper.adapt`), so its event stays the same.
        (
            NoisyStep(clipping=ADAPTIVE, group_size=4),
            dp.ComposedDpEvent([dp.GaussianDpEvent(1.5), dp.GaussianDpEvent(7.0)]),
        ),
    ],
    ids=[
        "flat",
        "coordinate",
        "groups",
        "projections",
        "adaptive",
        "adaptive groups",
    ],
)
def test_a_step_costs_what_its_noise_is_against_what_one_unit_moves(step, wanted):
    assert step.event(3.0) == wanted


@pytest.mark.parametrize("relation", list(Relation))
def test_a_run_is_the_composition_of_its_sampled_steps(relation):
    run = run_of(((2.0, 3), (1.5, 1), (2.0, 2)), relation=relation)
    steps = [2.0] * 3 + [1.5] + [2.0] * 2
    wanted = dp.ComposedDpEvent([sampled(dp.GaussianDpEvent(noise)) for noise in steps])
    got = run.price(delta=1e-5).epsilon
    assert got == pytest.approx(price(wanted, delta=1e-5, relation=relation).epsilon, rel=1e-3)
    assert run.steps == 6 and [run.noise_multiplier(i) for i in range(6)] == steps


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0]), st.integers(1, 4)), min_size=1, max_size=4), st.data())
def test_the_first_steps_of_a_run_are_its_first_steps(noise, data):
    run = run_of(noise)
    count = data.draw(st.integers(1, run.steps))
    first = run.first(count)
    assert first.steps == count
    assert [first.noise_multiplier(i) for i in range(count)] == [
        run.noise_multiplier(i) for i in range(count)
    ]


def test_there_is_no_step_after_the_last():
    with pytest.raises(InvalidParameterError, match=r"has 3 steps; there is no step 4"):
        run_of().noise_multiplier(4)


def test_scaling_multiplies_all_noise():
    assert run_of(((2.0, 3), (4.0, 1))).scaled(1.5).noise == ((3.0, 3), (6.0, 1))


def test_calibrated_noise_meets_the_budget_and_little_less_does_not():
    run = run_of(((1.0, 10), (2.0, 10))).calibrated(epsilon=1.0, delta=1e-5)
    assert run.price(delta=1e-5).epsilon <= 1.0
    assert run.scaled(0.98).price(delta=1e-5).epsilon > 1.0
    assert run.noise[1][0] == pytest.approx(2 * run.noise[0][0])


def test_a_run_stops_before_the_step_that_would_exceed_the_budget():
    run = run_of(((1.0, 300),))
    stopped = run.stopped(epsilon=2.0, delta=1e-5)
    assert stopped.price(delta=1e-5).epsilon <= 2.0
    assert run.first(stopped.steps + 1).price(delta=1e-5).epsilon > 2.0
    assert run.stopped(epsilon=1e3, delta=1e-5) is run


def test_what_was_spent_before_counts():
    given_before = dp.GaussianDpEvent(1.0)
    run = run_of()
    together = price(dp.ComposedDpEvent([given_before, run.event()]), delta=1e-5, relation="add-remove")
    assert run.price(delta=1e-5, given=given_before).epsilon == pytest.approx(together.epsilon)


@pytest.mark.parametrize("noise", [(), ((0.0, 3),), ((math.nan, 3),), ((1.0, 0),), ((1.0, 1.5),)])
def test_a_run_without_noise_or_steps_is_refused(noise):
    with pytest.raises(InvalidParameterError):
        run_of(noise)


@pytest.mark.parametrize("options", [{"group_size": 0}, {"group_size": 1.5}, {"projections": 0}])
def test_a_step_with_wrong_numbers_is_refused(options):
    with pytest.raises(InvalidParameterError):
        NoisyStep(clipping=FLAT, **options)


def test_projections_have_no_use_for_coordinates():
    with pytest.raises(InvalidParameterError, match=r"Clip by norm"):
        NoisyStep(clipping=CoordinateClipping(coordinate_bound=1.0), projections=3)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ({"clipping": Clipping(clip_norm=1.0, per_layer=True)}, "layer on its own"),
        ({"clipping": Clipping(layer_norms={"a": 1.0, "b": 2.0})}, "layer on its own"),
        ({"clipping": FLAT, "group_size": 2}, "estimated once with a unit in it and once without"),
    ],
    ids=["per layer", "layer norms", "groups"],
)
def test_projections_with_several_estimates_for_one_unit_are_refused(refused, why):
    with pytest.raises(InvalidParameterError, match=why):
        NoisyStep(**refused, projections=1)


def test_projections_beside_an_adaptive_clip_are_priced_with_the_count():
    step = NoisyStep(clipping=ADAPTIVE, projections=5)
    assert step.event(3.0) == dp.ComposedDpEvent(
        [JohnsonLindenstraussDpEvent(3.0, 5), dp.GaussianDpEvent(7.0)]
    )
    alone = run_of(step=NoisyStep(clipping=FLAT, projections=5)).price(delta=1e-5)
    assert run_of(step=step).price(delta=1e-5).epsilon > alone.epsilon


@pytest.mark.parametrize("layers", [1, 16])
def test_estimated_norms_of_many_layers_exceed_the_bound_far_more_than_one_estimate(layers):
    """Draw what the refusal is about: the bound on a contribution, from one projection a layer."""
    draws = np.random.default_rng(0).standard_normal((100_000, layers))
    moved = np.sqrt((1 / (layers * draws**2)).sum(1))  # layers have equal shares of the clip norm
    one_estimate = 1 - 2 * norm.sf(0.1)  # the chance that one exceeds ten times the clip norm
    seen = binomtest(int((moved > 10).sum()), len(draws)).proportion_ci(1 - 1e-6)
    assert (seen.low > 3 * one_estimate) == (layers == 16)
    assert (seen.low <= one_estimate <= seen.high) == (layers == 1)


def test_a_run_does_not_change_with_the_list_it_was_made_from():
    given = [(2.0, 3)]
    run = run_of(given)
    before = run.event(), run.price(delta=1e-5).epsilon
    given[0] = (200.0, 1)
    given.append((1.0, 1))
    assert (run.event(), run.price(delta=1e-5).epsilon) == before and run.steps == 3


class Summed:
    """A sum with noise of its own: half of what the multiplier says."""

    clip_norm, cohort = 1.0, 20

    def event_at(self, noise_multiplier):
        return dp.GaussianDpEvent(noise_multiplier / 2)

    def scaled(self, noise_multiplier):
        return self

    def statement(self, noise_multiplier):
        return "Noise was"


def test_a_sum_with_noise_of_its_own_is_priced_by_its_own_event():
    step = NoisyStep(clipping=FLAT, summation=Summed())
    assert step.event(3.0) == dp.GaussianDpEvent(1.5)
    assert run_of(step=step).event() == dp.SelfComposedDpEvent(sampled(dp.GaussianDpEvent(1.0)), 3)
    plain = run_of().calibrated(epsilon=1.0, delta=1e-5).noise_multiplier(0)
    twice = run_of(step=step).calibrated(epsilon=1.0, delta=1e-5).noise_multiplier(0)
    assert twice == pytest.approx(2 * plain, rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"clipping": Clipping(clip_norm=2.0)},
        {"clipping": ADAPTIVE},
        {"clipping": Clipping(clip_norm=1.0, per_layer=True)},
        {"clipping": CoordinateClipping(coordinate_bound=1.0)},
        {"group_size": 2},
        {"projections": 3},
    ],
)
def test_a_sum_with_noise_of_its_own_has_one_fixed_norm(options):
    with pytest.raises(InvalidParameterError):
        NoisyStep(**{"clipping": FLAT, "summation": Summed(), **options})


def test_batches_larger_than_a_sum_has_room_for_are_refused():
    step = NoisyStep(clipping=FLAT, summation=Summed())
    for size, fits in ((20, True), (21, False)):
        sampling = TruncatedPoissonSampling(sampling_rate=RATE, batch_size=size, public_size=100)
        facts = {"step": step, "sampling": sampling, "noise": [(1.0, 1)], "relation": "add-remove"}
        if fits:
            DpSgd(**facts)
        else:
            with pytest.raises(InvalidParameterError, match="cohort=20"):
                DpSgd(**facts)
