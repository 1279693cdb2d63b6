# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.models.batch_norm import fix, refuse_mixing


class Shared(nn.Module):
    """One norm under two names, and another further down."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.BatchNorm2d(6)
        self.deep = nn.ModuleDict({"inner": nn.Sequential(nn.Dropout(0.5), nn.BatchNorm3d(4))})
        self.again = nn.Sequential(self.first)


def test_batch_norms_become_group_norms_with_their_scale_and_shift():
    model = nn.Sequential(nn.BatchNorm2d(48, eps=0.1).double(), nn.SyncBatchNorm(6), nn.BatchNorm3d(7))
    nn.init.normal_(model[0].weight)
    model[0].bias.requires_grad_(False)
    fixed = fix(model)
    assert [type(layer) for layer in fixed] == [nn.GroupNorm] * 3
    assert [layer.num_groups for layer in fixed] == [24, 6, 7]
    assert fixed[0].eps == 0.1
    assert torch.equal(fixed[0].weight, model[0].weight)
    assert fixed[0].weight.dtype == torch.float64
    assert [p.requires_grad for p in fixed[0].parameters()] == [True, False]


def test_the_model_itself_stays_as_it_is():
    model = nn.Sequential(nn.BatchNorm2d(4))
    fixed = fix(model)
    assert isinstance(model[0], nn.BatchNorm2d)
    assert fixed[0].weight.data_ptr() != model[0].weight.data_ptr()


def test_a_norm_that_is_shared_is_replaced_once_everywhere():
    fixed = fix(Shared())
    assert isinstance(fixed.first, nn.GroupNorm)
    assert fixed.first is fixed.second is fixed.again[0]
    assert isinstance(fixed.deep["inner"][0], nn.Dropout)
    assert isinstance(fixed.deep["inner"][1], nn.GroupNorm)
    refuse_mixing(fixed)


class NormThenActivation(nn.BatchNorm2d):
    """Shaped like BatchNormAct2d of timm, which fills its networks."""

    def __init__(self, features):
        super().__init__(features)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class SyncThenActivation(nn.SyncBatchNorm):
    def __init__(self, features):
        super().__init__(features)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(super().forward(x))


class Scaled(nn.BatchNorm2d):
    """A parameter of its own, and the forward pass of torch under another name."""

    def __init__(self, features):
        super().__init__(features)
        self.gain = nn.Parameter(torch.ones(features))


class OtherShapes(nn.BatchNorm2d):
    def _check_input_dim(self, input):
        pass


class OfItsOwnKind(nn.BatchNorm2d.__mro__[1]):
    """A batch norm that is neither of torch's, as some libraries have."""

    def _check_input_dim(self, input):
        pass


class Defaults(nn.BatchNorm2d):
    """Torch's own, with other defaults."""

    def __init__(self, features):
        super().__init__(features, eps=1e-3, momentum=0.01)


def hooked():
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda module, args, output: output.relu())
    return norm


def patched():
    norm = nn.BatchNorm2d(4)
    norm.forward = lambda x: x
    return norm


def parametrized():
    return nn.utils.parametrize.register_parametrization(nn.BatchNorm2d(4), "weight", nn.Softplus())


MORE = {
    "activation": (lambda: NormThenActivation(4), "act, drop, forward"),
    "synchronized": (lambda: SyncThenActivation(4), "act, forward"),
    "parameter": (lambda: Scaled(4), "gain"),
    "method": (lambda: OtherShapes(4), "_check_input_dim"),
    "another kind": (lambda: OfItsOwnKind(4), "OfItsOwnKind"),
    "hook": (hooked, "forward_hooks"),
    "patched": (patched, "forward"),
    "parametrized": (parametrized, "parametrizations"),
}


@pytest.mark.parametrize("case", MORE)
def test_a_batch_norm_that_does_more_is_refused_and_nothing_of_it_lost(case):
    make, added = MORE[case]
    with pytest.raises(
        UnsupportedModelError, match=rf"1\.0 \(.*{added}.*\).*Replace them yourself.*\.eval\(\)"
    ):
        fix(nn.Sequential(nn.BatchNorm2d(4), nn.Sequential(make())))
    with pytest.raises(UnsupportedModelError, match="mix the examples"):
        refuse_mixing(make())


@pytest.mark.parametrize("case", MORE)
def test_a_frozen_batch_norm_that_does_more_is_left_alone(case):
    model = nn.Sequential(MORE[case][0]()).requires_grad_(False).eval()
    fixed, x = fix(model), torch.randn(2, 4, 3, 3)
    assert type(fixed[0]) is type(model[0]) and torch.equal(fixed(x), model(x))


