# SPDX-License-Identifier: Apache-2.0
"""What is asked of an attack on a finished run, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.audit.evidence.results import AuditResult, LowerBound
from sfumato.audit.runs.canaries import Canaries
from sfumato.audit.runs.run_attack import attack
from sfumato.errors import InvalidParameterError
from sfumato.labels import LabelDpSgd, Learner, RandomizedLabels
from sfumato.labels import train as train_on_labels
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

ROWS = 40
X, Y = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 3
MEMBERS, OTHERS = (X[:20], Y[:20]), (X[20:], Y[20:])


def trained(audit=None):
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=1.0),
        noise=[(1.0, 4)],
        relation="add-remove",
    )
    return Trainer(
        nn.Linear(4, 3),
        MEMBERS,
        mechanism=mechanism,
        public_size=20,
        delta=1e-5,
        learning_rate=0.1,
        audit=audit,
        progress=False,
        generator=seeded(1),
    ).fit()


def trained_on_labels(method, **options):
    return train_on_labels(nn.Linear(4, 3), X, Y, method=method, generator=seeded(1), **options)


def test_canaries_of_a_run_stand_beside_its_claim():
    run = trained(Canaries(count=400))
    found = attack(run)
    assert found.claim == run.guarantee and found.canaries is run.audit and found.membership is None
    assert found.audited and not found.refuted
    assert [roc.name for roc in found.rocs] == ["canaries"]
    assert found.statement() == f"The claim is {run.guarantee}. {run.audit.statement()}"


def test_losses_of_rows_are_an_estimate_beside_the_bound():
    found = attack(trained(Canaries(count=400)), members=MEMBERS, others=OTHERS)
    assert [roc.name for roc in found.rocs] == ["canaries", "membership by loss"]
    assert len(found.membership.in_scores) == len(found.membership.out_scores) == 20
    assert "an estimate and no bound" in found.tried()[1]
    alone = attack(trained(), members=MEMBERS, others=OTHERS)
    assert alone.canaries is None and not alone.refuted and len(alone.tried()) == 1
    assert not alone.audited and "The claim was not audited: the run has no canaries" in alone.statement()


def test_a_bound_above_the_claim_refutes_it():
    run = trained(Canaries(count=400))
    bound = LowerBound(
        epsilon=run.epsilon + 1, delta=run.guarantee.delta, confidence=0.95, attack="proof", trials=1
    )
    object.__setattr__(run, "audit", AuditResult(subject="a run", claim=run.guarantee, bounds=(bound,)))
    found = attack(run)
    assert found.refuted and "THE CLAIM IS FALSE" in found.statement()
    assert found.rocs == []  # it came without scores


def test_nothing_to_attack_with_is_refused():
    with pytest.raises(InvalidParameterError, match=r"no canaries.*audit=Canaries"):
        attack(trained())
    for half in ({"members": MEMBERS}, {"others": OTHERS}):
        with pytest.raises(InvalidParameterError, match="both members and others"):
            attack(trained(), **half)


def test_a_run_on_labels_is_attacked_by_its_noisy_gradients():
    method = LabelDpSgd(
        epsilon=2.0,
        delta=1e-5,
        classes=3,
        public_size=ROWS,
        steps=4,
        expected_batch_size=ROWS // 2,
    )
    run = trained_on_labels(method, audit=Canaries(count=400), progress=False)
    found = attack(run)
    assert found.claim == run.guarantee and found.canaries is run.training.audit
    assert attack(run, members=MEMBERS, others=OTHERS).membership is not None


def test_a_run_that_released_labels_is_refused_with_what_to_do():
    run = trained_on_labels(RandomizedLabels(epsilon=1.0, classes=3), learner=Learner(epochs=1))
    with pytest.raises(InvalidParameterError, match=r"'randomized-response'.*audit_mechanism"):
        attack(run)
    with pytest.raises(InvalidParameterError, match="audit_mechanism"):
        attack(run, members=MEMBERS, others=OTHERS)


@pytest.mark.parametrize("rows", [{}, {"members": MEMBERS, "others": OTHERS}])
def test_weights_that_were_changed_after_the_run_are_not_taken_for_those_that_were_audited(rows):
    run = trained(Canaries(count=400))
    attack(run, **rows)
    with torch.no_grad():
        run.model.weight[0, 0] += 1
    with pytest.raises(InvalidParameterError, match="weights of the model were changed after the run"):
        attack(run, **rows)


def test_a_refuted_claim_stays_refuted_whatever_became_of_the_weights():
    run = trained(Canaries(count=400))
    best = replace(run.audit.bounds[0], epsilon=run.epsilon + 1)
    run = replace(run, audit=replace(run.audit, bounds=(best,)))
    nn.init.zeros_(run.model.weight)
    assert attack(run).refuted
