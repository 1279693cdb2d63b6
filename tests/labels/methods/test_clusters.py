# SPDX-License-Identifier: Apache-2.0
import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, dlaplace

from sfumato.accounting import composition
from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.labels.features import Spectrum, k_means, nearest_neighbors, spectrum
from sfumato.labels.learning import Released
from sfumato.labels.methods.clusters import ClusterLabels, LabelCounts, cluster_count, soft_labels
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

ALPHA = 1e-6
LABEL = Relation.REPLACE_LABEL


def method(clusters=(0, 0, 1, 2), **changes) -> ClusterLabels:
    known = clusters if isinstance(clusters, torch.Tensor) else torch.tensor(clusters)
    return ClusterLabels(**({"epsilon": 0.5, "classes": 3, "clusters": known} | changes))


def moved(made: ClusterLabels, before, after) -> torch.Tensor:
    """Return how released counts differ between neighbors under the same noise: what is before the noise."""
    return (
        made.counts(before, generator=seeded(5)).counts - made.counts(after, generator=seeded(5)).counts
    ).flatten()


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 4), st.sampled_from([0.0, 1e-5]))
def test_replaying_neighbors_moves_counts_by_at_most_the_stated_sensitivities(data, owned, delta):
    clusters = data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=12))
    made = method(clusters, contribution_bound=owned, delta=delta, epsilon=2.0)
    labels = st.lists(st.integers(0, 2), min_size=len(clusters), max_size=len(clusters))
    before, other = data.draw(labels), data.draw(labels)
    rows = data.draw(st.lists(st.integers(0, len(clusters) - 1), min_size=owned, max_size=owned))
    after = [other[i] if i in rows else label for i, label in enumerate(before)]
    apart = moved(made, before, after)
    assert apart.abs().sum() <= made._noise().l1_sensitivity == 2 * owned
    assert apart.norm() <= made._noise().l2_sensitivity * (1 + 1e-12)
    assert apart.count_nonzero() <= made._noise().coordinates


def test_the_stated_sensitivities_are_reached():
    one = moved(method(), [0, 1, 2, 0], [0, 2, 2, 0])
    assert (one.abs().sum(), one.norm()) == (2, math.sqrt(2))
    user = moved(method(contribution_bound=2), [0, 0, 2, 0], [1, 1, 2, 0])  # both labels lie in one cluster
    assert (user.abs().sum(), user.norm()) == (4, pytest.approx(math.sqrt(2) * 2))


def test_every_run_draws_the_same_amount_of_noise_whatever_the_labels_are():
    source, other = seeded(1), seeded(1)
    method().counts([0, 0, 0, 0], generator=source)
    method().counts([2, 1, 0, 1], generator=other)
    later = [method().counts([0, 0, 0, 0], generator=g).counts for g in (source, other)]
    assert torch.equal(*later)


@pytest.mark.parametrize(
    ("epsilon", "owned", "event"),
    [
        # Laplace noise of scale 2 k / epsilon; a replacement counts twice the event's sensitivity.
        (0.1, 1, dp.DiscreteLaplaceDpEvent(0.05, 1)),
        (1.0, 1, dp.DiscreteLaplaceDpEvent(0.5, 1)),
        (1.0, 4, dp.DiscreteLaplaceDpEvent(0.125, 4)),
    ],
)
def test_pure_counts_cost_exactly_epsilon(epsilon, owned, event):
    made = method(epsilon=epsilon, contribution_bound=owned)
    assert made.event() == UnsampledDpEvent(event) and made.relation is LABEL
    spent = composition.basic_epsilon(made.event(), delta=0.0, relation=LABEL)
    assert spent == pytest.approx(epsilon, rel=1e-12)
    assert made._noise().law.scale == pytest.approx(2 * owned / epsilon, rel=1e-12)


@pytest.mark.parametrize("owned", [1, 3])
def test_gaussian_counts_cost_epsilon_at_delta(owned):
    made = method(epsilon=1.0, delta=1e-5, contribution_bound=owned)
    event = made.event()
    assert isinstance(event, UnsampledDpEvent) and isinstance(event.event, DiscreteGaussianDpEvent)
    assert event.event.sensitivity == pytest.approx(owned / math.sqrt(2))
    assert event.event.dimension == 2 * owned
    assert 0.999 < price(event, delta=1e-5, relation=LABEL).epsilon <= 1.0 + 1e-9


def test_no_outcome_is_likelier_than_epsilon_allows():
    # The exact law of each count, over all labels of a small data set and a grid of outcomes.
    made = method((0, 0, 1), epsilon=0.7, classes=2)
    alpha = 1 / made._noise().law.scale

    def log_chance(labels, outcome):
        cells = np.bincount(np.array([0, 0, 1]) * 2 + np.array(labels), minlength=4)
        return dlaplace.logpmf(np.array(outcome) - cells, alpha).sum()

    worst = 0.0
    for labels in itertools.product(range(2), repeat=3):
        for i in range(3):
            other = [1 - label if i == j else label for j, label in enumerate(labels)]
            for outcome in itertools.product((-3, 0, 1, 4), repeat=4):
                worst = max(worst, log_chance(labels, outcome) - log_chance(other, outcome))
    assert worst == pytest.approx(0.7)  # reached, never passed


