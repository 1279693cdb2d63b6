# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.training.budget import default_batch_size, delta_for, dp_sgd_for, resumed
from sfumato.training.description import Privacy
from sfumato.training.privacy.sampling import FixedSizeSampling


def test_a_batch_is_a_fiftieth_of_all_units_unless_there_are_few():
    for size in (1, 255, 256, 257, 12_799, 12_850, 1_000_000):
        expected = default_batch_size(size)
        assert expected <= size and (expected == size or expected >= 256)
    assert default_batch_size(1_000_000) == 20_000


def test_epochs_are_counted_by_the_sampling_that_is_given():
    sampling = FixedSizeSampling(batch_size=10, public_size=100)
    terms = {"noise_multiplier": 1.0, "relation": "replace-one", "epochs": 2}
    assert dp_sgd_for(Privacy(sampling=sampling, public_size=100, **terms)).steps == 20
    with pytest.raises(InvalidParameterError, match="public_size"):
        dp_sgd_for(Privacy(sampling=sampling, **terms))


def test_a_run_that_took_what_its_account_had_left_keeps_its_noise():
    def unread():
        raise AssertionError("the checkpoint was read")

    assert resumed(Privacy(steps=3), lambda: [[1.5, 3]]).noise_multiplier == 1.5
    for known in (Privacy(epsilon=1.0), Privacy(noise_multiplier=2.0)):
        assert resumed(known, unread) is known


def test_delta_is_the_given_one_or_that_of_the_account_or_the_default():
    account = SimpleNamespace(budget=SimpleNamespace(delta=1e-5))
    assert delta_for(Privacy(delta=1e-6), 100, account) == 1e-6
    assert delta_for(Privacy(), 100, account) == 1e-5
    assert delta_for(Privacy(), 100, None) == 1e-3
    with pytest.raises(InvalidParameterError, match="delta"):
        delta_for(Privacy(), None, None)
    with pytest.raises(InvalidParameterError, match="delta"):
        delta_for(Privacy(delta=1.5), 100, None)
