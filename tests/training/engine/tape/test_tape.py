# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import NotPrivateError, UnsupportedUseError
from sfumato.training.engine.book_keeping import BookKeeping


class Using(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))
        self.layer = nn.Linear(3, 3)
        self.use = use

    def forward(self, x):
        return self.use(self, x)


def total(model, x):
    return model(x).flatten(1).sum(1)


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: F.linear(x, m.w[:2]),
        lambda m, x: F.linear(x, m.w.t()),
        lambda m, x: F.linear(x, m.w.view(3, 3)),
        lambda m, x: F.linear(x, m.w.data) + m.layer(x),
        lambda m, x: F.linear(x, m.w.clone()),
        lambda m, x: F.linear(x, torch.cat([m.w, m.w])),
        lambda m, x: F.linear(x, m.w * 2),
        lambda m, x: x + m.w.sum(),
        lambda m, x: x @ m.layer(m.w),  # a parameter as the input of a layer
        lambda m, x: x @ (m.w @ torch.ones(3, 3).to(x)),
        lambda m, x: F.layer_norm(m.w, (3,)).sum() + x,
        lambda m, x: F.linear(x, m.w.reshape(9).reshape(3, 3)),
        lambda m, x: F.linear(x, m.w[[2, 0]]),
        lambda m, x: F.linear(x, m.w.repeat(2, 1)),
        lambda m, x: F.linear(x, m.w.transpose(0, 1)),
        lambda m, x: F.linear(x, m.w.exp()),
        lambda m, x: F.linear(x, torch.einsum("ij,jk->ik", m.w, m.w)),
        lambda m, x: torch.einsum("bi,oi->bo", x, m.w),
        lambda m, x: x * (m.w[0] @ m.w[1]),  # a scalar product
        lambda m, x: F.prelu(x, m.w[0]),
        lambda m, x: F.bilinear(x, m.layer(x), m.w[None]),
    ],
)
def test_a_use_without_a_rule_agrees_by_copies(agrees, use):
    torch.manual_seed(0)
    model = Using(use).double()
    nn.init.normal_(model.w)
    agrees(model, lambda m, x: m(x).square().flatten(1).sum(1), torch.randn(4, 3).double())


def test_a_parameter_in_another_type_agrees(agrees):
    model = Using(lambda m, x: F.linear(x, m.w.float()) + F.linear(x, m.w.half().float())).float()
    agrees(model, lambda m, x: m(x).square().sum(1), torch.randn(4, 3), tolerance=1e-5)


LAYERS = {
    "PReLU": lambda: nn.PReLU(3),
    "one PReLU for all": nn.PReLU,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_that_prepare_their_parameters_agree(agrees, layer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), LAYERS[layer](), nn.Linear(3, 2)).double()
    agrees(model, lambda m, x: m(x).square().sum(1), torch.randn(4, 3).double())


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.bilinear = nn.Linear(3, 3), nn.Bilinear(3, 3, 2)

    def forward(self, x):
        return self.bilinear(x, self.layer(x))


def test_a_bilinear_layer_agrees(agrees):
    torch.manual_seed(0)
    agrees(Pairs().double(), lambda m, x: m(x).square().sum(1), torch.randn(4, 3).double())


def test_a_use_without_a_rule_leaves_the_other_layers_their_rules():
    model = Using(lambda m, x: m.layer(F.linear(x, m.w.exp())))
    run = BookKeeping(model, total).run((torch.randn(4, 3),))
    assert {type(op).__name__ for op, _ in run._uses["layer.weight"]} == {"LinearOp"}
    assert {type(op).__name__ for op, _ in run._uses["w"]} != {"LinearOp"}


def test_many_uses_without_a_rule_have_one_copy_between_them():
    def use(m, x):
        for _ in range(5):
            x = torch.einsum("bi,oi->bo", x, m.w)
        return x

    run = BookKeeping(Using(use), total).run((torch.randn(4, 3),))
    assert len(run._uses["w"]) == 1


def test_a_copy_made_without_grad_does_not_hide_a_later_use(agrees):
    def use(m, x):
        with torch.no_grad():
            scale = m.w.exp().sum()
        return x * scale + (x @ m.w.exp())

    agrees(Using(use).double(), lambda m, x: m(x).square().sum(1), torch.randn(4, 3).double())


@pytest.mark.parametrize(
    "change",
    [
        lambda m, x: m.w.add_(x.sum()),
        lambda m, x: m.w.copy_(x.mean(0).expand(3, 3)),
        lambda m, x: m.w.zero_(),
        lambda m, x: m.w.__setitem__(0, x[0]),
        lambda m, x: m.w.__iadd__(x.sum()),
        lambda m, x: setattr(m.w, "data", x.expand(3, 3)),
    ],
)
def test_a_parameter_that_the_pass_changes_in_place_is_not_private(change):
    def use(m, x):
        with torch.no_grad():
            change(m, x)
        return F.linear(x, m.w)

    model = Using(use)
    with pytest.raises(NotPrivateError, match=r"'w'.*between steps"):
        BookKeeping(model, total).run((torch.randn(4, 3),))
    assert torch.equal(model.w, torch.ones(3, 3))


def test_a_parameter_inside_of_another_transform_is_left_to_the_reference():
    def use(m, x):
        return torch.func.vmap(lambda row: F.linear(row, m.w))(x)

    with pytest.raises(UnsupportedUseError, match=r"'w'.*transform"):
        BookKeeping(Using(use), total).run((torch.randn(4, 3),))


def test_values_of_parameters_may_be_read(agrees):
    def use(m, x):
        assert m.w.tolist() == [[1.0] * 3] * 3
        return F.linear(x, m.w) * m.w.detach().max()

    agrees(Using(use).double(), total, torch.randn(4, 3).double())


def test_shapes_types_and_devices_may_be_asked_for():
    def use(m, x):
        assert m.w.shape == (3, 3) and m.w.dim() == 2 and m.w.numel() == 9 and len(m.w) == 3
        assert m.w.dtype is torch.float32 and m.w.device.type == "cpu" and m.w.is_floating_point()
        return F.linear(x, m.w)

    BookKeeping(Using(use), total).run((torch.randn(4, 3),))


def test_an_input_changed_in_place_afterwards_is_refused_by_name():
    def careless(m, x):
        h = x * 1
        y = F.linear(h, m.w)
        h.mul_(2)
        return y

    with pytest.raises(UnsupportedUseError, match=r"\['w'\] was changed in place"):
        BookKeeping(Using(careless), total).run((torch.randn(4, 3),))


@pytest.mark.parametrize("steps", [(), (2,)])
@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: (x @ m.w).add_(x).mul_(2),
        lambda m, x: F.linear(x, m.w).relu_(),
        lambda m, x: torch.cat([m.w.expand(len(x), 3, 3).mul(2).add_(1), x.reshape(len(x), -1, 3)], 1),
        lambda m, x: m.layer(x).squeeze(0).add_(1).reshape(x.shape),
    ],
)
def test_outputs_of_any_kind_may_be_changed_in_place(agrees, use, steps):
    agrees(
        Using(use).double(), lambda m, x: m(x).square().flatten(1).sum(1), torch.randn(4, *steps, 3).double()
    )


def test_an_output_changed_in_place_afterwards_is_handled_as_autograd_does(agrees):
    model = Using(lambda m, x: F.linear(x, m.w).mul_(x).view(-1, 3).add_(1).view(x.shape)).double()
    agrees(model, lambda m, x: model(x).square().flatten(1).sum(1), torch.randn(4, 2, 3).double())
