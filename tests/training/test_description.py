# SPDX-License-Identifier: Apache-2.0
import dataclasses
import inspect
from typing import get_type_hints

import pytest
import torch
from torch import nn

import sfumato as sf
from sfumato import labels
from sfumato.errors import InvalidParameterError
from sfumato.labels.train import LabelKeywords
from sfumato.private import PrivateData
from sfumato.testing import seeded
from sfumato.training import (
    Charge,
    Clipping,
    Evaluation,
    Optimization,
    PoissonSampling,
    Privacy,
    Storage,
    Trainer,
    description,
    train,
)
from sfumato.training.description import RunKeywords, describe

KINDS = (Privacy, Optimization, Evaluation, Storage, Charge)
X, Y = torch.zeros(300, 2), torch.zeros(300, dtype=torch.int64)
OPTIONS = {"public_size": 300, "expected_batch_size": 30, "steps": 3, "delta": 1e-5, "progress": False}


def test_keywords_are_the_fields_of_the_five_objects():
    described = {}
    for kind in KINDS:
        hints = get_type_hints(kind)
        for each in dataclasses.fields(kind):
            assert each.name not in described, "one name, one meaning"
            described[each.name] = hints[each.name]
    del described["data"]  # which is the argument `evaluation`
    assert get_type_hints(RunKeywords) == described


def test_keywords_of_label_runs_are_keywords_of_all_runs_too():
    own = {"resume", "audit", "generator"}
    assert {k: v for k, v in get_type_hints(LabelKeywords).items() if k not in own}.items() <= get_type_hints(
        RunKeywords
    ).items()


@pytest.mark.parametrize("function", [train, Trainer, PrivateData.train])
def test_all_ways_to_train_take_the_same_objects(function):
    parameters = inspect.signature(function).parameters
    assert len([name for name in parameters if name != "self"]) <= 14
    assert {"privacy", "optimization", "evaluation", "storage"} <= set(parameters)
    assert parameters["keywords"].kind is inspect.Parameter.VAR_KEYWORD


def weights(**options):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    run = train(model, (X, Y), generator=seeded(0), **options)
    return run, torch.cat([p.detach().flatten() for p in model.parameters()])


def test_objects_and_keywords_give_the_same_run():
    by_name, first = weights(epsilon=2.0, clip_norm=0.5, learning_rate=0.3, **OPTIONS)
    privacy = Privacy(
        epsilon=2.0, clip_norm=0.5, public_size=300, expected_batch_size=30, steps=3, delta=1e-5
    )
    by_object, second = weights(
        privacy=privacy, optimization=Optimization(learning_rate=0.3), evaluation=Evaluation(progress=False)
    )
    assert by_name.mechanism == by_object.mechanism and torch.equal(first, second)


def test_a_plan_is_accepted_and_has_the_price_it_stated():
    plan = sf.plan(epsilon=2, delta=1e-5, public_size=300, expected_batch_size=30, steps=3)
    run, _ = weights(privacy=plan, progress=False)
    assert run.price.epsilon == plan.epsilon and run.guarantee.delta == 1e-5
    assert run.expected_batch_size == 30 and run.mechanism.steps == 3
    rate = sf.plan(epsilon=2, delta=1e-5, sampling_rate=0.1, steps=3)
    with pytest.raises(InvalidParameterError, match="public_size"):
        weights(privacy=rate, progress=False)
    assert weights(privacy=rate, progress=False, public_size=300)[0].price.epsilon == rate.epsilon


def test_an_epsilon_below_that_of_a_plan_is_refused_and_not_a_shorter_run():
    plan = sf.plan(epsilon=3, delta=1e-5, public_size=300, expected_batch_size=30, steps=3)
    with pytest.raises(InvalidParameterError, match="the plan costs"):
        weights(privacy=plan, epsilon=2.5, progress=False)
    assert weights(privacy=plan, epsilon=3, progress=False)[0].mechanism.steps == 3


