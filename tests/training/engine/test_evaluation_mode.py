# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.labels.methods.denoisers import AltConvDenoiser
from sfumato.testing import seeded
from sfumato.training import Runtime, train
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.models.networks import lstm, next_token_cross_entropy


def parts():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].eval()  # frozen on purpose, in a model that trains
    return model


def test_each_part_goes_back_to_its_own_mode_whatever_happens():
    model = parts()
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(part.training for part in model.modules())
        _ = 1 / 0
    assert [part.training for part in model] == [True, False, True] and model.training


def test_a_denoiser_leaves_a_frozen_part_frozen():
    model = parts()
    noisy = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    AltConvDenoiser(features=torch.randn(8, 3), classes=2, batch_size=4).denoise(
        model, noisy, rows=None, generator=seeded(0)
    )
    assert [part.training for part in model] == [True, False, True]


def test_recurrent_layers_keep_their_gradients_and_lose_their_dropout():
    model = nn.LSTM(3, 4, num_layers=2, dropout=0.9)
    x = torch.randn(5, 2, 3)
    model.eval()
    wanted = model(x)[0]
    model.train()
    with evaluating(model):
        assert model.training  # without it, cuDNN has no gradients
        torch.testing.assert_close(model(x)[0], wanted)
    assert model.training and model.dropout == 0.9


def test_a_recurrent_layer_that_was_frozen_stays_so():
    model = nn.Sequential(nn.GRU(3, 4).eval())
    with evaluating(model):
        assert model[0].training
    assert model.training and not model[0].training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recurrent_model_trains_on_a_gpu():
    x = torch.randint(97, (40, 6))
    trained = train(
        lstm(97).cuda(),
        (x, x),
        public_size=40,
        expected_batch_size=20,
        epochs=1,
        epsilon=8.0,
        delta=1e-3,
        clip_norm=1.0,
        learning_rate=0.1,
        loss=next_token_cross_entropy,
        progress=False,
        runtime=Runtime(device=torch.device("cuda")),
    )
    assert trained.guarantee.epsilon <= 8.0
