# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.datasets import DataNotFoundError, Examples, load
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.partitions import by_user, dirichlet, iid


def labelled(rows, classes=5):
    return torch.arange(rows), torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(0))


def sizes(parts):
    return [len(parts.row_numbers(client)) for client in range(len(parts))]


def assert_every_row_once(parts, rows):
    found = torch.cat([parts.row_numbers(client) for client in range(len(parts))])
    assert sorted(found.tolist()) == list(range(rows))


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 5))
def test_iid_gives_every_row_to_one_client_and_all_equally_many(rows, clients, seed):
    parts = iid(labelled(rows), clients=clients, seed=seed)
    assert_every_row_once(parts, rows)
    assert max(sizes(parts)) - min(sizes(parts)) <= 1


@given(st.integers(1, 60), st.integers(1, 80), st.sampled_from([1e-3, 0.1, 1.0, 100.0]), st.integers(0, 5))
def test_dirichlet_gives_every_row_to_one_client(rows, clients, alpha, seed):
    assert_every_row_once(dirichlet(labelled(rows), clients=clients, alpha=alpha, seed=seed), rows)


def test_a_small_alpha_leaves_clients_without_rows():
    assert 0 in sizes(dirichlet(labelled(100), clients=50, alpha=0.01))


def skew(alpha):
    """Return the mean share of a client's most frequent label."""
    rows = labelled(20_000)
    parts = dirichlet(rows, clients=10, alpha=alpha)
    held = [parts.rows(client)[1].bincount(minlength=5) for client in range(10)]
    return sum(float(counts.max() / counts.sum()) for counts in held if counts.sum()) / 10


def test_labels_are_the_more_skewed_the_smaller_alpha_is():
    assert skew(0.05) > 0.6 > skew(1.0) > skew(1000.0) and skew(1000.0) < 0.25


def test_shares_have_the_moments_of_a_dirichlet_distribution():
    clients, alpha = 20, 0.5
    rows = torch.zeros(5000), torch.zeros(5000, dtype=torch.int64)
    parts = [dirichlet(rows, clients=clients, alpha=alpha, seed=seed) for seed in range(100)]
    counts = torch.tensor([sizes(part) for part in parts])
    shares = counts / 5000
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert float(shares.var(0).mean()) == pytest.approx(variance, rel=0.15)
    assert shares.mean(0).tolist() == pytest.approx([1 / clients] * clients, abs=0.03)


@pytest.mark.parametrize("divide", [iid, lambda rows, **options: dirichlet(rows, alpha=0.5, **options)])
def test_a_partition_depends_on_its_seed_alone(divide):
    rows, state = labelled(100), torch.get_rng_state()
    first, again, other = (divide(rows, clients=7, seed=seed) for seed in (1, 1, 2))
    members = [[part.row_numbers(c).tolist() for c in range(7)] for part in (first, again, other)]
    assert members[0] == members[1] != members[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_user_is_a_client_with_all_of_its_rows():
    users = torch.tensor([5, 9, 5, 2, 9, 5])
    examples = Examples(torch.arange(6.0), torch.zeros(6), user_ids=users)
    parts = by_user(examples)
    assert [parts.rows(client)[0].tolist() for client in range(3)] == [[3.0], [0.0, 2.0, 5.0], [1.0, 4.0]]


def test_a_data_set_gives_its_training_rows():
    digits = load("digits")
    assert sum(sizes(iid(digits, clients=9))) == len(digits.train)
    assert sum(sizes(dirichlet(digits.train, clients=9, alpha=0.3))) == len(digits.train)
    with pytest.raises(InvalidParameterError, match="no user ids"):
        by_user(digits)


def test_the_clients_of_shakespeare_are_roles():
    try:
        plays = load("shakespeare")
    except DataNotFoundError:
        pytest.skip("the plays are not here: set SFUMATO_DATA to a folder that holds them")
    parts = by_user(plays)
    assert len(parts) == plays.train.num_units and min(sizes(parts)) > 0
    assert plays.train.user_ids[parts.row_numbers(3)].unique().numel() == 1


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.zeros(4, 2, dtype=torch.int64)])
def test_dirichlet_needs_one_label_for_each_row(labels):
    with pytest.raises(InvalidParameterError, match="one label"):
        dirichlet((torch.zeros(4), labels), clients=2, alpha=1.0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_an_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(InvalidParameterError):
        dirichlet(labelled(4), clients=2, alpha=alpha)
