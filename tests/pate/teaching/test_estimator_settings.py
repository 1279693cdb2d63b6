# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.ensemble import BaggingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from sfumato.pate import TorchClassifier
from sfumato.pate.teaching.estimator_settings import fresh, settings_digest

ELSEWHERE = """
import torch
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from sfumato.pate import TorchClassifier
from sfumato.pate.teaching.estimator_settings import settings_digest
""" + (
    SHOWN := """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
print(settings_digest(make_pipeline(TorchClassifier(model))), settings_digest(DecisionTreeClassifier()))
"""
)


def test_the_hash_is_the_same_in_every_process(capfd):
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True)
    exec(SHOWN)
    assert done.stdout == capfd.readouterr().out != ""


def test_every_setting_counts_also_of_parts():
    digests = [
        settings_digest(estimator)
        for estimator in (
            DecisionTreeClassifier(),
            DecisionTreeClassifier(max_depth=3),
            make_pipeline(DecisionTreeClassifier()),
            make_pipeline(DecisionTreeClassifier(max_depth=3)),
            make_pipeline(FunctionTransformer(np.log), DecisionTreeClassifier()),
            make_pipeline(FunctionTransformer(np.exp), DecisionTreeClassifier()),
            DecisionTreeClassifier(class_weight={0: 1.0, 1: 2.0}),
            DecisionTreeClassifier(class_weight={0: 1.0, 1: 3.0}),
        )
    ]
    assert len(set(digests)) == len(digests)


def test_weights_and_layers_of_a_network_count():
    linear = nn.Linear(3, 2)
    other = nn.Linear(3, 2)
    models = [linear, other, nn.Sequential(linear), nn.Sequential(linear, nn.ReLU())]
    digests = {settings_digest(TorchClassifier(model)) for model in models}
    assert len(digests) == 4
    assert settings_digest(TorchClassifier(linear)) in digests
    halves = nn.Linear(3, 2).to(torch.bfloat16)
    assert settings_digest(TorchClassifier(halves)) == settings_digest(TorchClassifier(halves))


def test_each_teacher_and_each_part_gets_a_seed_of_its_own():
    bagging = BaggingClassifier(DecisionTreeClassifier(), random_state=1)
    one, again, two = fresh(bagging, b"k", 1), fresh(bagging, b"k", 1), fresh(bagging, b"k", 2)
    seeds = [one.random_state, one.estimator.random_state, two.random_state, two.estimator.random_state]
    assert len({*seeds, fresh(bagging, b"other", 1).random_state}) == 5
    assert again.random_state == one.random_state and bagging.random_state == 1
    assert fresh(TorchClassifier(nn.Linear(1, 2)), b"k", 1).seed != 0


def test_a_setting_that_cannot_be_pickled_has_no_hash():
    with pytest.raises(Exception, match=r"ickle|lambda"):
        settings_digest(FunctionTransformer(lambda x: x))
