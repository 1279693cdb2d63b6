# SPDX-License-Identifier: Apache-2.0
"""An auditor watches any mechanism of noisy sums: votes and updates as well as gradients."""

import io

import numpy as np
import pytest
import torch

from sfumato.accounting.events import dp_sgd
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.audit.runs.auditor import Auditor
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded

COUNT, STEPS = 600, 10


def watched(
    *,
    relation=Relation.ADD_REMOVE,
    rate=0.3,
    noise=1.0,
    true_noise=None,
    reach=1.0,
    steps=STEPS,
    seed=0,
    exact=True,
):
    """Run a mechanism that adds up votes of canaries with noise, and return its auditor."""
    auditor = Auditor(count=COUNT, relation=relation, sampling_rate=rate, generator=seeded(seed))
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        taken = auditor.seated & (torch.rand(COUNT, generator=draws) < rate)
        drawn = torch.randn(COUNT, generator=draws) * (noise if true_noise is None else true_noise)
        auditor.observe(auditor.signs * taken * reach + drawn, noise=noise, taken=taken, exact=exact)
    return auditor


def judged(auditor, *, relation=Relation.ADD_REMOVE, rate=0.3, noise=1.0, epsilon=None, delta=1e-5, **told):
    def event(factor):
        return dp_sgd(noise_multiplier=noise * factor, sampling_rate=rate, steps=STEPS)

    cost = price(event(1.0), delta=1e-5, relation=relation).epsilon if epsilon is None else epsilon
    claim = Guarantee(epsilon=cost, delta=delta, relation=relation, privacy_unit="teacher")
    return auditor.verdict(claim, event, subject="votes", steps=STEPS, **told)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.ZERO_OUT, Relation.REPLACE_ONE])
def test_a_right_mechanism_is_not_accused(relation):
    found = judged(watched(relation=relation), relation=relation)
    assert not found.refuted and found.tested
    assert {check.name for check in found.checks} == {
        "noise of each step",
        "contributions of canaries",
        "batches",
        "price",
    }
    assert "4 checks found nothing" in found.statement()
    assert [each.name for each in found.unchecked] == [
        "noise of the model's own tensors",
        "noise beneath the model's gradients",
        "contributions in the model's own tensors",
    ]
    assert "Not checked: noise of the model's own tensors, because no trial step" in found.statement()


REASONS = [
    ({"rate": 1.0}, {}, "batches", "every unit is in each batch"),
    ({}, {"delta": 1e-15}, "price", "cannot be computed precisely"),
    ({"steps": 0}, {}, "contributions of canaries", "no canary was in a batch"),
    ({"exact": False}, {}, "contributions of canaries", "norms are estimated"),
]


@pytest.mark.parametrize(("ran", "told", "name", "why"), REASONS)
def test_a_check_that_is_not_made_is_named_with_its_reason(ran, told, name, why):
    found = judged(watched(**ran), epsilon=30.0, rate=ran.get("rate", 0.3), **told)
    assert name not in {check.name for check in found.checks}
    (gap,) = (each for each in found.unchecked if each.name == name)
    assert why in gap.why and f"{name}, because {gap.why}" in found.statement()


def test_batches_without_coins_are_not_checked():
    auditor = Auditor(count=COUNT, relation=Relation.ZERO_OUT, sampling_rate=None, generator=seeded(0))
    auditor.observe(auditor.signs + torch.randn(COUNT), noise=1.0, taken=auditor.seated)
    gaps = {
        each.name: each.why for each in judged(auditor, relation=Relation.ZERO_OUT, epsilon=30.0).unchecked
    }
    assert "only Poisson sampling" in gaps["batches"]


def test_a_check_of_the_callers_own_that_found_nothing_to_look_at_is_named_too():
    more = [("votes", [], "little"), ("voters", [], "little")]
    gaps = judged(watched(), more=more, why_not={"votes": "nobody voted"}).unchecked[-2:]
    assert [str(gap) for gap in gaps] == [
        "votes, because nobody voted",
        "voters, because nothing was observed for it",
    ]


