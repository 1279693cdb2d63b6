# SPDX-License-Identifier: Apache-2.0
import torch

from sfumato.testing import seeded
from sfumato.training import AdaptiveClip, Clipping
from sfumato.training.engine.step.clip_adaptation import ClipAdaptation
from sfumato.training.privacy.clipping import Clipper

ADAPTIVE = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=1e-6))


def adaptation_of(clipping, **options):
    parameters = {"w": torch.zeros(2)}
    clipper = Clipper(clipping, parameters)
    sizes = {"expected_units": 4.0, "sensitivity": 1.0} | options
    return clipper, ClipAdaptation(clipper, parameters, **sizes)


def test_counts_of_pieces_add_up_and_none_changes_before_it_is_set():
    _, adaptation = adaptation_of(ADAPTIVE)
    assert adaptation.plus(None) is None
    adaptation.below = adaptation.plus(torch.tensor([1.5]))
    assert adaptation.plus(torch.tensor([2.0])).tolist() == [3.5] and adaptation.below.tolist() == [1.5]
    assert adaptation.plus(None).tolist() == [1.5]
    adaptation.clear()
    assert adaptation.below is None


def test_thresholds_fall_where_all_units_are_below_and_rise_where_none_is():
    for below, sign in ((2.0, -1), (-2.0, 1)):
        clipper, adaptation = adaptation_of(ADAPTIVE)
        adaptation.below = torch.tensor([below])
        adaptation.update(seeded(0), step=0)
        assert (clipper.thresholds[0] - 1.0) * sign > 0.05


def test_a_step_without_units_counts_none_of_them():
    clipper, adaptation = adaptation_of(ADAPTIVE)
    adaptation.update(seeded(0), step=0)
    assert abs(clipper.thresholds[0] - 1.0) < 1e-4  # a share of one half is the quantile


def test_the_noise_of_the_count_grows_with_what_one_unit_moves():
    adaptive = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=0.1))
    moves = []
    for sensitivity in (1.0, 2.0):
        clipper, adaptation = adaptation_of(adaptive, sensitivity=sensitivity)
        adaptation.update(seeded(0), step=0)
        moves.append(torch.tensor(clipper.thresholds[0]).log())
    assert torch.isclose(moves[1], 2 * moves[0], rtol=1e-4)


def test_fixed_thresholds_do_not_adapt():
    clipper, adaptation = adaptation_of(Clipping(clip_norm=1.0))
    adaptation.below = torch.tensor([2.0])
    adaptation.update(seeded(0), step=0)
    assert clipper.thresholds == [1.0]