def test_every_layer_that_does_more_is_named():
    with pytest.raises(UnsupportedModelError, match=r"0 \(act, drop, forward\); 2 \(gain\)"):
        fix(nn.Sequential(NormThenActivation(4), nn.BatchNorm2d(4), Scaled(4)))


def test_a_batch_norm_that_has_other_defaults_alone_is_replaced():
    fixed = fix(nn.Sequential(Defaults(4)))
    assert type(fixed[0]) is nn.GroupNorm and fixed[0].eps == 1e-3


def test_an_instance_norm_that_does_more_keeps_it_and_gathers_nothing():
    class Activated(nn.InstanceNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    fixed = fix(nn.Sequential(Activated(4, track_running_stats=True)))
    assert type(fixed[0]) is Activated and fixed[0].running_mean is None
    assert fixed(torch.randn(2, 4, 3, 3)).min() == 0


def test_a_frozen_instance_norm_in_eval_mode_keeps_its_statistics():
    model = nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True)).eval()
    model[0].running_mean += 3
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(fix(model)(x), model(x))


def test_a_model_that_is_one_norm_is_replaced_itself():
    assert isinstance(fix(nn.BatchNorm2d(4)), nn.GroupNorm)


def test_norms_without_scale_stay_without():
    assert list(fix(nn.BatchNorm2d(4, affine=False)).parameters()) == []


@pytest.mark.parametrize("channels", [1, 3, 16, 64, 128, 512])
def test_a_norm_of_single_vectors_still_tells_them_apart(channels):
    torch.manual_seed(0)
    fixed = fix(nn.BatchNorm1d(channels))
    assert channels == fixed.num_channels
    assert channels // fixed.num_groups >= min(channels, 16)
    if channels > 1:
        assert fixed(torch.randn(2, channels)).std() > 0.1  # one channel to a group would give zeros


def test_fixed_models_do_not_mix_examples():
    torch.manual_seed(0)
    mixing = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True)
    )
    model, x = fix(mixing), torch.randn(3, 2, 6, 6)

    def loss(network, x):
        return network(x).square().flatten(1).sum(1) + network(x).flatten(1)[:, :5].sum(1)

    def alone(network):
        return torch.cat([loss(network, row[None]) for row in x])

    assert torch.allclose(alone(model), loss(model, x), atol=1e-4)
    assert not torch.allclose(alone(mixing[:2]), loss(mixing[:2], x), atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_fixed_model_is_trained_although_a_bias_before_a_norm_changes_nothing(seed):
    torch.manual_seed(seed)
    model = fix(nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 2)))
    assert model[1].num_groups == 6  # one channel a group: what the bias adds is taken away again
    private = PrivateGradients(model, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
    private.backward(torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 1, 0]))
    assert private.engine == "BookKeeping"


def test_instance_norms_stop_gathering_statistics_and_keep_their_scale():
    model = nn.Sequential(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    nn.init.normal_(model[0].weight)
    fixed = fix(model)
    assert fixed[0].running_mean is None
    assert sorted(fixed.state_dict()) == ["0.bias", "0.weight"]
    fixed(torch.randn(2, 4, 3, 3))
    refuse_mixing(fixed)


def test_a_frozen_norm_in_eval_mode_is_left_alone():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4))
    model[0].requires_grad_(False).eval()
    fixed = fix(model)
    assert [type(layer) for layer in fixed] == [nn.BatchNorm2d, nn.GroupNorm]
    refuse_mixing(fixed)


@pytest.mark.parametrize("lazy", [nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d])
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_norm_is_refused_until_it_knows_its_channels(lazy):
    for model in (nn.Sequential(lazy()), nn.Sequential(lazy(affine=False, track_running_stats=False))):
        with pytest.raises(UnsupportedModelError, match=r"'0'.*Run the model once"):
            fix(model)


def test_every_layer_that_mixes_is_named_with_the_fix():
    model = nn.Sequential(
        nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.InstanceNorm2d(4, track_running_stats=True))
    )
    with pytest.raises(
        UnsupportedModelError, match=r"0 \(BatchNorm2d\), 1\.1 \(InstanceNorm2d\).*training\.fix"
    ) as e:
        refuse_mixing(model)
    assert ".eval()" in str(e.value)


def test_a_frozen_norm_in_train_mode_is_refused():
    with pytest.raises(UnsupportedModelError, match="the model"):
        refuse_mixing(nn.BatchNorm2d(4).requires_grad_(False))


def test_a_norm_without_running_statistics_is_refused_even_in_eval_mode():
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        refuse_mixing(nn.BatchNorm1d(4, track_running_stats=False).eval())


@pytest.mark.parametrize(
    "model",
    [nn.BatchNorm2d(4).eval(), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.Dropout(), nn.LayerNorm(3)],
    ids=lambda m: type(m).__name__,
)
def test_layers_that_do_not_mix_are_let_through(model):
    refuse_mixing(model)
