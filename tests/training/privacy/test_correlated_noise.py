# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.audit import Canaries
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    BandedNoise,
    Clipping,
    CorrelatedNoise,
    CyclicBatches,
    DpSgd,
    NoisyStep,
    PoissonSampling,
    ShuffledBatches,
    TrainingRun,
    train,
)

CYCLES = CyclicBatches(batch_size=10, public_size=40)  # four steps each
STEP = NoisyStep(clipping=Clipping(clip_norm=1.0))


def matrix(bands, steps):
    """Return C as a whole matrix."""
    column = BandedNoise(bands=bands).coefficients()
    whole = np.zeros((steps, steps))
    for i, j in itertools.product(range(steps), repeat=2):
        if 0 <= i - j < bands:
            whole[i, j] = column[i - j]
    return whole


def dp_ftrl(bands=3, noise=2.0, steps=9, **options):
    settings = {"step": STEP, "sampling": CYCLES, "relation": "zero-out"} | options
    return DpSgd(noise=[(noise, steps)], correlation=BandedNoise(bands=bands), **settings)


def test_coefficients_are_those_of_the_square_root_of_the_prefix_sum():
    column = BandedNoise(bands=50).coefficients()
    root = matrix(50, 50)
    assert np.allclose(root @ root, np.tril(np.ones((50, 50)))) and (column > 0).all()


@pytest.mark.parametrize(("bands", "steps"), [(1, 4), (1, 9), (2, 5), (3, 9), (5, 13), (9, 9), (20, 13)])
def test_the_sensitivity_is_the_largest_over_all_units(bands, steps):
    whole = matrix(bands, steps)
    by_hand = max(np.linalg.norm(whole[:, start::4].sum(1)) for start in range(4))
    found = BandedNoise(bands=bands).sensitivity(CYCLES, steps=steps)
    assert by_hand <= found <= by_hand * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_contributions_of_other_directions_move_less(seed):
    draws = np.random.default_rng(seed)
    vectors = draws.normal(size=(13, 3))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1.0)
    start, restart = draws.integers(4), draws.integers(13)
    vectors[[t % 4 != start for t in range(13)]] = 0.0
    whole = matrix(6, 13)
    whole[restart:, :restart] = 0.0  # a run that was resumed
    assert np.linalg.norm(whole @ vectors) <= BandedNoise(bands=6).sensitivity(CYCLES, steps=13)


@pytest.mark.parametrize("bands", [1, 2, 5, 12])
def test_the_noise_of_all_steps_is_the_inverse_times_fresh_noise(bands):
    steps, source = 12, CorrelatedNoise(BandedNoise(bands=bands), seeded(1))
    got = []
    for step in range(steps):
        sums = [torch.zeros(4, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)]
        source.add_(sums, stddev=3.0, step=step)
        got.append(torch.cat([part.flatten() for part in sums]).numpy())
    fresh = CorrelatedNoise(BandedNoise(bands=1), seeded(1))
    z = []
    for step in range(steps):
        sums = [torch.zeros(4, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)]
        fresh.add_(sums, stddev=3.0, step=step)
        z.append(torch.cat([part.flatten() for part in sums]).numpy())
    assert np.allclose(np.linalg.solve(matrix(bands, steps), np.array(z)), np.array(got))


def noise_of(source, steps):
    found = []
    for step in steps:
        sums = [torch.zeros(3, dtype=torch.float64)]
        source.add_(sums, stddev=1.0, step=step)
        found.append(sums[0])
    return found


@pytest.mark.parametrize("bands", [1, 2, 4])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 6])
def test_a_step_that_is_computed_again_takes_back_what_was_seen_alone(bands, step):
    """A row decides whether a step is computed again: it must not decide the distribution of noise."""
    steps = list(range(9))
    again = noise_of(CorrelatedNoise(BandedNoise(bands=bands), seeded(1)), steps[: step + 1] + steps[step:])
    once = noise_of(CorrelatedNoise(BandedNoise(bands=bands), seeded(1)), steps)
    assert all(torch.equal(a, b) for a, b in zip(again[:step] + again[step + 1 :], once, strict=True))


def test_after_a_gap_the_correlation_begins_anew():
    late = noise_of(CorrelatedNoise(BandedNoise(bands=4), seeded(1)), [0, 1, 5])
    alone = noise_of(CorrelatedNoise(BandedNoise(bands=4), seeded(1)), [5])
    assert torch.equal(late[2], alone[0])


