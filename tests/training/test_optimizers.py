# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import AdaptiveClip, Clipping, CoordinateClipping, train
from sfumato.training.privacy.clipping import Clipper

from .gradients import private_gradients

FLOOR = 1e-12
X, Y = torch.zeros(40, 3), torch.zeros(40, dtype=torch.int64)


def itself(model, rows):
    """Return a loss whose gradient at each row is that row."""
    return model(rows)[:, 0]


def private_of(clipping, **options):
    model = nn.Linear(3, 1, bias=False)
    sizes = {"noise_multiplier": 1.0, "expected_batch_size": 1.0, "generator": seeded(0)}
    return model, private_gradients(model, itself, clipping=clipping, **(sizes | options))


def released(model, private, row):
    private.backward(row)
    return model.weight.grad.clone()


@pytest.mark.parametrize("factor", [1e-13, 1e-20, 1e-30])
def test_a_factor_that_takes_a_threshold_below_the_floor_is_refused(factor):
    _, private = private_of(Clipping(clip_norm=1.0))
    with pytest.raises(InvalidParameterError, match=r"at least 1e-12.*Multiply the loss and the threshold"):
        private.scale_clipping(factor)
    assert private.bound == 1.0  # and nothing was changed


@pytest.mark.parametrize("factor", [FLOOR, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("length", [1e-25, 1e-20, 1e-13, 1.0, 1e10])
@pytest.mark.parametrize("engine", ["functional", "book-keeping"])
def test_a_contribution_stays_within_the_bound_at_every_factor_that_is_allowed(factor, length, engine):
    row, options = torch.full((1, 3), length / 3**0.5), {"noise_multiplier": 1e-3, "engine": engine}
    with_row, without = (private_of(Clipping(clip_norm=1.0), **options) for _ in range(2))
    for _, private in (with_row, without):
        private.scale_clipping(factor)
    moved = released(*with_row, row) - released(*without, torch.zeros(1, 3))
    assert moved.norm() <= factor * (1 + 1e-3)


def test_shares_of_layers_and_layers_of_their_own_must_be_above_the_floor_too():
    names = [f"layer{i}.weight" for i in range(100)]
    with pytest.raises(InvalidParameterError, match="share of clip_norm"):
        Clipping(clip_norm=5e-12, per_layer=True).thresholds(names)
    clipper = Clipper(
        Clipping(layer_norms={"a": 1.0, "b": 1e-6}), {"a.w": torch.ones(1), "b.w": torch.ones(1)}
    )
    assert clipper.scaled(1e-6) == pytest.approx([1e-6, 1e-12])
    with pytest.raises(InvalidParameterError, match="at least 1e-12"):
        clipper.scaled(9e-7)


@pytest.mark.parametrize("thresholds", [[1e-13], [0.0], [-1.0], [float("nan")], [float("inf")]])
def test_a_checkpoint_cannot_bring_a_threshold_that_does_not_clip(thresholds):
    clipper = Clipper(Clipping(clip_norm=1.0), {"w": torch.ones(3)})
    with pytest.raises(InvalidParameterError, match="a clip threshold must be"):
        clipper.load_state_dict({"thresholds": thresholds})
    assert clipper.thresholds == [1.0]


@pytest.mark.parametrize(
    ("clipping", "schedule", "why"),
    [
        (Clipping(clip_norm=1.0), lambda step: 1.0 if step < 3 else 1e-13, "at least 1e-12"),
        (Clipping(clip_norm=1.0), lambda step: 1e-13, "at least 1e-12"),
        (Clipping(clip_norm=1e300), lambda step: 1e300, "finite"),
        (
            Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=4.0)),
            lambda step: 1.0,
            "fixed",
        ),
        (CoordinateClipping(coordinate_bound=1.0), lambda step: 1.0, "fixed clip norm"),
    ],
    ids=["last step", "every step", "overflow", "adaptive", "coordinates"],
)
def test_a_schedule_that_cannot_be_is_refused_before_anything_is_charged(clipping, schedule, why, tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    account = ledger.open("data", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5))
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidParameterError, match=why):
        train(
            model,
            (X, Y),
            public_size=40,
            expected_batch_size=4,
            steps=4,
            noise_multiplier=2.0,
            clipping=clipping,
            clip_schedule=schedule,
            account=account,
            purpose="a schedule",
            generator=seeded(0),
        )
    assert account.releases() == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_norms_of_layers_cannot_be_changed_after_they_were_given():
    given = {"a": 1.0}
    clipping = Clipping(layer_norms=given)
    given["a"] = 100.0
    assert clipping.thresholds(["a.weight"]) == [1.0] and repr(clipping.layer_norms) == "{'a': 1.0}"
    for change in (
        lambda norms: norms.update(a=100.0),
        lambda norms: norms.__setitem__("a", 100.0),
        lambda norms: norms.pop("a"),
        lambda norms: norms.setdefault("b", 1.0),
        lambda norms: norms.clear(),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change(clipping.layer_norms)
    assert copy.deepcopy(clipping) == pickle.loads(pickle.dumps(clipping)) == clipping


@pytest.mark.parametrize("given", [3, "adam", lambda parameters: 3, lambda parameters: None])
def test_what_is_no_optimizer_is_refused_in_words(given):
    with pytest.raises(
        InvalidParameterError, match="must be a torch optimizer, or a function that makes one"
    ):
        train(nn.Linear(3, 2), (X, Y), public_size=40, epsilon=1, delta=1e-3, epochs=1, optimizer=given)
