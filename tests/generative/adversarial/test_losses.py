# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.losses import LOSSES, loss_named


class Score(nn.Module):
    def forward(self, images, labels):
        return images[:, 0]


@pytest.mark.parametrize("name", LOSSES)
def test_real_images_want_high_scores_and_generated_ones_low_scores(name):
    loss, x = loss_named(name), torch.tensor([[-2.0], [0.0], [3.0]])
    real, fake = loss.real(Score(), x, None), loss.fake(Score(), x, None)
    assert real.shape == (3,) and bool((real.diff() < 0).all()) and bool((fake.diff() > 0).all())


def test_the_logistic_loss_is_that_of_the_papers():
    x = torch.tensor([[0.7]])
    real = loss_named("logistic").real(Score(), x, None)
    fake = loss_named("logistic").fake(Score(), x, None)
    assert float(real) == pytest.approx(float(-torch.log(torch.sigmoid(x))))
    assert float(fake) == pytest.approx(float(-torch.log(1 - torch.sigmoid(x))), rel=1e-5)


def test_a_loss_that_there_is_not_is_told():
    with pytest.raises(InvalidParameterError, match="unknown loss"):
        loss_named("hinge")
