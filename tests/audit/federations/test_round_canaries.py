# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.audit import RoundCanaries
from sfumato.audit.evidence.results import AuditResult
from sfumato.errors import InvalidParameterError
from sfumato.federated import ClippedNoise, SecureSum
from sfumato.federated.secure_sum.simulated import simulated_sum
from sfumato.testing import seeded

torch.set_num_threads(1)

SUMS = SecureSum(
    dimension=60, clip_norm=0.5, noise_multiplier=2.0, cohort=50, least_survivors=40, noise="skellam"
)
NOISE = ClippedNoise(noise_multiplier=3.0, clip_norm=0.5)
CANARIES = RoundCanaries(count=200)


def sums(seed=0, canaries=CANARIES, mechanism=SUMS, **more) -> AuditResult:
    return canaries.sums(mechanism, rounds=2, delta=1e-5, generator=seeded(seed), **more)


def names(result):
    return [check.name for check in result.checks if check.failed]


@pytest.mark.parametrize("noise", ["skellam", "discrete-gaussian"])
def test_secure_sums_that_are_right_are_not_refuted(noise):
    found = sums(mechanism=replace(SUMS, noise=noise))
    assert not found.refuted and found.blind is None
    assert 0 < found.best.epsilon < found.claim.epsilon
    assert (found.claim.relation, found.claim.privacy_unit) == (Relation.ZERO_OUT, "client")
    assert "round" in found.statement() and "step" not in found.statement()


def test_the_claim_of_the_server_is_not_amplified_by_sampling():
    whole = price(SUMS.event(), delta=1e-5, relation=Relation.ZERO_OUT).epsilon
    assert sums().claim.epsilon > whole  # two sums cost more than one, whoever was asked


def test_a_sum_of_fewer_canaries_than_clients_has_clients_that_add_noise_alone():
    found = sums(canaries=RoundCanaries(count=30))
    assert len(found.in_scores) + len(found.out_scores) == 30
    assert not found.refuted


def with_less_noise(updates, mechanism, *, seed, generator):
    return simulated_sum(updates, mechanism.scaled(1.0), seed=seed, generator=generator)


def test_noise_that_is_too_small_is_found_in_sums():
    found = sums(take=with_less_noise)
    assert found.refuted
    assert any(name.startswith("noise") for name in names(found))


def saturated(updates, mechanism, *, seed, generator):
    found = simulated_sum(updates, mechanism, seed=seed, generator=generator)
    return np.clip(found, -20 * mechanism.clip_norm, 20 * mechanism.clip_norm)


def test_a_sum_that_the_modulus_does_not_hold_is_found():
    found = sums(take=saturated)
    assert names(found) == ["range of the sums"]
    assert found.refuted


def test_sums_that_are_skipped_show_nothing_and_are_no_pass():
    found = sums(take=lambda *given, **more: None)
    assert found.blind is not None and "skipped" in found.blind


def test_a_coarse_grid_is_refused():
    coarse = SecureSum(dimension=4, clip_norm=1.0, noise_multiplier=1.0, cohort=4, least_survivors=4, bits=8)
    with pytest.raises(InvalidParameterError, match="more bits"):
        sums(mechanism=coarse)


# --- messages ---------------------------------------------------------------------------------------------


def messages(send=None, seed=0, relation=Relation.REPLACE_ONE, canaries=CANARIES, rounds=2) -> AuditResult:
    source = seeded(seed)

    def plain(client, number, update):
        return NOISE.release(update[None], generator=source.fork(f"client {client}", number))[0]

    return canaries.messages(
        plain if send is None else lambda c, n, u: send(source, c, n, u),
        noise_multiplier=NOISE.noise_multiplier,
        clip_norm=NOISE.clip_norm,
        rounds=rounds,
        claim=price(NOISE.event(rounds), delta=1e-5, relation=relation).guarantee("client"),
        generator=seeded(seed),
    )


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ZERO_OUT])
def test_messages_that_are_right_are_not_refuted(relation):
    found = messages(relation=relation)
    assert not found.refuted
    assert found.best.epsilon < found.claim.epsilon
    assert "how long a client takes" in [each.name for each in found.unchecked]


def one_seed(source, client, number, update):
    return NOISE.release(update[None], generator=source.fork("all", number))[0]


def again_with_fresh_noise(source, client, number, update):
    forks = [source.fork(f"client {client}, {n}", number) for n in range(2)]
    return torch.cat([NOISE.release(update[None], generator=fork) for fork in forks])


def not_clipped(source, client, number, update):
    wide = replace(NOISE, clip_norm=1.0, noise_multiplier=1.5)
    return wide.release(update[None], generator=source.fork(f"client {client}", number))[0]


@pytest.mark.parametrize("send", [one_seed, again_with_fresh_noise, not_clipped])
def test_messages_that_are_wrong_are_found(send):
    assert messages(send, canaries=RoundCanaries(count=400)).refuted


def of_other_shapes(source, client, number, update):
    return torch.zeros(1 + client % 2, len(update))


def test_clients_must_send_as_many_messages_as_others():
    with pytest.raises(InvalidParameterError, match="as many messages"):
        messages(of_other_shapes)


@pytest.mark.parametrize("wrong", [{"count": 3}, {"count": 0}, {"confidence": 1.5}])
def test_canaries_that_show_nothing_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        RoundCanaries(**wrong)


@pytest.mark.slow
def test_right_code_is_accused_no_more_often_than_the_confidence_allows():
    for audit in (sums, messages):
        refuted = sum(audit(seed=seed).refuted for seed in range(60))
        assert refuted <= 8  # of 60 at 5% each: more has a chance of 0.3%
