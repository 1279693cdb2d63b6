# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.labels.projection.gradient_products import LabelGradients

torch.set_num_threads(1)
CLASSES = 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(9, 5), nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


MODELS = {
    "linear": (lambda: nn.Linear(6, CLASSES), lambda n: torch.randn(n, 6, generator=generator())),
    "convolution": (convolution, lambda n: torch.randn(n, 1, 8, 8, generator=generator())),
    "tied": (Tied, lambda n: torch.randn(n, 6, generator=generator())),
    "text": (Text, lambda n: torch.randint(0, 9, (n, 5), generator=generator())),
    "attention": (Attending, lambda n: torch.randn(n, 3, 8, generator=generator())),
}


def built(name: str, rows: int) -> tuple[nn.Module, Tensor]:
    build, features = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().double()
    x = features(rows)
    return model, x.double() if x.is_floating_point() else x


def formed(model: nn.Module, x: Tensor) -> Tensor:
    """G itself, [rows, classes, parameters], by one backward pass for each of its columns."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = -model(x).log_softmax(1)
    each = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses.flatten()]
    return torch.stack([torch.cat([g.flatten() for g in grads]) for grads in each]).reshape(*losses.shape, -1)


def packed(vectors: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten() for v in vectors.values()])


def direction(model: nn.Module) -> dict[str, Tensor]:
    return {
        n: torch.randn(p.shape, dtype=p.dtype, generator=generator(2)) for n, p in model.named_parameters()
    }


@pytest.mark.parametrize("size", [None, 1, 3, 99], ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_products_are_those_of_the_matrix_itself(name, size):
    model, x = built(name, 7)
    matrix = formed(model, x)
    products = LabelGradients(model, x, classes=CLASSES, microbatch_size=size)
    weights = torch.randn(7, CLASSES, dtype=torch.float64, generator=generator(3))
    for _ in range(2):  # the kept forward pass serves again
        assert torch.allclose(
            packed(products.combine(weights)), torch.einsum("nk,nkd->d", weights, matrix), atol=1e-9
        )
        along = direction(model)
        assert torch.allclose(products.against(along), matrix @ packed(along), atol=1e-9)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_columns_are_those_of_the_matrix_itself(name):
    model, x = built(name, 5)
    rows, classes = torch.tensor([3, 0, 3]), torch.tensor([1, 2, 0])
    found = LabelGradients(model, x, classes=CLASSES).columns(rows, classes)
    got = torch.cat([v.flatten(1) for v in found.values()], 1)
    assert torch.allclose(got, formed(model, x)[rows, classes], atol=1e-9)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weighted_by_the_models_own_predictions_all_columns_cancel(name):
    model, x = built(name, 5)
    products = LabelGradients(model, x, classes=CLASSES, microbatch_size=2)
    assert torch.allclose(products.neutral(), model(x).softmax(1))
    assert float(packed(products.combine(products.neutral())).abs().max()) < 1e-9


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("size", [None, 2])
def test_clipped_columns_are_those_of_the_matrix_each_scaled_down_on_its_own(name, size):
    model, x = built(name, 5)
    matrix = formed(model, x).flatten(0, 1).T  # [parameters, rows * classes]
    norms = matrix.norm(dim=0)
    clip_norm = float(norms.median())
    scaled = matrix * (clip_norm / norms.clamp(min=clip_norm))
    products = LabelGradients(model, x, classes=CLASSES, clip_norm=clip_norm, microbatch_size=size)
    weights = torch.rand(5, CLASSES, generator=generator()).to(matrix)
    assert torch.allclose(packed(products.combine(weights)), scaled @ weights.flatten(), atol=1e-5)
    against = direction(model)
    assert torch.allclose(products.against(against).flatten(), scaled.T @ packed(against), atol=1e-5)
    some = products.columns(torch.tensor([0, 3]), torch.tensor([1, 2]))
    found = torch.cat([part.flatten(1) for part in some.values()], dim=1).T
    assert torch.allclose(found, scaled[:, [1, 3 * CLASSES + 2]], atol=1e-5)
    neutral = products.neutral()
    assert packed(products.combine(neutral)).norm() < 1e-5 and torch.allclose(
        neutral.sum(1), torch.ones(5).to(neutral)
    )
    assert bool((neutral >= 0).all())


@pytest.mark.parametrize("clip_norm", [None, 0.5], ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_columns_of_one_pass_have_the_same_products(name, clip_norm):
    model, x = built(name, 5)
    size = 8 * 5 * CLASSES * sum(p.numel() for p in model.parameters())
    by_products, at_once = (
        LabelGradients(model, x, classes=CLASSES, clip_norm=clip_norm, most_bytes=most)
        for most in (size - 1, size)
    )
    weights, along = torch.rand(5, CLASSES, generator=generator()).double(), direction(model)
    rows, classes = torch.tensor([3, 0, 3]), torch.tensor([1, 2, 0])
    for found in (lambda g: packed(g.combine(weights)), lambda g: g.against(along), lambda g: g.neutral()):
        assert torch.allclose(found(by_products), found(at_once), atol=1e-9)
    some, same = (g.columns(rows, classes) for g in (by_products, at_once))
    assert all(some[name].shape == same[name].shape for name in some)
    assert torch.allclose(packed(some), packed(same), atol=1e-9)
    assert by_products.factors is None and at_once.factors is not None
    held = LabelGradients(model, x, classes=CLASSES, microbatch_size=2, most_bytes=size)
    assert held.factors is None  # less memory was asked for


class Scaled(nn.Linear):
    """A layer that decides by a value, which the pass for all columns refuses."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if bool(x.sum() > -1e9) else 1.0)


