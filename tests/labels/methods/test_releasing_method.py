# SPDX-License-Identifier: Apache-2.0
"""Every method that releases labels keeps to the interface, and charges for all that it releases."""

import pytest
import torch

from sfumato import Relation
from sfumato.accounting.composition import basic_epsilon
from sfumato.labels import Alibi, ClusterLabels, MultiStage, PriorLabels, RandomizedLabels
from sfumato.labels.methods.catalogue import RELEASING_METHODS
from sfumato.labels.methods.releasing_method import ReleasingMethod
from sfumato.testing import seeded

ROWS, CLASSES = 12, 3
LABELS = torch.arange(ROWS) % CLASSES
TERMS = {"epsilon": 1.5, "classes": CLASSES, "contribution_bound": 2}
METHODS: dict[str, ReleasingMethod] = {
    "randomized-response": RandomizedLabels(**TERMS),
    "prior-response": PriorLabels(**TERMS, prior=torch.ones(CLASSES)),
    "multi-stage": MultiStage(**TERMS),
    "alibi": Alibi(**TERMS),
    "clusters": ClusterLabels(**TERMS, clusters=torch.arange(ROWS) // 4),
}
each = pytest.mark.parametrize("name", list(METHODS))


def test_all_methods_that_release_labels_are_tested_here():
    assert {type(method) for method in METHODS.values()} == set(RELEASING_METHODS)


@each
def test_a_method_has_what_the_interface_states(name):
    method = METHODS[name]
    assert method.name == name and method.relation is Relation.REPLACE_LABEL
    assert (method.classes, method.contribution_bound) == (CLASSES, 2)
    method.check_size(rows=ROWS, units=ROWS // 2)
    lessons = method.lessons(ROWS)
    assert lessons[-1] == ROWS and all(count > 0 for count in lessons)


@each
def test_the_event_covers_all_labels_of_a_unit_and_not_more_than_epsilon(name):
    epsilon = basic_epsilon(METHODS[name].event(), delta=0.0, relation=Relation.REPLACE_LABEL)
    assert 1.49 < epsilon <= 1.5


@each
def test_a_release_has_a_target_for_each_row_and_a_loss_for_it(name):
    def teach(rows, released):
        return torch.full((ROWS, CLASSES), 1 / CLASSES)

    released = METHODS[name].release(LABELS, teach=teach, generator=seeded(0))
    assert len(released.targets) == ROWS
    logits = torch.zeros(ROWS, CLASSES)
    targets = released.targets
    targets = targets if isinstance(targets, torch.Tensor) else targets.at(torch.arange(ROWS), logits)
    assert released.loss(logits, targets).shape == (ROWS,)
