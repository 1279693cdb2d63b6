# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy.stats import chisquare

from sfumato.federated.secure_sum.masking_client import (
    MaskingClient,
    ProtocolError,
    mask_key,
    seed_commitment,
)

ALPHA = 1e-6
NUMBERS = (5, 6, 7)
SESSION = "ab" * 16


def clients(least_active=2):
    made = {n: MaskingClient(number=n, session=SESSION, least_active=least_active) for n in NUMBERS}
    keys = {n: client.public_keys() for n, client in made.items()}
    return made, keys


def after_shares(**options):
    made, keys = clients(**options)
    sealed = {n: client.shares(keys, threshold=2)[0] for n, client in made.items()}
    inbox = {n: {m: sealed[m][n] for m in NUMBERS if m != n} for n in NUMBERS}
    return made, inbox


def test_masks_cancel_but_for_those_of_the_clients_themselves():
    made, inbox = after_shares()
    vectors = {n: np.arange(8) * n for n in NUMBERS}
    masked = {n: made[n].masked(vectors[n], inbox[n], bits=16) for n in NUMBERS}
    own = [bytes.fromhex(client._seed) for client in made.values()]
    from sfumato.federated.secure_sum.masks import mask

    facts = {"purpose": "own", "session": bytes.fromhex(SESSION), "count": 8, "bits": 16}
    total = sum(masked.values()) - sum(mask(seed, **facts) for seed in own)
    assert (total % 2**16 == sum(vectors.values())).all()


def test_a_masked_vector_looks_uniform_and_without_masks_it_does_not():
    made, inbox = after_shares()
    vector = np.random.default_rng(0).integers(0, 50, 2**15)
    masked = made[5].masked(vector, inbox[5], bits=16)
    assert chisquare(np.bincount(masked >> 8, minlength=256)).pvalue > ALPHA
    assert chisquare(np.bincount(vector >> 8, minlength=256)).pvalue < ALPHA  # negative control


def test_stages_come_in_order_and_each_of_them_once():
    made, keys = clients()
    client = made[5]
    with pytest.raises(ProtocolError, match="comes after"):
        client.public_keys()
    with pytest.raises(ProtocolError, match="comes after"):
        client.masked(np.zeros(4, np.int64), {}, bits=16)
    client.shares(keys, threshold=2)
    with pytest.raises(ProtocolError, match="comes after"):
        client.shares(keys, threshold=2)


def test_keys_that_are_not_those_of_this_and_other_clients_are_refused():
    for change in (
        lambda keys: {**keys, 5: keys[6]},  # not my own
        lambda keys: {**keys, 6: keys[7]},  # one client twice
        lambda keys: {n: k for n, k in keys.items() if n != 5},  # mine are missing
    ):
        made, keys = clients()
        with pytest.raises(ProtocolError, match="public keys"):
            made[5].shares(change(keys), threshold=2)


@pytest.mark.parametrize("threshold", [0, 1, 4])
def test_a_threshold_of_half_or_less_is_refused(threshold):
    made, keys = clients()
    with pytest.raises(ProtocolError, match="more than half"):
        made[5].shares(keys, threshold=threshold)


def test_too_few_neighbors_or_foreign_shares_are_refused():
    made, inbox = after_shares()
    with pytest.raises(ProtocolError, match="too few neighbors"):
        made[5].masked(np.zeros(4, np.int64), {}, bits=16)
    with pytest.raises(ProtocolError, match="decrypted"):
        made[6].masked(np.zeros(4, np.int64), {5: inbox[7][5], 7: inbox[6][7]}, bits=16)
    with pytest.raises(ProtocolError, match="no neighbor"):
        made[7].masked(np.zeros(4, np.int64), {8: b"", 5: inbox[7][5]}, bits=16)


def ready(**options):
    made, inbox = after_shares(**options)
    for n, client in made.items():
        client.masked(np.zeros(4, np.int64), inbox[n], bits=16)
    return made


def test_shares_are_revealed_once_and_of_one_kind():
    client = ready()[5]
    shares = client.reveal([5, 6], [7])
    assert set(shares) == {5, 6, 7}
    with pytest.raises(ProtocolError):
        client.reveal([5, 6, 7], [])
    assert not client._keys and not client._seed and not client._held


@pytest.mark.parametrize(
    ("active", "dropped"), [([5, 6], [6, 7]), ([5, 6, 6], []), ([5, 6, 9], []), ([6, 7], [5]), ([6, 7], [])]
)
def test_lists_that_contradict_each_other_are_refused(active, dropped):
    client = ready()[5]
    with pytest.raises(ProtocolError, match="contradict"):
        client.reveal(active, dropped)


def test_a_client_does_not_help_to_open_a_sum_with_too_little_noise():
    client = ready(least_active=3)[5]
    with pytest.raises(ProtocolError, match="too few clients are in the sum"):
        client.reveal([5, 6], [7])


def test_the_state_survives_its_way_through_text():
    made, inbox = after_shares()
    again = MaskingClient.from_json(made[5].to_json())
    assert again == made[5]
    assert (
        again.masked(np.ones(4, np.int64), inbox[5], bits=16)
        == made[5].masked(np.ones(4, np.int64), inbox[5], bits=16)
    ).all()


def test_a_key_put_together_wrongly_is_noticed():
    made, keys = clients()
    secret = bytes.fromhex(made[5]._keys[0])
    assert mask_key(secret, keys[6][0], keys[5][0]) == mask_key(
        bytes.fromhex(made[6]._keys[0]), keys[5][0], keys[6][0]
    )
    for wrong in (bytes(48), b"short", b"\xff" * 48, secret[:-1] + bytes([secret[-1] ^ 1])):
        assert mask_key(wrong, keys[6][0], keys[5][0]) is None


def test_commitments_differ_between_seeds():
    assert seed_commitment(bytes(32)) != seed_commitment(b"\x01" * 32)
