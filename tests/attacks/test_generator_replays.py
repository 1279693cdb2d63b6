# SPDX-License-Identifier: Apache-2.0
"""A replay of a fit finds what is read beside the noise, moved too far, or charged too little."""

import numpy as np
import pytest
import torch

from attacks.generator_replays import replay_fit
from sfumato.accounting.events import ExponentialDpEvent, PureDpEvent, UnsampledDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.generative.tables.count_noise import CountNoise
from sfumato.mechanisms import Exponential, tensors
from sfumato.pate import ConfidentGNMax

VOTES = ConfidentGNMax(threshold=1.0, threshold_stddev=4.0, stddev=2.0)
CHOICE = Exponential(epsilon=0.5, sensitivity=1.0, relation=Relation.ADD_REMOVE)
GAUSSIAN = dp.GaussianDpEvent(2.0)


def summed(values, generator, *, stddev=2.0, times=1):
    """Release a sum of values, each of which is at most 1, some times over."""
    total = torch.tensor([float(sum(values))], dtype=torch.float64)
    return [
        tensors.add_gaussian_(total.clone(), stddev=stddev, generator=generator.fork("sum", place))
        for place in range(times)
    ]


def test_a_noisy_sum_is_replayed_with_its_cost():
    (use,) = replay_fit(summed, [0.5], [0.5, 1.0], event=GAUSSIAN)
    assert (use.kind, use.allowed, use.cost) == ("sums", 1.0, 0.25)
    assert use.returned.item() != use.given.item()


def test_a_row_that_moves_a_sum_too_far_is_found():
    with pytest.raises(LeakError, match=r"moves sums by 1\.5, but 1 is allowed"):
        replay_fit(summed, [0.5], [0.5, 1.5], event=GAUSSIAN)


@pytest.mark.parametrize("changes", [{"stddev": 1.9}, {"times": 2}])
def test_noise_that_is_less_than_charged_is_found(changes):
    def fit(values, generator):
        return summed(values, generator, **changes)

    with pytest.raises(LeakError, match="is charged"):
        replay_fit(fit, [0.5], [0.5, 1.0], event=GAUSSIAN)
    assert replay_fit(fit, [0.5], [0.5, 1.0], event=None)


def fails_on_two(values, generator):
    if len(values) == 2:
        raise ValueError("two")
    return summed(values, generator)


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (lambda values, generator: [*summed(values, generator), float(len(values))], "differ although"),
        (lambda values, generator: summed(values, generator, times=len(values)), "draws more noise"),
        (lambda values, generator: summed(values, generator, times=3 - len(values)), "draws less noise"),
        (lambda values, generator: summed(values, generator, stddev=len(values)), "draws other noise"),
        (fails_on_two, "raises ValueError"),
        (lambda values, generator: 1.0, "no noise was drawn"),
    ],
)
def test_what_depends_on_rows_beside_the_noise_is_found(fit, said):
    with pytest.raises(LeakError, match=said):
        replay_fit(fit, [0.5], [0.5, 1.0], event=None)


def test_random_numbers_of_torch_are_the_same_in_both_runs_and_leave_it_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    replay_fit(
        lambda values, generator: [*summed(values, generator), torch.rand(2)], [0.5], [1.0], event=None
    )
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(LeakError, match="differ although"):  # how much is drawn depends on the rows
        replay_fit(
            lambda values, generator: [
                *summed(values, generator),
                torch.rand(len(values))[-1],
                torch.rand(1),
            ],
            [0.5],
            [0.5, 0.5],
            event=None,
        )


def test_votes_are_judged_query_by_query():
    def fit(votes, generator):
        return VOTES.answer(np.array(votes, dtype=float), generator=generator)

    votes = [[3.0, 1.0], [2.0, 2.0]]
    uses = replay_fit(fit, votes, [[2.0, 2.0], [1.0, 3.0]], event=VOTES.event(2))
    assert [use.kind for use in uses] == ["comparison", "votes"]
    with pytest.raises(
        LeakError, match=r"moves votes by 2\.8|moves comparison by 2"
    ):  # two votes in one query
        replay_fit(fit, votes, [[1.0, 3.0], [2.0, 2.0]], event=VOTES.event(2))
    with pytest.raises(LeakError, match="not all teachers vote"):
        replay_fit(fit, [[3.0, 1.0], [3.0, 2.0]], votes, event=None)


def test_counts_and_choices_are_judged_by_what_they_state():
    noise = CountNoise(stddev=4.0, sensitivity=2)

    def fit(counts, generator):
        return noise.add(np.array(counts), generator=generator), CHOICE.release(
            [float(count) for count in counts], generator=generator
        )

    paid = compose(UnsampledDpEvent(GAUSSIAN), dp.SelfComposedDpEvent(ExponentialDpEvent(0.5), 1))
    assert [use.kind for use in replay_fit(fit, [3, 4], [3, 5], event=paid)] == ["counts", "choice"]
    with pytest.raises(LeakError, match="moves choice by 2"):
        replay_fit(fit, [3, 4], [3, 6], event=paid)
    with pytest.raises(LeakError, match="changes the shape of counts"):
        replay_fit(fit, [3, 4], [3, 4, 1], event=paid)
    with pytest.raises(LeakError, match="choices cost"):
        replay_fit(fit, [3, 4], [3, 5], event=GAUSSIAN)


def test_an_event_without_a_known_cost_is_told():
    with pytest.raises(TypeError, match="PureDpEvent"):
        replay_fit(summed, [0.5], [1.0], event=PureDpEvent(1.0))