def test_a_model_that_one_pass_cannot_run_has_its_products_by_passes():
    torch.manual_seed(0)
    model, x = Scaled(3, CLASSES).double(), torch.randn(5, 3, generator=generator()).double()
    products = LabelGradients(model, x, classes=CLASSES, clip_norm=0.5, most_bytes=2**20)
    assert products.factors is None
    along = direction(model)
    found = LabelGradients(model, x, classes=CLASSES, clip_norm=0.5).against(along)
    assert torch.allclose(products.against(along), found)


def test_the_two_products_are_transposes_of_one_another_in_float32():
    model, x = built("convolution", 6)
    products = LabelGradients(model.float(), x.float(), classes=CLASSES)
    weights, along = torch.rand(6, CLASSES), direction(model)
    one = float(packed(products.combine(weights)) @ packed(along))
    assert one == pytest.approx(float((weights * products.against(along)).sum()), rel=1e-4)


def test_one_row_and_no_rows():
    for rows in (0, 1):
        model, x = built("linear", rows)
        products = LabelGradients(model, x, classes=CLASSES)
        assert products.against(direction(model)).shape == (rows, CLASSES)
        assert products.neutral().shape == (rows, CLASSES)
        assert {n: v.shape for n, v in products.combine(torch.ones(rows, CLASSES)).items()} == {
            n: p.shape for n, p in model.named_parameters()
        }
    empty = LabelGradients(model, x[:0], classes=CLASSES)
    assert not packed(empty.combine(torch.ones(0, CLASSES))).any()


def test_chosen_and_frozen_and_unused_parameters():
    model, x = built("tied", 4)
    model.spare = nn.Linear(2, 2).double()
    model.first.bias.requires_grad_(False)
    whole = LabelGradients(model, x, classes=CLASSES)
    assert "first.bias" not in whole.parameters
    assert not whole.combine(torch.rand(4, CLASSES))["spare.weight"].any()
    zero = {n: torch.zeros_like(p) for n, p in whole.parameters.items()}
    assert not whole.against(zero | {"spare.weight": torch.ones(2, 2)}).any()
    part = LabelGradients(model, x, classes=CLASSES, parameters=["head.weight"])
    v = torch.ones_like(model.head.weight)
    assert torch.allclose(part.against({"head.weight": v}), whole.against(zero | {"head.weight": v}))
    assert list(part.columns(torch.tensor([0]), torch.tensor([1]))) == ["head.weight"]


def test_a_model_without_curvature_before_its_outputs_has_zero_products():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x

    products = LabelGradients(Constant(), torch.randn(3, 2, generator=generator()), classes=2)
    assert not products.against({"weight": torch.ones(2)}).any()
    assert not products.combine(torch.ones(3, 2))["weight"].any()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


