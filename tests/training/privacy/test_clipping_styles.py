# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from dp_accounting import dp_event as dp

from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.clipping_styles import (
    AdaptiveClip,
    Clipping,
    CoordinateClipping,
    Scaling,
    one_clipping,
)

NAMES = ["a.weight", "a.bias", "b.weight"]


def test_only_an_adaptive_style_costs_more_than_its_sum():
    noisy_sum = dp.GaussianDpEvent(2.0)
    fixed = (
        Clipping(clip_norm=1.0),
        Clipping(clip_norm=1.0, per_layer=True),
        CoordinateClipping(coordinate_bound=1.0),
    )
    assert all(style.event(noisy_sum) == noisy_sum for style in fixed)
    adaptive = Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=3.0))
    assert adaptive.event(noisy_sum) == dp.ComposedDpEvent([noisy_sum, dp.GaussianDpEvent(3.0)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either clip_norm or layer_norms"),
        ({"clip_norm": 1.0, "layer_norms": {"a": 1.0}}, "either clip_norm or layer_norms"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clip_norm": 1e-20}, "clip_norm must be at least 1e-12.*vanish"),
        ({"layer_norms": {"a": -1.0}}, r"layer_norms\['a'\]"),
        ({"clip_norm": 1.0, "drop_above": 2.0}, "no other scaling takes it"),
        ({"clip_norm": 1.0, "scaling": Scaling.GLOBAL}, "needs drop_above"),
        ({"clip_norm": 1.0, "scaling": Scaling.GLOBAL, "drop_above": 1e-20}, "drop_above must be at least"),
    ],
)
def test_a_style_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        Clipping(**options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CoordinateClipping(coordinate_bound=0.0),
        lambda: AdaptiveClip(count_noise_multiplier=0.0),
        lambda: AdaptiveClip(count_noise_multiplier=1.0, quantile=1.5),
        lambda: AdaptiveClip(count_noise_multiplier=1.0, learning_rate=math.nan),
    ],
)
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(InvalidParameterError):
        make()


def test_layer_norms_must_name_every_layer():
    with pytest.raises(InvalidParameterError, match=r"\['a', 'b'\], but it names \['a', 'c'\]"):
        Clipping(layer_norms={"a": 1.0, "c": 1.0}).thresholds(NAMES)


def test_layers_share_the_clip_norm_so_that_the_whole_bound_is_kept():
    style = Clipping(clip_norm=2.0, per_layer=True)
    assert style.groups(NAMES) == [["a.weight", "a.bias"], ["b.weight"]]
    assert math.hypot(*style.thresholds(NAMES)) == pytest.approx(2.0) and style.bound(NAMES) == 2.0
    own = Clipping(layer_norms={"a": 3.0, "b": 4.0})
    assert own.thresholds(NAMES) == [3.0, 4.0] and own.bound(NAMES) == 5.0


def test_a_share_too_small_to_clip_at_is_refused():
    with pytest.raises(InvalidParameterError, match="share of clip_norm"):
        Clipping(clip_norm=1.1e-12, per_layer=True).thresholds(NAMES)


def test_layer_norms_are_a_copy_that_cannot_be_changed():
    given = {"a": 1.0}
    style = Clipping(layer_norms=given)
    given["a"] = 100.0
    assert style.layer_norms == {"a": 1.0}
    with pytest.raises(TypeError, match="cannot be changed"):
        style.layer_norms["a"] = 100.0


def test_exactly_one_of_norm_and_style_states_the_clipping():
    style = CoordinateClipping(coordinate_bound=1.0)
    assert one_clipping(None, style) is style and one_clipping(2.0, None) == Clipping(clip_norm=2.0)
    for norm, other in ((None, None), (1.0, style)):
        with pytest.raises(InvalidParameterError, match="either clip_norm or clipping"):
            one_clipping(norm, other)