def tallied(noise: np.ndarray, epsilon: float) -> float:
    """Return the p-value of the noise under the law for `epsilon`."""
    reach = 12
    seen = np.bincount(np.clip(noise, -reach, reach).astype(int) + reach, minlength=2 * reach + 1)
    chances = dlaplace.pmf(np.arange(-reach, reach + 1), epsilon / 2)
    chances[0] = chances[-1] = dlaplace.sf(reach - 1, epsilon / 2)
    return chisquare(seen, chances * noise.size).pvalue


def test_the_noise_on_counts_has_the_stated_law():
    groups = 10_000
    made = method(range(groups), classes=2, epsilon=1.0)
    noise = made.counts([1] * groups, generator=seeded(0)).counts - torch.tensor([0.0, 1.0])
    assert tallied(noise.numpy().ravel(), 1.0) > ALPHA
    assert tallied(noise.numpy().ravel(), 1.1) < ALPHA  # 10% off is caught: the test has power


def test_counts_without_noise_are_the_histograms():
    counted = method(epsilon=80.0).counts([0, 2, 1, 2])  # noise at this epsilon is 0 but once in 10^16
    assert counted.counts.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert counted.sizes.tolist() == [2, 1, 1]


def test_the_number_of_clusters_is_a_function_of_public_numbers_alone():
    assert set(inspect.signature(cluster_count).parameters) == {
        "public_size", "classes", "epsilon", "contribution_bound",
    }  # fmt: skip
    assert cluster_count(60_000, classes=10, epsilon=0.1) == int(60_000 / (20 * 6 * math.log(10)))


@given(
    st.integers(1, 10**7), st.integers(2, 1000), st.floats(1e-4, 50), st.integers(1, 20)
)  # fmt: skip
def test_the_number_of_clusters_can_always_be_made(size, classes, epsilon, owned):
    count = cluster_count(size, classes=classes, epsilon=epsilon, contribution_bound=owned)
    assert min(size, classes) <= count <= size
    assert count <= cluster_count(size, classes=classes, epsilon=2 * epsilon, contribution_bound=owned)
    assert count >= cluster_count(size, classes=classes, epsilon=epsilon, contribution_bound=owned + 1)


def test_sums_of_counts_are_free_and_their_noise_adds_up():
    counted = method().counts([0, 1, 2, 0], generator=seeded(2))
    both = counted.coarser(torch.tensor([0, 1, 0]))
    assert torch.equal(both.counts[0], counted.counts[0] + counted.counts[2])
    assert both.sizes.tolist() == [3, 1]
    assert both.variances.tolist() == pytest.approx([2 * 2 * 16, 2 * 16])  # 2 scale^2 each, scale 4


def moons() -> tuple[torch.Tensor, torch.Tensor, Spectrum]:
    """Return two long bent sheets, which distance alone does not tell apart; labels and spectrum."""
    generator = np.random.default_rng(0)
    angle = generator.uniform(0, math.pi, 3000)
    label = np.arange(3000) % 2
    sign = 1 - 2 * label
    place = np.stack([np.cos(angle) * sign + label, (np.sin(angle) - 0.25) * sign], 1)
    points = torch.from_numpy(place + generator.normal(0, 0.07, place.shape))
    return points, torch.from_numpy(label), spectrum(nearest_neighbors(points, neighbors=10), dimensions=10)


def accuracy(targets, labels):
    return (targets.argmax(1) == labels).double().mean().item()


def test_smoothing_along_the_spectrum_mends_clusters_that_noise_has_overturned():
    _, labels, found = moons()
    clusters = k_means(found.points(), clusters=100)
    counted = ClusterLabels(epsilon=0.1, classes=2, clusters=clusters).counts(labels, generator=seeded(1))
    alone = soft_labels(counted, clusters=clusters)
    smoothed = soft_labels(counted, clusters=clusters, spectrum=found)
    assert accuracy(alone, labels) < 0.9 < 0.97 < accuracy(smoothed, labels)


