# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError, NotPrivateError, SfumatoError, UnsupportedUseError
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    Contributor,
    PassSettings,
    PoissonSampling,
    PrivateGradients,
    Runtime,
    TruncatedPoissonSampling,
    train,
)
from sfumato.training.engine.contributions import NoisySummer, NoisySumPasses, require_room, summation_of

TINY_NOISE = 1e-9


class Fixed:
    """Gives unit i the vector of its number."""

    def __init__(self, vectors, dtype=torch.float32):
        self.vectors = torch.as_tensor(vectors, dtype=dtype)
        self.steps = []

    def __repr__(self):
        return f"Fixed({len(self.vectors)})"

    def statement(self):
        return "What is called a gradient is a fixed vector."

    def contributions(self, model, batch, *, step):
        self.steps.append(step)
        return {"weight": self.vectors[batch[0]][:, None]}


class Dying(Fixed):
    def contributions(self, model, batch, *, step):
        if step == 3:
            raise KeyboardInterrupt
        return super().contributions(model, batch, step=step)


def gradients_of(contributor, **options):
    model = nn.Linear(2, 1, bias=False)
    private = PrivateGradients(
        model,
        noise_multiplier=TINY_NOISE,
        expected_batch_size=1.0,
        passes=PassSettings(engine=contributor, **options),
        clipping=Clipping(clip_norm=1.0),
        generator=seeded(0),
    )
    return model, private


def test_contributions_are_clipped_and_added_up():
    model, private = gradients_of(Fixed([[3.0, 4.0], [0.0, 0.5]]))
    private.backward(torch.tensor([0, 1]))
    assert torch.allclose(model.weight.grad, torch.tensor([[0.6, 1.3]]), atol=1e-6)
    assert private.engine == "Fixed"


@pytest.mark.parametrize("size", [None, 1, 2])
def test_pieces_do_not_change_the_sum(size):
    model, private = gradients_of(Fixed([[3.0, 4.0], [0.0, 0.5], [torch.nan, 0.0]]), microbatch_size=size)
    private.backward(torch.tensor([0, 1, 2]))
    assert torch.allclose(model.weight.grad, torch.tensor([[0.6, 1.3]]), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, 3e38, torch.inf, -torch.inf, torch.nan])
def test_one_unit_moves_the_sum_by_at_most_the_clip_norm(value):
    vectors = [[0.3, -0.2], [value, 1.0]]
    with_unit, private = gradients_of(Fixed(vectors))
    private.backward(torch.tensor([0, 1]))
    without, private = gradients_of(Fixed(vectors))
    private.backward(torch.tensor([0]))
    assert (with_unit.weight.grad - without.weight.grad).norm() <= 1.0 + 1e-4


@pytest.mark.parametrize("units", [[0], [0, 1], [1], []])
def test_an_adaptive_threshold_counts_each_unit_once(units):
    vectors = [[0.5, 0.0], [torch.nan, 0.0]]
    adaptive = AdaptiveClip(quantile=0.5, learning_rate=1.0, count_noise_multiplier=TINY_NOISE)
    private = PrivateGradients(
        nn.Linear(2, 1, bias=False),
        noise_multiplier=TINY_NOISE,
        expected_batch_size=2.0,
        passes=PassSettings(engine=Fixed(vectors)),
        clipping=Clipping(clip_norm=1.0, adaptive=adaptive),
        generator=seeded(0),
    )
    private.backward(torch.tensor(units, dtype=torch.int64))
    below = sum(0.5 if unit == 0 else -0.5 for unit in units)  # what is not finite counts as above
    assert private.bound == pytest.approx(torch.tensor(-(below / 2)).exp().item(), rel=1e-4)


def test_other_shapes_are_refused():
    _, private = gradients_of(Fixed([[1.0, 2.0, 3.0]]))
    with pytest.raises(SfumatoError, match="one entry for each trainable parameter"):
        private.backward(torch.tensor([0]))


def test_what_needs_rows_is_refused():
    _, private = gradients_of(Fixed([[1.0, 2.0]]))
    with pytest.raises(InvalidParameterError, match="can neither be recorded"):
        gradients_of(Fixed([[1.0, 2.0]]), compile=True)
    with pytest.raises(UnsupportedUseError):
        private.accumulate(torch.tensor([0]), recorded=object())


