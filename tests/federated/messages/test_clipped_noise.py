# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.testing import seeded

SLACK = 1e-5  # float32 rounding
hostile = st.floats(width=32)  # includes 0, huge, inf and NaN
rows = st.lists(st.tuples(hostile, hostile, hostile), min_size=1, max_size=5)


@given(rows, st.floats(1e-6, 1e6))
def test_no_row_is_longer_than_the_clip_norm(rows, clip_norm):
    clipped = ClippedNoise(noise_multiplier=1.0, clip_norm=clip_norm).clipped(torch.tensor(rows))
    assert clipped.isfinite().all()
    assert (clipped.double().norm(dim=1) <= clip_norm * (1 + SLACK)).all()


@given(rows, st.tuples(hostile, hostile, hostile))
def test_one_row_changes_its_own_release_alone(rows, other):
    noise = ClippedNoise(noise_multiplier=2.0)
    before = noise.release(torch.tensor(rows), generator=seeded(1))
    after = noise.release(torch.tensor([other, *rows[1:]]), generator=seeded(1))
    assert torch.equal(before[1:], after[1:])
    assert (before[0] - after[0]).norm() <= 2 * (1 + SLACK)


def test_short_rows_stay_as_they_are():
    values = torch.tensor([[0.3, 0.4], [0.0, 0.0]])
    assert torch.equal(ClippedNoise(noise_multiplier=1.0).clipped(values), values)


def test_clipping_has_gradients_at_zero():
    values = torch.zeros(2, 3, requires_grad=True)
    ClippedNoise(noise_multiplier=1.0).clipped(values).sum().backward()
    assert torch.equal(values.grad, torch.ones(2, 3))


def test_noise_has_the_stated_size_and_is_fresh():
    noise = ClippedNoise(noise_multiplier=3.0, clip_norm=0.5)
    released = noise.release(torch.zeros(4, 50_000))
    assert released.std(dim=1).sub(1.5).abs().max() < 0.03
    assert torch.corrcoef(released).sub(torch.eye(4)).abs().max() < 0.03


def test_releases_are_priced_under_replace_one_at_twice_the_norm():
    cost = price(ClippedNoise(noise_multiplier=4.0).event(4), delta=1e-5, relation=Relation.REPLACE_ONE)
    # Four releases that move by 2 with noise of 4 are one that moves by 1 with noise of 1.
    assert cost.epsilon == pytest.approx(4.377, abs=1e-3)  # Balle and Wang 2018 at mu = 1


def test_calibrated_noise_meets_its_budget():
    noise = ClippedNoise.calibrated(epsilon=2.0, delta=1e-6, releases=7, clip_norm=0.1)
    cost = price(noise.event(7), delta=1e-6, relation=Relation.REPLACE_ONE)
    assert 1.99 < cost.epsilon <= 2.0 and noise.clip_norm == 0.1


@pytest.mark.parametrize(
    "wrong", [{"noise_multiplier": 0.0}, {"clip_norm": 0.0}, {"clip_norm": math.nan}, {"clip_norm": 1e20}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        ClippedNoise(**{"noise_multiplier": 1.0} | wrong)
