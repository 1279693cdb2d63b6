# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sfumato.datasets import Dataset, Examples, Normalization
from sfumato.errors import InvalidParameterError

EXAMPLES = Examples(torch.arange(10.0).view(5, 2), torch.arange(5))
FACTS = {"classes": tuple("abcde"), "bounds": (0.0, 9.0), "source": "here", "license": "none"}


def test_examples_are_a_tensor_dataset():
    features, labels = EXAMPLES.tensors
    assert isinstance(EXAMPLES, TensorDataset)
    assert features is EXAMPLES.features and labels is EXAMPLES.labels
    assert [len(batch[0]) for batch in DataLoader(EXAMPLES, batch_size=3)] == [3, 2]


def test_examples_are_indexed_by_tensors_also_by_an_empty_one():
    features, labels = EXAMPLES[torch.tensor([4, 0])]
    assert features.tolist() == [[8.0, 9.0], [0.0, 1.0]] and labels.tolist() == [4, 0]
    assert EXAMPLES[torch.tensor([], dtype=torch.int64)][0].shape == (0, 2)


def test_rows_must_match():
    with pytest.raises(InvalidParameterError, match="same number of rows"):
        Examples(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(InvalidParameterError, match="same number of rows"):
        Examples(torch.zeros(3, 2), torch.zeros(3), user_ids=torch.zeros(2))


def test_no_value_is_in_the_representation():
    assert repr(EXAMPLES) == "Examples(features=[5, 2], labels=[5])"


def test_the_public_size_counts_users_where_there_are_users():
    of_users = Examples(torch.zeros(5, 2), torch.zeros(5), user_ids=torch.tensor([0, 0, 1, 1, 1]))
    one = Dataset(name="a", train=EXAMPLES, test=EXAMPLES, **FACTS)
    two = Dataset(name="b", train=of_users, test=of_users, privacy_unit="user", **FACTS)
    assert (one.public_size, two.public_size, one.num_classes) == (5, 2, 5)


def test_a_data_set_is_frozen_and_validated_at_birth():
    good = Dataset(name="a", train=EXAMPLES, test=EXAMPLES, **FACTS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.name = "b"  # type: ignore[misc]
    with pytest.raises(InvalidParameterError, match="bounds"):
        dataclasses.replace(good, bounds=(1.0, 0.0))


NORMALIZATIONS = [
    Normalization(mean=(0.1307,), std=(0.3081,)),
    Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
]


@pytest.mark.parametrize("normalization", NORMALIZATIONS, ids=["one channel", "three channels"])
def test_every_byte_survives_normalization_and_lies_within_the_bounds(normalization):
    channels = len(normalization.mean)
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, channels, 16, 16)
    features = normalization.apply(pixels)
    assert normalization.pixels(features).equal(pixels)
    lower, upper = normalization.bounds
    assert features.min() == lower and features.max() == upper


def test_normalization_does_what_its_numbers_say():
    feature = NORMALIZATIONS[1].apply(torch.full((1, 3, 1, 1), 51, dtype=torch.uint8)).flatten()
    torch.testing.assert_close(
        feature, torch.tensor([(0.2 - 0.4914) / 0.2470, (0.2 - 0.4822) / 0.2435, (0.2 - 0.4465) / 0.2616])
    )


def test_a_normalization_that_makes_no_sense_is_refused():
    with pytest.raises(InvalidParameterError, match="std"):
        Normalization(mean=(0.5,), std=(0.0,))