@pytest.mark.parametrize("training", [True, False], ids=str)
def test_modes_buffers_gradients_and_generators_stay_as_they_were(training):
    model = Counting().train(training)
    state = torch.get_rng_state()
    products = LabelGradients(model, torch.ones(4, 3), classes=CLASSES, microbatch_size=2)
    products.combine(torch.ones(4, CLASSES))
    products.against({n: torch.ones_like(p) for n, p in model.named_parameters()})
    products.columns(torch.tensor([0, 2]), torch.tensor([1, 1]))
    assert float(model.calls) == 0
    assert model.training is training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_batch_norm_and_idle_dropout_are_fine():
    model = (
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, CLASSES))
        .double()
        .eval()
    )
    x = torch.randn(5, 3, dtype=torch.float64, generator=generator())
    along = direction(model)
    assert torch.allclose(
        LabelGradients(model, x, classes=CLASSES).against(along), formed(model, x) @ packed(along)
    )


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x), 0.5)


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Dropout(0.5), nn.Linear(3, CLASSES)), Drawing().eval()],
    ids=["layer", "function"],
)
def test_a_model_that_draws_randomness_is_refused(model):
    with pytest.raises(UnsupportedModelError, match="randomness"):
        LabelGradients(model, torch.ones(4, 3), classes=CLASSES)


@pytest.mark.parametrize("untracked", [True, False], ids=str)
def test_a_model_that_mixes_rows_is_refused(untracked):
    norm = nn.BatchNorm1d(3, track_running_stats=False).eval() if untracked else nn.BatchNorm1d(3)
    with pytest.raises(UnsupportedModelError, match="over the batch"):
        LabelGradients(nn.Sequential(norm, nn.Linear(3, 2)), torch.ones(4, 3), classes=2)


@pytest.mark.parametrize(
    "body",
    [nn.Linear(3, 5), nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2))), nn.LSTM(3, 4)],
    ids=["other number", "three axes", "tuple"],
)
def test_outputs_that_are_not_scores_of_classes_are_refused(body):
    with pytest.raises(UnsupportedModelError, match="one score for each row and class"):
        LabelGradients(body, torch.ones(6, 3), classes=4)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2


def test_an_operation_without_a_second_derivative_is_refused_and_combines_all_the_same():
    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Once.apply(super().forward(x))

    products = LabelGradients(Odd(3, 2), torch.ones(4, 3), classes=2)
    products.combine(torch.ones(4, 2))
    with pytest.raises(UnsupportedModelError, match="differentiated twice"):
        products.against({"weight": torch.ones(2, 3), "bias": torch.ones(2)})


def test_bad_arguments_are_refused():
    model, x = built("linear", 3)
    with pytest.raises(InvalidParameterError, match="classes"):
        LabelGradients(model, x, classes=0)
    with pytest.raises(InvalidParameterError, match="microbatch_size"):
        LabelGradients(model, x, classes=CLASSES, microbatch_size=0)
    with pytest.raises(InvalidParameterError, match="scalar"):
        LabelGradients(model, torch.tensor(1.0), classes=CLASSES)
    for names in (["nothing"], []):
        with pytest.raises(InvalidParameterError, match="trainable"):
            LabelGradients(model, x, classes=CLASSES, parameters=names)
    products = LabelGradients(model, x, classes=CLASSES)
    with pytest.raises(InvalidParameterError, match="weights"):
        products.combine(torch.ones(CLASSES, 3))
    with pytest.raises(InvalidParameterError, match="direction"):
        products.against({"weight": torch.ones(CLASSES, 6)})
    with pytest.raises(InvalidParameterError, match="same length"):
        products.columns(torch.tensor([0, 1]), torch.tensor([0]))


class Largest:
    """Remember how many numbers each tensor has that is saved for a backward pass."""

    def __init__(self):
        self.sizes: list[int] = []

    def __call__(self, tensor: Tensor) -> Tensor:
        self.sizes.append(tensor.numel())
        return tensor


def saved(classes: int, size: int | None, rows: int = 32) -> Largest:
    model = nn.Sequential(nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, classes))
    seen = Largest()
    with torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t):
        products = LabelGradients(model, torch.ones(rows, 50), classes=classes, microbatch_size=size)
        products.combine(torch.ones(rows, classes))
        products.against({n: torch.ones_like(p) for n, p in model.named_parameters()})
    return seen


def test_memory_does_not_grow_with_the_columns_of_the_matrix():
    few, many = saved(2, None), saved(40, None)
    columns, parameters = 32 * 40, 50 * 40 + 40 + 41 * 40
    assert len(few.sizes) == len(many.sizes)  # as many tensors, whatever the classes
    growth = sum(many.sizes) - sum(few.sizes)
    assert growth < 0.05 * columns * parameters  # outputs and the last layer grow; no column is ever formed
    assert max(many.sizes) <= max(32 * 50, 32 * 40, 50 * 40)
    assert max(saved(40, 4).sizes) <= 50 * 40