def test_a_fork_remembers_nothing_and_draws_other_noise():
    source = CorrelatedNoise(BandedNoise(bands=4), seeded(1))
    noise_of(source, [0, 1])
    fork = source.forked("trial", 0)
    first = noise_of(fork, [2])[0]
    assert torch.equal(first, noise_of(source.forked("trial", 0), [2])[0])
    assert not torch.equal(first, noise_of(source, [2])[0])


def test_one_band_costs_what_independent_noise_costs():
    one, none = (
        dp_ftrl(bands=1),
        DpSgd(step=STEP, sampling=CYCLES, noise=[(2.0, 9)], relation=Relation.ZERO_OUT),
    )
    assert one.price(delta=1e-5).epsilon == pytest.approx(none.price(delta=1e-5).epsilon, rel=1e-6)
    assert dp_ftrl(bands=3).price(delta=1e-5).epsilon > none.price(delta=1e-5).epsilon


def test_correlated_noise_hurts_sums_over_steps_less_at_the_same_price():
    """At equal epsilon the last sum of all steps has less noise: what DP-FTRL is for."""

    def spread(bands):
        run = dp_ftrl(bands=bands, steps=32).calibrated(epsilon=1.0, delta=1e-5)
        inverse = np.linalg.inv(matrix(bands, 32))
        return run.noise_multiplier(0) * np.linalg.norm(inverse.sum(0))

    assert spread(4) < 0.8 * spread(1)


def test_a_replaced_unit_costs_twice_the_sensitivity():
    replaced, zeroed = dp_ftrl(noise=4.0, relation="replace-one"), dp_ftrl(noise=2.0)
    assert replaced.price(delta=1e-5).epsilon == pytest.approx(zeroed.price(delta=1e-5).epsilon, rel=1e-6)
    assert price(zeroed.event(), delta=1e-5, relation="zero-out").epsilon > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling": PoissonSampling(sampling_rate=0.1)},
        {"sampling": ShuffledBatches(batch_size=10, public_size=40)},
        {"relation": "add-remove"},
        {"step": NoisyStep(clipping=Clipping(clip_norm=1.0), group_size=2)},
        {"step": NoisyStep(clipping=Clipping(clip_norm=1.0), projections=8)},
        {
            "step": NoisyStep(
                clipping=Clipping(
                    clip_norm=1.0, adaptive=AdaptiveClip(quantile=0.5, count_noise_multiplier=9.0)
                )
            )
        },
    ],
)
def test_what_has_no_proof_is_refused(wrong):
    with pytest.raises(InvalidParameterError):
        dp_ftrl(**wrong)


def test_several_noises_are_refused():
    with pytest.raises(InvalidParameterError):
        DpSgd(
            step=STEP,
            sampling=CYCLES,
            noise=[(2.0, 4), (3.0, 4)],
            relation="zero-out",
            correlation=BandedNoise(bands=2),
        )


def data():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draws)
    return x, (x[:, 0] > 0).long()


def trained(folder, **options):
    torch.manual_seed(0)
    settings = {
        "epsilon": 20.0,
        "delta": 1e-5,
        "steps": 12,
        "sampling": CYCLES,
        "relation": "replace-one",
        "correlation": BandedNoise(bands=4),
        "progress": False,
        "generator": seeded(3),
        "folder": folder,
    }
    return train(nn.Linear(3, 2), data(), **settings | options)


def test_a_run_is_charged_stated_and_loaded_as_what_it_was(tmp_path):
    run = trained(tmp_path / "run")
    assert run.price.epsilon <= 20.0 and "taken back in the next 3 steps" in run.statement()
    assert TrainingRun.load(tmp_path / "run", nn.Linear(3, 2)).mechanism == run.mechanism
    plain = trained(None, correlation=None)
    assert "taken back" not in plain.statement()
    assert run.mechanism.noise_multiplier(0) > plain.mechanism.noise_multiplier(0)


def test_a_resumed_run_keeps_its_price(tmp_path):
    class Stopped(Exception):
        pass

    def schedule(optimizer):
        def factor(step):
            if step == 7 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                raise Stopped
            return 1.0

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    with pytest.raises(Stopped):
        trained(tmp_path / "run", schedule=schedule, checkpoint_every=1)
    run = trained(tmp_path / "run", schedule=schedule, checkpoint_every=1, resume=True)
    assert math.isfinite(run.price.epsilon) and run.history[-1].step == 12


def test_canaries_refuse_correlated_noise():
    with pytest.raises(InvalidParameterError, match="correlated noise"):
        trained(None, audit=Canaries(count=100))
