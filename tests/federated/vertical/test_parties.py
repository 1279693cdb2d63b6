# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.federated.vertical.parties import FeatureParty, LabelParty, check_alignment

NOISE = ClippedNoise(noise_multiplier=1.0)


def party(columns, name="bank", bottom=None):
    return FeatureParty(name=name, columns=columns, bottom=bottom or nn.Linear(3, 2), embeddings=NOISE)


def label_party(people=4, top=None):
    return LabelParty(labels=torch.arange(people) % 2, classes=2, top=top or nn.Linear(2, 2))


class Picky(nn.Module):
    """Fails on a row with a number above 9, as an index out of range would."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, rows):
        return self.table(rows[:, 0].long())


def test_a_row_changes_its_own_embedding_alone():
    columns = torch.randn(4, 3)
    changed = columns.clone()
    changed[1] = torch.tensor([math.nan, math.inf, 1e38])
    own = party(columns)
    before, after = own.embedded(columns)[0], own.embedded(changed)[0]
    assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])


def test_a_network_that_mixes_rows_sees_one_at_a_time():
    class Mixing(nn.Module):
        def forward(self, rows):
            return rows - rows.mean(0)

    found, _ = party(torch.randn(4, 3), bottom=Mixing()).embedded(torch.randn(4, 3))
    assert not found.any()


def test_a_row_that_makes_the_network_fail_has_zeros_and_others_stay():
    columns = torch.tensor([[1.0], [99.0], [2.0]])
    own = party(columns, bottom=Picky())
    found, usable = own.embedded(columns)
    assert usable.tolist() == [True, False, True]
    assert torch.equal(
        found, torch.stack([own.bottom.table.weight[1], torch.zeros(2), own.bottom.table.weight[2]])
    )


def test_row_gradients_are_those_of_autograd():
    labels = label_party(top=nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    embeddings = torch.randn(4, 2, requires_grad=True)
    loss = nn.functional.cross_entropy(labels.top(embeddings), labels.labels, reduction="sum")
    wanted = torch.autograd.grad(loss, embeddings)[0]
    assert torch.allclose(labels.row_gradients(embeddings.detach(), labels.labels), wanted, atol=1e-6)


def test_a_label_that_is_no_class_has_no_gradient():
    found = label_party().row_gradients(torch.randn(3, 2), torch.tensor([0, 7, -5]))
    assert found[0].any() and not found[1:].any()


@pytest.mark.parametrize(
    ("parties", "message"),
    [
        ([party(torch.zeros(5, 3))], "has 5 people, and the label party has 4"),
        ([party(torch.zeros(4, 3)), party(torch.zeros(4, 3))], "same name"),
        ([], "must be a feature party"),
    ],
)
def test_parties_that_do_not_fit_together_are_refused(parties, message):
    with pytest.raises(InvalidParameterError, match=message):
        check_alignment(parties, label_party())


def test_the_number_of_people_is_public_and_rows_are_not_shown():
    own = party(torch.full((4, 3), 7.25))
    assert check_alignment([own], label_party()) == 4
    assert "7.25" not in repr(own) and "columns" not in repr(own)
    assert "labels" not in repr(label_party())


def test_columns_and_labels_of_other_types_are_refused():
    with pytest.raises(InvalidParameterError, match="floating-point"):
        party(torch.zeros(4, 3, dtype=torch.int64))
    with pytest.raises(InvalidParameterError, match="whole number"):
        LabelParty(labels=torch.zeros(4), classes=2, top=nn.Linear(2, 2))