def test_label_runs_take_three_of_the_objects():
    parameters = inspect.signature(labels.train).parameters
    assert {"evaluation", "storage", "charge"} <= set(parameters)
    assert not {"privacy", "optimization"} & set(parameters)


def test_the_short_call_needs_a_size_a_budget_and_epochs():
    run = train(nn.Linear(2, 2), (X, Y), public_size=300, epsilon=3, delta=1e-5, epochs=2, progress=False)
    assert run.expected_batch_size == 256 and run.epsilon <= 3


def test_a_keyword_fills_what_an_object_leaves_open_and_never_contradicts_it():
    described = describe({"epochs": 5}, privacy=Privacy(epsilon=1.0))
    assert (described.privacy.epsilon, described.privacy.epochs) == (1.0, 5)
    assert describe({"epsilon": 1.0}, privacy=Privacy(epsilon=1.0)).privacy.epsilon == 1.0
    with pytest.raises(InvalidParameterError, match="epsilon was given twice"):
        describe({"epsilon": 2.0}, privacy=Privacy(epsilon=1.0))
    owners = torch.arange(3)
    with pytest.raises(InvalidParameterError, match="owners was given twice"):
        describe({"owners": torch.arange(3)}, privacy=Privacy(owners=owners))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsilom": 1.0}, "Did you mean 'epsilon'"),
        ({"zzzz": 1.0}, "Known are: .*epsilon"),
        ({"privacy": 3.0}, r"sfumato\.plan"),
        ({"optimization": Privacy()}, r"sfumato\.training\.Optimization"),
        ({"storage": "runs/a"}, r"sfumato\.training\.Storage"),
        ({"charge": 1}, r"sfumato\.training\.Charge"),
    ],
)
def test_what_is_no_description_is_refused_in_words(options, says):
    with pytest.raises(InvalidParameterError, match=says):
        train(nn.Linear(2, 2), (X, Y), **options, **OPTIONS)


def test_a_mechanism_is_all_there_is_to_say_about_noise():
    mechanism = Trainer(nn.Linear(2, 2), (X, Y), noise_multiplier=1.0, **OPTIONS).mechanism
    assert mechanism.sampling == PoissonSampling(sampling_rate=0.1)
    run, _ = weights(privacy=mechanism, public_size=300, delta=1e-5, progress=False)
    assert run.mechanism is mechanism
    for more in ({"epsilon": 1.0}, {"clip_norm": 1.0}, {"clipping": Clipping(clip_norm=1.0)}, {"epochs": 1}):
        with pytest.raises(InvalidParameterError, match=f"leave out {next(iter(more))}"):
            weights(privacy=mechanism, public_size=300, delta=1e-5, progress=False, **more)


def test_a_batch_size_that_contradicts_the_sampling_is_refused():
    plan = sf.plan(epsilon=2, delta=1e-5, public_size=300, expected_batch_size=30, steps=3)
    with pytest.raises(InvalidParameterError, match="another expected_batch_size"):
        weights(privacy=plan, progress=False, expected_batch_size=60)
    assert weights(privacy=plan, progress=False, expected_batch_size=30)[0].expected_batch_size == 30


@pytest.mark.parametrize(
    ("given", "ours"),
    [("max_grad_norm", "clip_norm"), ("batch_size", "expected_batch_size"), ("lr", "learning_rate")],
)
def test_a_name_of_another_library_is_answered_with_ours(given, ours):
    with pytest.raises(InvalidParameterError, match=f"{given!r}. Did you mean {ours!r}"):
        describe({given: 1})


def test_names_of_other_libraries_are_none_of_ours():
    known = {each.name for kind in KINDS for each in dataclasses.fields(kind)}
    assert set(description._ELSEWHERE.values()) <= known
    assert not set(description._ELSEWHERE) & known


def test_a_criterion_of_torch_is_no_loss():
    with pytest.raises(InvalidParameterError, match="takes outputs and targets"):
        describe({"loss": nn.CrossEntropyLoss(reduction="none")})