def test_all_errors_together_are_what_the_confidence_leaves():
    found = judged(watched())
    errors = [1 - bound.confidence for bound in found.bounds] + [check.error for check in found.checks]
    assert sum(errors) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"true_noise": 0.8}, "The noise in the canaries' coordinates is too small"),
        ({"reach": 1.5}, "Canaries add too much"),
        ({"reach": 1e9}, "times what clipping allows"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(wrong, says):
    found = judged(watched(**wrong))
    assert found.refuted and says in found.statement() and "THE CLAIM IS FALSE" in found.statement()


@pytest.mark.parametrize("noise", [1e-30, 1e-6, 1e-3])
def test_rounding_is_not_taken_for_contributions_that_are_too_long(noise):
    told = judged(watched(noise=noise, reach=1 + 2e-7), noise=noise, epsilon=1e70)
    gaps = {gap.name: gap.why for gap in told.unchecked}
    assert not told.refuted and "rounding could look like too much" in gaps["contributions of canaries"]


def test_steps_with_noise_enough_are_looked_at_beside_others_without():
    auditor = watched(noise=1e-6, reach=1 + 2e-7, steps=1)
    taken = auditor.present
    auditor.observe(
        taken * 9.0 + torch.randn(COUNT, generator=torch.Generator().manual_seed(3)), noise=1.0, taken=taken
    )
    found = {check.name: check for check in judged(auditor, noise=1e-6, epsilon=1e70).checks}
    assert "add too much in step 2" in found["contributions of canaries"].message


def test_a_claim_below_the_cost_of_the_steps_is_false():
    found = judged(watched(), epsilon=1.0)
    assert found.refuted and "The steps that were seen cost an epsilon of at least" in found.statement()


def test_steps_that_are_not_claimed_for_are_counted():
    found = judged(watched(steps=STEPS + 1))
    assert found.refuted and "11 noisy steps were seen, and 10 are claimed for" in found.statement()


def test_a_unit_twice_in_a_batch_is_found():
    auditor = watched()
    auditor.observe(torch.zeros(COUNT), noise=1.0, taken=2.0 * auditor.present)
    assert "A unit is in the batch of step 11 more than once" in judged(auditor).statement()


def test_numbers_that_are_none_are_taken_for_large_ones():
    auditor = watched()
    auditor.observe(torch.full((COUNT,), float("nan")), noise=1.0, taken=auditor.present)
    assert judged(auditor).refuted


WRONG = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("value", WRONG)
def test_a_coordinate_of_nobody_that_is_no_number_is_found(value):
    auditor = watched(steps=STEPS - 1)
    idle = torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    idle[7] = value
    auditor.observe(
        torch.randn(COUNT, generator=torch.Generator().manual_seed(2)),
        noise=1.0,
        taken=torch.zeros(COUNT),
        idle=idle,
    )
    assert [check.name for check in judged(auditor).failures] == ["noise of each step"]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("present", [True, False])
def test_a_contribution_that_is_no_number_is_too_much_whatever_its_sign(value, present):
    auditor = watched(relation=Relation.REPLACE_ONE, steps=STEPS - 1)
    seen = auditor.signs + torch.randn(COUNT, generator=torch.Generator().manual_seed(2))
    seen[(auditor.present == present).nonzero()[0]] = value
    auditor.observe(seen, noise=1.0, taken=torch.ones(COUNT))
    auditor.observe_push(value, noise=1.0)
    failed = {check.name for check in judged(auditor, relation=Relation.REPLACE_ONE).failures}
    assert {"contributions of canaries", "contributions in the model's own tensors"} <= failed


def test_an_infinite_claim_is_not_tested():
    found = judged(watched(), epsilon=float("inf"))
    assert not found.tested and "NOTHING WAS TESTED" in found.statement() and not found.refuted


def test_canaries_that_could_not_be_seen_test_nothing():
    found = judged(watched(), blind="nobody looked")
    assert not found.tested and "NOTHING WAS TESTED, as nobody looked" in found.statement()


def test_an_auditor_goes_on_where_it_was():
    first, second = (
        watched(),
        Auditor(count=COUNT, relation=Relation.ADD_REMOVE, sampling_rate=0.3, generator=seeded(9)),
    )
    second.load_state_dict(first.state_dict())
    assert judged(second) == judged(first)


MANY_TENSORS, MANY_STEPS = 150, 5000
MOST_BYTES = 4 << 20


@pytest.mark.parametrize("shared", [True, False])
def test_canaries_and_a_model_that_share_noise_are_found(shared):
    auditor, noise = watched(), np.random.default_rng(0).normal(size=4000)
    auditor.observe_places(np.concatenate([noise[:2000], -noise[:2000]]) if shared else noise)
    found = judged(auditor)
    assert found.refuted == shared
    assert ("coordinates 2000 apart are related" in found.statement()) == shared


def saved(auditor):
    file = io.BytesIO()
    torch.save(auditor.state_dict(), file)
    return file


def test_what_is_kept_of_a_long_run_of_a_large_model_takes_few_bytes():
    rate, draws = 0.01, np.random.default_rng(0)
    auditor = Auditor(count=1000, relation=Relation.ADD_REMOVE, sampling_rate=rate, generator=seeded(1))
    noise = torch.from_numpy(draws.normal(size=(16, 1000)))
    for step in range(MANY_STEPS):
        taken = auditor.present & torch.from_numpy(draws.random(1000) < rate)
        auditor.observe(noise[step % 16] + taken, noise=1.0, taken=taken, idle=noise[step % 15])
        for tensor in range(MANY_TENSORS):
            auditor.observe_energy(f"the model's layers.{tensor}.weight", 1000.0 + step, 1000)
    for _ in range(16):
        auditor.observe_trial(torch.cat([noise[0], noise[1]]), before=3)
        auditor.observe_places(draws.normal(size=4000))
        for tensor in range(MANY_TENSORS):
            auditor.observe_noise(f"the model's layers.{tensor}.weight", draws.normal(size=1000))
    file = saved(auditor)
    assert file.tell() < MOST_BYTES
    file.seek(0)
    again = Auditor(count=1000, relation=Relation.ADD_REMOVE, sampling_rate=rate, generator=seeded(2))
    again.load_state_dict(torch.load(file, weights_only=True))
    assert saved(again).getvalue() == file.getvalue()


def test_too_few_canaries_are_refused():
    with pytest.raises(InvalidParameterError, match="at least 20"):
        Auditor(count=10, relation=Relation.ADD_REMOVE, sampling_rate=1.0)
