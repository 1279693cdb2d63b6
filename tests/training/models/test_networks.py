# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.datasets import Dataset, Examples, load
from sfumato.errors import InvalidParameterError
from sfumato.training import PrivateGradients
from sfumato.training.models.networks import (
    cnn,
    linear,
    loss_for,
    lstm,
    mlp,
    model_for,
    next_token_correct,
    next_token_cross_entropy,
    score_for,
    suitable_models,
    transformer,
)

TOKENS = 11
SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32), "table": (30,)}


def data_of(features, labels, classes):
    return Dataset(
        name="made up",
        train=Examples(features, labels),
        test=Examples(features, labels),
        classes=tuple(map(str, range(classes))),
        bounds=(0.0, 1.0),
        source="nowhere",
        license="none",
    )


TEXT = data_of(torch.randint(TOKENS, (6, 9)), torch.randint(TOKENS, (6, 9)), TOKENS)
IMAGES = data_of(torch.randn(6, 1, 8, 8), torch.randint(3, (6,)), 3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (linear, SHAPES["table"]),
        (mlp, SHAPES["table"]),
        *((cnn, SHAPES[n]) for n in ("digits", "mnist", "cifar10")),
    ],
    ids=["linear", "mlp", "cnn of 8 pixels", "cnn of 28", "cnn of 32"],
)
def test_a_model_gives_a_score_for_each_class_and_has_fast_gradients(make, shape):
    model = make(shape, 5)
    rows = torch.randn(3, *shape)
    assert model(rows).shape == (3, 5)
    private = PrivateGradients(model, noise_multiplier=1.0, expected_batch_size=3, clip_norm=1.0)
    private.backward(rows, torch.tensor([0, 1, 4]))  # a missing rule would warn, and warnings are errors
    assert private.engine == "BookKeeping"


@pytest.mark.parametrize(
    "make", [lambda: lstm(TOKENS), lambda: transformer(TOKENS, 9)], ids=["lstm", "transformer"]
)
def test_a_text_model_predicts_each_place_from_those_before_and_has_fast_gradients(make):
    torch.manual_seed(0)
    model = make().eval()
    text = TEXT.train.features
    changed = text.clone()
    changed[:, 5] = (changed[:, 5] + 1) % TOKENS
    same = (model(text) - model(changed)).abs().amax((0, 2)) < 1e-6
    assert same.tolist() == [True] * 5 + [False] * 4
    private = PrivateGradients(
        model, next_token_cross_entropy, noise_multiplier=1.0, expected_batch_size=6, clip_norm=1.0
    )
    private.backward(*TEXT.train.tensors)
    assert private.engine == "BookKeeping"


def test_the_network_of_the_tutorials_has_its_size():
    assert sum(p.numel() for p in cnn((1, 28, 28), 10).parameters()) == 26_010
    assert sum(p.numel() for p in cnn((3, 32, 32), 10).parameters()) == 550_570  # as the paper has it


def test_wider_models_have_more_parameters():
    def size(model):
        return sum(p.numel() for p in model.parameters())

    for name in ("mlp", "cnn"):
        assert size(model_for(IMAGES, name, width=2)) > size(model_for(IMAGES, name))
    assert size(model_for(TEXT, "lstm", width=2)) > size(model_for(TEXT, "lstm"))
    with pytest.raises(InvalidParameterError, match="width"):
        model_for(IMAGES, "mlp", width=0)


def test_models_fit_their_data():
    assert suitable_models(IMAGES) == ("linear", "mlp", "cnn")
    assert suitable_models(load("breast-cancer")) == ("linear", "mlp")
    assert suitable_models(TEXT) == ("lstm", "transformer")
    for data in (IMAGES, TEXT):
        for name in suitable_models(data):
            assert model_for(data, name)(data.train.features).shape[-1] == data.num_classes
    with pytest.raises(InvalidParameterError, match="Use one of: lstm, transformer"):
        model_for(TEXT, "cnn")


@pytest.mark.parametrize("shape", [(30,), (1, 2, 2), (3, 4)])
def test_a_cnn_of_what_is_no_image_is_refused(shape):
    with pytest.raises(InvalidParameterError, match="a cnn needs images"):
        cnn(shape, 3)


def test_losses_and_scores_have_one_number_a_row():
    for data in (IMAGES, TEXT):
        model = model_for(data, suitable_models(data)[0])
        for measure in (loss_for(data), score_for(data)):
            assert measure(model, *data.train.tensors).shape == (6,)


def test_the_score_of_a_text_is_its_share_of_right_places():
    class Knows(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.one_hot(x, TOKENS).float()

    x, y = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 9, 9]])
    assert next_token_correct(Knows(), x, y).tolist() == [0.5]
    wanted = torch.nn.functional.cross_entropy(Knows()(x)[0], y[0])
    torch.testing.assert_close(next_token_cross_entropy(Knows(), x, y)[0], wanted)