def test_the_posterior_is_that_of_the_gaussian_process():
    # Written out with the covariance of all rows, which `soft_labels` never makes.
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(40, 3, generator=generator, dtype=torch.float64)).Q
    found = Spectrum(values=torch.tensor([1.0, 0.9, 0.8]).double(), vectors=vectors)
    clusters = torch.arange(40) % 5
    counts = torch.tensor([[5.0, 3.0], [6.0, 1.0], [2.0, 7.0], [4.0, 4.0], [3.0, 5.0]]).double()
    counted = LabelCounts(counts=counts, sizes=clusters.bincount(), variances=torch.full((5,), 9.0).double())
    powers = found.values**10
    member = torch.nn.functional.one_hot(clusters).double()
    rows = 0.09 * 40 / powers.sum() * (vectors * powers) @ vectors.T + 0.02 * member @ member.T
    noise = torch.eye(5).double() * (9.0 + 0.05 * 8)
    shares = counts.sum(0) / counts.sum()
    gain = rows @ member @ torch.linalg.inv(member.T @ rows @ member + noise)
    expected = shares + gain @ (counts - 8 * shares)
    nearest = expected + (1 - expected.sum(1, keepdim=True)) / 2  # counts do not add up to sizes
    assert (nearest > 0).all()
    ours = soft_labels(counted, clusters=clusters, spectrum=found)
    torch.testing.assert_close(ours.double(), nearest, atol=1e-6, rtol=0)


def test_soft_labels_are_distributions_even_if_noise_is_all_there_is():
    for seed in range(5):
        made = method(epsilon=1e-3)
        targets = made.release([0, 1, 2, 0], generator=seeded(seed)).targets
        assert isinstance(targets, torch.Tensor) and targets.dtype is torch.float32
        assert (targets >= 0).all() and targets.sum(1).tolist() == pytest.approx([1.0] * 4)


def test_a_cluster_without_rows_is_no_trouble():
    targets = method((0, 0, 2, 2), epsilon=20.0).release([0, 0, 1, 1], generator=seeded(0)).targets
    assert targets.isfinite().all()


def test_rounds_of_self_training_see_released_labels_only():
    given_to: list[Released] = []

    def teach(rows: torch.Tensor, released: Released) -> torch.Tensor:
        given_to.append(released)
        assert rows.tolist() == [0, 1, 2, 3]
        return torch.tensor([[1.0, 0.0, 0.0]]).expand(4, 3)

    labels, once = [0, 1, 2, 0], method()
    first = once.release(labels, teach=teach, generator=seeded(3)).targets
    assert given_to == []
    last = method(rounds=2).release(labels, teach=teach, generator=seeded(3)).targets
    said = torch.tensor([[1.0, 0.0, 0.0]])
    torch.testing.assert_close(given_to[0].targets, first)
    torch.testing.assert_close(given_to[1].targets, (first + said) / 2)
    torch.testing.assert_close(last, (first + said) / 2)
    assert method(rounds=2).event() == once.event()  # rounds are free


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 2, 0.5], [[0, 1, 2, 0]]])
def test_errors_say_nothing_about_labels(labels):
    with pytest.raises(InvalidParameterError) as failure:
        method().counts(labels)
    assert str(failure.value).startswith("labels must be whole numbers from 0 to 2, one for each of 4 rows")
    assert "0.5" not in str(failure.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 1.0},
        {"classes": 1},
        {"contribution_bound": 0},
        {"rounds": -1},
        {"clusters": torch.tensor([0, -1])},
        {"clusters": torch.tensor([0, 5])},
        {"clusters": torch.tensor([0.0, 1.0])},
        {"clusters": torch.zeros(0, dtype=torch.int64)},
        {"spectrum": Spectrum(values=torch.ones(1), vectors=torch.ones(3, 1))},
    ],
    ids=range(11),
)
def test_wrong_settings_are_refused_before_any_label_is_seen(changes):
    with pytest.raises(InvalidParameterError):
        method(**changes)


@pytest.mark.parametrize("values", [(0.0, 0.0), (-1.0, 0.0), (math.nan, 1.0), (math.inf, 1.0)], ids=str)
def test_a_spectrum_that_says_nothing_is_refused_before_any_label_is_seen(values):
    empty = Spectrum(values=torch.tensor(values).double(), vectors=torch.ones(4, 2).double())
    with pytest.raises(InvalidParameterError, match=r"no eigenvalue above zero.*leave it out"):
        method(spectrum=empty)


def test_clusters_that_are_no_tensor_are_refused():
    with pytest.raises(InvalidParameterError, match="int64 tensor"):
        ClusterLabels(epsilon=1.0, classes=2, clusters=[0, 1])  # pyright: ignore[reportArgumentType]


def test_rounds_without_a_teacher_are_refused_before_anything_is_counted():
    with pytest.raises(InvalidParameterError, match="needs teach"):
        method(rounds=1).release("not even labels")


def test_clusters_other_than_those_counted_are_refused():
    counted = method().counts([0, 0, 0, 0])
    with pytest.raises(InvalidParameterError, match="below 3"):
        soft_labels(counted, clusters=torch.tensor([0, 1, 2, 3]))
    with pytest.raises(InvalidParameterError, match="one parent"):
        counted.coarser(torch.tensor([0, 1]))
