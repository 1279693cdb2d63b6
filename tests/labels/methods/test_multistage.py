# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.labels.learning import soft_cross_entropy
from sfumato.labels.methods.multistage import report_in_stages, rows_so_far, split_rows
from sfumato.labels.methods.prior_response import RRWithPrior
from sfumato.labels.methods.randomized_response import Correction, marginal_loss
from sfumato.testing import seeded

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another


def even(rows, released):
    return torch.full((40, 4), 0.25)


def test_each_row_is_in_one_stage():
    stages = split_rows(101, shares=(1, 2, 1), generator=seeded(0))
    assert [len(stage) for stage in stages] == [25, 51, 25]
    assert torch.cat(stages).sort().values.equal(torch.arange(101))


@pytest.mark.parametrize("shares", [(1, 2, 1), (1, 999), (1, 99_999), (0.257, 0.743)], ids=str)
def test_what_stages_learn_from_is_known_before_any_label_is(shares):
    known = rows_so_far(1000, shares=shares)
    sizes = [len(stage) for stage in split_rows(1000, shares=shares)]
    assert known == list(itertools.accumulate(sizes)) and known[-1] == 1000


def test_splits_are_random_and_even():
    first = [split_rows(10, shares=(1, 1), generator=seeded(i))[0] for i in range(4000)]
    counts = torch.cat(first).bincount(minlength=10)
    # Each row is in the first stage with chance 1/2: five standard deviations of 4000 coins.
    assert (counts - 2000).abs().max() < 5 * math.sqrt(1000)
    assert len({tuple(stage.tolist()) for stage in first}) > 200  # of 252


@pytest.mark.parametrize("shares", [(), (1.0,), (1.0, 0.0), (1.0, -1.0), (math.nan, 1.0)], ids=str)
def test_shares_that_make_no_sense_are_refused(shares):
    with pytest.raises(InvalidParameterError, match="shares"):
        split_rows(10, shares=shares)


@pytest.mark.parametrize(
    "stages", [[[0, 1], [1, 2]], [[0, 1]], [[0, 1, 2], [3]]], ids=["twice", "missing", "beyond"]
)
def test_a_label_is_never_reported_twice_nor_left_out(stages):
    with pytest.raises(InvalidParameterError, match="exactly once"):
        report_in_stages(
            torch.tensor([0, 1, 0]),
            mechanism=RRWithPrior(epsilon=1.0, classes=4),
            stages=[torch.tensor(stage) for stage in stages],
            teach=even,
        )


def test_a_stage_is_taught_by_the_reports_of_earlier_ones_alone():
    stages = split_rows(40, shares=(2, 1, 1), generator=seeded(1))
    asked = []

    def teach(rows, released):
        asked.append((rows, released.targets))
        return even(rows, released)

    released = report_in_stages(
        torch.arange(40) % 4, mechanism=RRWithPrior(epsilon=1.0, classes=4), stages=stages, teach=teach,
        generator=seeded(2),
    )  # fmt: skip
    assert len(asked) == 2 and released.loss is soft_cross_entropy
    assert asked[0][0].equal(stages[0]) and asked[1][0].equal(torch.cat(stages[:2]).sort().values)
    for rows, targets in asked:
        assert targets.equal(released.targets[rows])


def test_a_neighbor_changes_nothing_before_its_stage_and_only_by_its_report_after():
    stages = [torch.arange(0, 20), torch.arange(20, 40)]
    mechanism = RRWithPrior(epsilon=1.0, classes=4)

    def teach(rows, released):
        # A prior that leans on every report it was taught by.
        return torch.ones(40, 4) + 9 * torch.eye(4)[released.targets].mean(0)

    def run(labels):
        return report_in_stages(labels, mechanism=mechanism, stages=stages, teach=teach, generator=seeded(3))

    labels = torch.arange(40) % 4
    base = run(labels).targets
    for row in (7, 31):
        for other in range(4):
            neighbor = labels.clone()
            neighbor[row] = other
            moved = torch.nonzero(run(neighbor).targets != base).flatten().tolist()
            if row == 31 or row not in moved:  # an unchanged report of stage one changes nothing after it
                assert moved in ([], [row])
            else:
                assert all(place == row or place >= 20 for place in moved)


def test_all_stages_together_cost_what_one_does():
    """Enumerate two rows in two stages: the joint law of the reports, for every pair of neighbors."""
    epsilon = 1.2
    mechanism = RRWithPrior(epsilon=epsilon, classes=3)
    priors = torch.tensor([[0.8, 0.1, 0.1], [0.4, 0.4, 0.2], [0.1, 0.2, 0.7]])  # taught by the first report

    def law(labels):
        found = np.zeros((3, 3))
        for first, second in itertools.product(range(3), range(3)):
            one = mechanism.likelihoods(torch.tensor([first]), prior=[1.0] * 3)[0, labels[0]].exp()
            listed = int(mechanism.sizes(priors[first : first + 1])[0])
            if second not in priors[first].argsort(descending=True, stable=True)[:listed]:
                continue
            two = mechanism.likelihoods(torch.tensor([second]), prior=priors[first])[0, labels[1]].exp()
            found[first, second] = one * two
        return found

    worst = 0.0
    for labels in itertools.product(range(3), range(3)):
        assert law(labels).sum() == pytest.approx(1.0)
        for place, other in itertools.product(range(2), range(3)):
            neighbor = list(labels)
            neighbor[place] = other
            one, two = law(labels), law(neighbor)
            assert ((one > 0) == (two > 0)).all()
            worst = max(worst, np.log(one[one > 0] / two[two > 0]).max())
    assert worst == pytest.approx(epsilon, rel=1e-6) and worst <= epsilon * (1 + 1e-12)


def test_the_forward_correction_knows_each_rows_own_noise():
    mechanism = RRWithPrior(epsilon=1.0, classes=4)
    prior = torch.tensor([0.7, 0.1, 0.1, 0.1])
    released = report_in_stages(
        torch.arange(40) % 4,
        mechanism=mechanism,
        stages=[torch.arange(20), torch.arange(20, 40)],
        teach=lambda rows, released: prior.expand(40, 4),
        correction=Correction.FORWARD,
        generator=seeded(5),
    )
    assert released.loss is marginal_loss and released.targets.shape == (40, 4)
    plain = math.e / (math.e + 3)
    assert released.targets[:20].exp().amax(1).numpy() == pytest.approx(plain, rel=1e-6)
    assert released.targets[20:].exp().numpy() == pytest.approx(
        1.0
    )  # one class listed: the report says nothing


def test_an_empty_stage_is_skipped():
    empty = torch.empty(0, dtype=torch.int64)
    released = report_in_stages(
        torch.arange(40) % 4,
        mechanism=RRWithPrior(epsilon=50.0, classes=4),
        stages=[empty, torch.arange(40), empty],
        teach=lambda rows, released: pytest.fail("nothing is left to be taught for"),
    )
    assert released.targets.equal(torch.arange(40) % 4)