def test_anything_with_the_method_is_a_contributor():
    assert isinstance(Fixed([[0.0, 0.0]]), Contributor) and not isinstance(nn.Linear(1, 1), Contributor)


def settings(folder):
    return {
        "noise_multiplier": 1.0,
        "steps": 6,
        "expected_batch_size": 4,
        "public_size": 8,
        "delta": 1e-3,
        "folder": folder,
        "checkpoint_every": 1,
        "progress": False,
        "generator": seeded(5),
    }


def trained(contributor, folder, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    return train(model, (torch.arange(8),), runtime=Runtime(engine=contributor), **settings(folder) | options)


def test_a_run_of_contributions_resumes_where_it_stopped(tmp_path):
    vectors = torch.arange(16.0).reshape(8, 2)
    whole = trained(Fixed(vectors), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(Dying(vectors), tmp_path / "died")
    with pytest.raises(InvalidParameterError, match="contributor was"):  # another contributor is another run
        trained(Fixed(vectors[:7]), tmp_path / "died", resume=True)
    later = Fixed(vectors)
    resumed = trained(later, tmp_path / "died", resume=True)
    assert torch.equal(whole.model.weight, resumed.model.weight)
    assert "a fixed vector" in whole.statement()
    assert whole.price.epsilon == resumed.price.epsilon and min(later.steps) >= 3


class Noisy:
    """Sums vectors without noise; a step without units has no sum."""

    def __init__(self, vectors, shape=(1, 2)):
        self.vectors, self.shape, self.asked = torch.as_tensor(vectors, dtype=torch.float32), shape, []

    generator, largest_batch = None, 4

    @property
    def summation(self):
        return "the summation"

    def statement(self):
        return "A noisy sum."

    def noisy_sum(self, model, batch, *, step, noise_multiplier):
        self.asked.append((step, noise_multiplier, [row.tolist() for row in batch]))
        return {"weight": self.vectors[batch[0]].sum(0).reshape(self.shape)} if batch else None


def test_a_noisy_sum_is_asked_for_once_with_all_units_of_the_step():
    summer, model = Noisy([[3.0, 4.0], [0.0, 0.5], [1.0, 1.0]]), nn.Linear(2, 1, bias=False)
    passes = NoisySumPasses(model, summer, step=lambda: 7)
    for units in ([0, 2], [1]):
        passes.run((None, torch.tensor(units)), 1, lambda sums: pytest.fail("there is no clipped sum"))
    assert passes.noisy_sum(1.5)["weight"].tolist() == [[4.0, 5.5]]
    assert summer.asked == [(7, 1.5, [[0, 2, 1]])] and passes.engine == "Noisy"
    passes.clear()
    assert passes.noisy_sum(1.5)["weight"].tolist() == [[0.0, 0.0]]  # no sum: the step moves nothing
    assert summer.asked[-1] == (7, 1.5, [])


def test_noisy_sums_of_other_shapes_or_of_units_with_several_rows_are_refused():
    passes = NoisySumPasses(nn.Linear(2, 1, bias=False), Noisy([[1.0, 2.0]], shape=(2,)), step=lambda: 0)
    passes.run((None, torch.tensor([0])), 1, lambda sums: None)
    with pytest.raises(SfumatoError, match="one entry for each trainable parameter"):
        passes.noisy_sum(1.0)
    with pytest.raises(InvalidParameterError, match="one unit a row"):
        passes.run((None, torch.tensor([0, 0])), 2, lambda sums: None)


def test_batches_that_may_be_larger_than_a_sum_has_room_for_are_refused():
    summer, anything = Noisy([[1.0, 2.0]]), Noisy([[1.0, 2.0]])
    anything.largest_batch = None
    cut = {
        most: TruncatedPoissonSampling(sampling_rate=0.1, batch_size=most, public_size=9) for most in (4, 5)
    }
    require_room(summer, cut[4])
    for engine in (anything, "auto"):
        require_room(engine, PoissonSampling(sampling_rate=0.1))
    for sampling in (PoissonSampling(sampling_rate=0.1), cut[5]):
        with pytest.raises(InvalidParameterError, match=r"TruncatedPoissonSampling\(batch_size=4"):
            require_room(summer, sampling)


def test_only_a_noisy_summer_has_a_summation():
    summer = Noisy([[0.0, 0.0]])
    assert isinstance(summer, NoisySummer) and not isinstance(summer, Contributor)
    assert summation_of(summer) == "the summation" and summation_of(Fixed([[0.0, 0.0]])) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_contributions_of_any_type_stay_within_the_bound(dtype):
    draws = torch.Generator().manual_seed(0)
    vectors = (torch.randn(50, 2, generator=draws) * 20).to(dtype)
    for unit in range(len(vectors)):
        model, private = gradients_of(Fixed(vectors, dtype))
        private.backward(torch.tensor([unit]))
        norm = min(1.0, math.hypot(*vectors[unit].tolist()))
        assert model.weight.grad.norm().item() == pytest.approx(norm, abs=1e-5)  # bfloat16 was off by 4e-3


class Keeping(Fixed):
    """Leaves something of a unit in the model."""

    def __init__(self, vectors, keep):
        super().__init__(vectors)
        self.keep = keep

    def contributions(self, model, batch, *, step):
        found = super().contributions(model, batch, step=step)
        self.keep(model, found["weight"][0])
        return found


@pytest.mark.parametrize(
    "keep",
    [
        lambda model, own: setattr(model, "seen", own),
        lambda model, own: model.weight.data.add_(own),
        lambda model, own: setattr(model.weight, "grad", own),
    ],
)
def test_a_contributor_that_changes_the_model_is_refused(keep):
    model, private = gradients_of(Keeping([[3.0, 4.0]], keep))
    before = model.weight.detach().clone()
    with pytest.raises(NotPrivateError):
        private.backward(torch.tensor([0]))
    assert model.weight.grad is None and not hasattr(model, "seen") and torch.equal(model.weight, before)


def test_units_of_several_rows_and_padding_are_refused():
    """A contributor does not see weights of rows: a row of zeros would be the first unit."""
    _, private = gradients_of(Fixed([[1.0, 2.0]] * 4))
    with pytest.raises(InvalidParameterError, match="one unit a row"):
        private.backward(torch.tensor([0, 1]), rows_per_unit=2)
    with pytest.raises(InvalidParameterError, match="one unit a row"):
        private.backward(torch.tensor([0, 1]), row_weights=torch.tensor([1.0, 0.0]))
    with pytest.raises(InvalidParameterError, match="one unit a row"):
        PrivateGradients(
            nn.Linear(2, 1, bias=False),
            noise_multiplier=1.0,
            expected_batch_size=16.0,
            clip_norm=1.0,
            group_size=2,
            passes=PassSettings(engine=Fixed([[1.0, 2.0]])),
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"owners": torch.arange(8) // 2, "contribution_bound": 2},
        {"augment": lambda rows, generator: rows, "views": 2},
    ],
)
def test_runs_whose_units_a_contributor_cannot_see_are_refused(tmp_path, wrong):
    asked = Fixed(torch.zeros(8, 2))
    with pytest.raises(InvalidParameterError, match="contributor"):
        trained(asked, tmp_path / "run", **wrong)
    assert not asked.steps


def test_only_synthetic_units_contribute_alone():
    asked = Fixed([[1.0, 2.0]] * 4)
    private = PrivateGradients(
        nn.Linear(2, 1, bias=False),
        noise_multiplier=1.0,
        expected_batch_size=1.0,
        clip_norm=1.0,
        passes=PassSettings(engine=asked),
        trials=True,
    )
    with pytest.raises(UnsupportedUseError, match="synthetic"):
        private.alone(torch.tensor([0]))
    assert not asked.steps


class KeepingSum(Noisy):
    def noisy_sum(self, model, batch, *, step, noise_multiplier):
        model.seen = batch
        return super().noisy_sum(model, batch, step=step, noise_multiplier=noise_multiplier)


def test_what_sums_with_noise_may_leave_nothing_in_the_model_either():
    model = nn.Linear(2, 1, bias=False)
    passes = NoisySumPasses(model, KeepingSum([[1.0, 2.0]]), step=lambda: 0)
    passes.run((None, torch.tensor([0])), 1, lambda sums: None)
    with pytest.raises(NotPrivateError):
        passes.noisy_sum(1.0)
    assert not hasattr(model, "seen")
