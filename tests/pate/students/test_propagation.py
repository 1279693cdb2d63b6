# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.semi_supervised import LabelSpreading

from sfumato.errors import InvalidParameterError
from sfumato.labels.features import nearest_neighbors
from sfumato.pate.students.propagation import Propagation, nearest_views, representative_rows

torch.set_num_threads(1)

X, Y = load_digits(return_X_y=True)
ROWS, TRUE = torch.from_numpy(X).float() / 16, torch.from_numpy(Y)


def two_sides(rows: int = 30) -> torch.Tensor:
    draws = torch.randn(2 * rows, 3, generator=torch.Generator().manual_seed(0))
    return draws + torch.arange(2).repeat_interleave(rows).unsqueeze(1) * 20


def answers(count: int, *, seed: int = 0) -> torch.Tensor:
    chosen = torch.randperm(len(TRUE), generator=torch.Generator().manual_seed(seed))[:count]
    known = torch.full_like(TRUE, -1)
    known[chosen] = TRUE[chosen]
    return known


def test_a_wrong_answer_among_many_is_outvoted():
    known = torch.full((60,), -1)
    known[[1, 4, 7, 10, 13]] = torch.tensor([0, 0, 1, 0, 0])  # the third is wrong
    known[[31, 34, 37]] = 1
    found = Propagation()(two_sides(), known, classes=2).argmax(1)
    assert found.tolist() == [0] * 30 + [1] * 30


def right(known: torch.Tensor, *, reach: float = 0.95) -> float:
    return float((Propagation(reach=reach)(ROWS, known, classes=10).argmax(1) == TRUE).float().mean())


def test_sixty_answers_are_carried_to_nearly_all_digits():
    assert np.mean([right(answers(60, seed=seed)) for seed in range(5)]) > 0.92


def test_answers_that_reach_far_do_not_favor_the_class_with_the_most():
    # Measured: 0.935 with shares of classes, 0.892 without.
    assert np.mean([right(answers(60, seed=seed), reach=0.99) for seed in range(5)]) > 0.915


def test_beliefs_sum_to_one():
    sums = Propagation()(ROWS, answers(60), classes=10).sum(1)
    torch.testing.assert_close(sums, torch.ones(len(ROWS)))


def test_beliefs_are_those_of_label_spreading_up_to_shares_of_classes():
    rows, known = two_sides(8), torch.tensor([0, *[-1] * 7, 1, *[-1] * 7])
    graph = Propagation(neighbors=3, reach=0.8).graph(rows).toarray()
    peer = LabelSpreading(kernel=lambda a, b: graph, alpha=0.8, max_iter=1000, tol=1e-9)
    peer.fit(rows.numpy(), known.numpy())
    ours = Propagation(neighbors=3, reach=0.8)(rows, known, classes=2)
    np.testing.assert_allclose(ours.numpy(), peer.label_distributions_, atol=1e-4)


def test_a_class_with_more_answers_does_not_take_rows_of_another():
    known = torch.full((60,), -1)
    known[:29] = 0
    known[30] = 1
    joined = torch.cat([two_sides(), torch.full((1, 3), 10.0)])  # one row between the two sides
    found = Propagation(reach=0.99)(joined, torch.cat([known, torch.tensor([-1])]), classes=2).argmax(1)
    assert found[30:60].tolist() == [1] * 30


def test_rows_that_no_answer_reaches_get_the_shares_of_the_classes():
    far = torch.cat([two_sides(), torch.randn(20, 3, generator=torch.Generator().manual_seed(1)) + 9000])
    known = torch.full((80,), -1)
    known[[0, 1, 2]], known[30] = 0, 1
    found = Propagation()(far, known, classes=3)
    torch.testing.assert_close(found[60:], torch.tensor([8 / 14, 6 / 14, 0.0]).expand(20, 3))


def test_views_without_changes_give_the_neighbors_of_an_exact_search():
    exact, ours = nearest_neighbors(ROWS[:600], neighbors=4), nearest_views(ROWS[:600], [], neighbors=4)
    torch.testing.assert_close(ours.distances, exact.distances, atol=1e-3, rtol=1e-3)
    assert float((ours.rows == exact.rows).float().mean()) > 0.999


def test_views_make_rows_neighbors_that_a_change_separates():
    rows = torch.tensor([[1.0, 9.0], [1.0, -9.0], [3.0, 9.0], [3.0, -9.0]])  # the class is the first column

    def flipped(batch: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        return torch.stack([batch[:, 0], -batch[:, 1]], 1)

    known = [0, -1, 1, -1]
    settings = Propagation(neighbors=1, views=1)
    assert settings(rows, known, classes=2, augment=flipped).argmax(1).tolist() == [0, 0, 1, 1]


def test_the_same_seed_gives_the_same_beliefs():
    def noisy(batch: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        return batch + 0.1 * torch.randn(batch.shape, generator=draws)

    found = [
        Propagation(views=2, seed=seed)(ROWS[:300], answers(300)[:300], classes=10, augment=noisy)
        for seed in (0, 0, 1)
    ]
    assert found[0].equal(found[1])
    assert not found[0].equal(found[2])


def test_representative_rows_cover_every_class_that_random_rows_may_miss():
    chosen = representative_rows(ROWS, count=30)
    assert len(chosen) == len(chosen.unique()) == 30
    assert len(TRUE[chosen].unique()) == 10


def test_answers_for_representative_rows_reach_more_rows_than_random_ones():
    known = torch.full_like(TRUE, -1)
    chosen = representative_rows(ROWS, count=30)
    known[chosen] = TRUE[chosen]

    assert right(known) > np.mean([right(answers(30, seed=seed)) for seed in range(5)]) + 0.04


def test_few_answers_of_a_class_do_not_make_it_small():
    known = torch.full((60,), -1)
    known[:10], known[30] = 0, 1
    found = Propagation()(two_sides(), known, classes=2)
    assert found[30:].argmax(1).tolist() == [1] * 30


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: Propagation(reach=1.0), "reach"),
        (lambda: Propagation(neighbors=0), "neighbors"),
        (lambda: Propagation()(ROWS[:1], [0], classes=2), "two public rows"),
        (lambda: Propagation()(ROWS[:9] * torch.nan, [0] * 9, classes=2), "finite"),
        (lambda: nearest_views(ROWS[:3], [], neighbors=3), "there are 3 rows"),
        (lambda: representative_rows(ROWS[:9], count=10), "there are 9 rows"),
    ],
)
def test_bad_input_is_refused(work, message):
    with pytest.raises(InvalidParameterError, match=message):
        work()
