# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.pate.students.semi_supervised import (
    SelfTraining,
    SemiSupervisedStudent,
    clearest_rows,
    relabelled,
)
from sfumato.pate.students.student_recipes import student_for
from sfumato.pate.students.supervised import SupervisedStudent
from sfumato.training.random_state import same_draws

torch.set_num_threads(1)

X, Y = load_digits(return_X_y=True)
ROWS, TRUE = torch.from_numpy(X[:1400]).float() / 16, Y[:1400]
TEST, TEST_TRUE = torch.from_numpy(X[1400:]).float() / 16, Y[1400:]
DRAWN = np.random.default_rng(0).permutation(1400)[:60]
ANSWERS = np.full(1400, -1)
ANSWERS[DRAWN] = TRUE[DRAWN]


def student(**settings: object) -> SemiSupervisedStudent:
    model = student_for("digits", shape=(64,), classes=10).model
    return SemiSupervisedStudent(model=model, settings=SelfTraining(**settings))


def accuracy(fitted: object) -> float:
    return float((fitted.predict(TEST) == TEST_TRUE).mean())


def test_unanswered_rows_help_by_a_margin():
    both = student().fit(ROWS, ANSWERS, classes=10, progress=False)
    alone = SupervisedStudent(LogisticRegression(max_iter=1000)).fit(ROWS, ANSWERS, classes=10)
    assert both.answered == alone.answered == 60
    assert accuracy(both) > accuracy(alone) + 0.05


def test_wrong_answers_are_doubted_and_not_learned():
    wrong = ANSWERS.copy()
    wrong[DRAWN[:3]] = (wrong[DRAWN[:3]] + 5) % 10  # 5 percent
    fitted = student().fit(ROWS, wrong, classes=10, progress=False)
    assert fitted.doubted >= 2
    assert (fitted.predict(ROWS[DRAWN[:3]]) == TRUE[DRAWN[:3]]).sum() >= 2
    assert accuracy(fitted) > 0.85


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    def weights(seed: int) -> torch.Tensor:
        fitted = student(epochs=2, least_steps=1, seed=seed).fit(ROWS, ANSWERS, classes=10, progress=False)
        return torch.cat([p.detach().flatten() for p in fitted.model.parameters()])

    assert weights(0).equal(weights(0))
    assert not weights(0).allclose(weights(1))


def test_dropout_follows_the_seed_and_not_the_global_state():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10))
    made = SemiSupervisedStudent(model=model, settings=SelfTraining(epochs=2, least_steps=1))

    def weights(state: int) -> torch.Tensor:
        with same_draws(seed=state):
            return made.fit(ROWS, ANSWERS, classes=10, progress=False).model[1].weight

    assert weights(1).equal(weights(2))


def test_the_result_has_averaged_weights():
    def weights(decay: float) -> torch.Tensor:
        made = student(least_steps=100, first_part=1.0, ema_decay=decay)
        return made.fit(ROWS, ANSWERS, classes=10, progress=False).model[1].weight

    assert not weights(0.5).equal(weights(0.9))  # the last weights are the same: nothing is labelled again


def test_neither_the_model_nor_global_randomness_is_changed():
    made = student(epochs=1, least_steps=1)
    before, state = made.model[1].weight.clone(), torch.get_rng_state()
    made.fit(ROWS, ANSWERS, classes=10, progress=False)
    assert made.model[1].weight.equal(before)
    assert torch.get_rng_state().equal(state)


def test_augment_changes_what_is_learned_and_gets_whole_batches():
    sizes: list[int] = []

    def noisy(batch: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        sizes.append(len(batch))
        return batch + 0.05 * torch.randn(batch.shape, generator=draws)

    fitted = student(epochs=2, least_steps=1, augment=noisy).fit(ROWS, ANSWERS, classes=10, progress=False)
    assert sizes[:16] == [1400] * 16  # views for the graph
    assert max(sizes[16:]) <= 128
    assert fitted.beliefs.shape == (1400, 10)


def test_the_clearest_rows_keep_their_labels_and_no_class_is_lost():
    beliefs = torch.eye(3).repeat_interleave(4, dim=0) * 0.9 + 0.03
    collapsed = torch.tensor([1.0, 0.0, 0.0]).expand(12, 3)  # a network that knows a single class
    taken, labels = relabelled(collapsed, beliefs, SelfTraining(kept_share=0.5, trust=0.0))
    assert taken.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert labels.tolist() == [0] * 4 + [1, 1, 0, 0] + [2, 2, 0, 0]


def test_trust_weighs_beliefs_against_predictions():
    beliefs = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.99, 0.01]])
    predicted = torch.tensor([[0.2, 0.8], [0.2, 0.8], [0.9, 0.1]])
    labels = [
        relabelled(predicted, beliefs, SelfTraining(kept_share=0.3, trust=trust))[1][1].item()
        for trust in (0.0, 1.0, 4.0)
    ]
    assert labels == [1, 1, 0]


def test_rows_that_are_not_sure_are_left_out():
    beliefs = torch.tensor([[0.99, 0.01], [0.5, 0.5], [0.5, 0.5], [0.02, 0.98]])
    predicted = torch.tensor([[0.9, 0.1], [0.98, 0.02], [0.999, 0.001], [0.1, 0.9]])
    taken, _ = relabelled(predicted, beliefs, SelfTraining(kept_share=0.3, confidence=0.99))
    assert taken.tolist() == [0, 2, 3]


def test_later_epochs_learn_labels_of_the_network():
    first = student(least_steps=60, first_part=1.0).fit(ROWS, ANSWERS, classes=10, progress=False)
    later = student(least_steps=60, first_part=0.3).fit(ROWS, ANSWERS, classes=10, progress=False)
    assert not first.model[1].weight.equal(later.model[1].weight)


def test_one_answered_class_gives_a_constant_student():
    fitted = student().fit(ROWS, np.where(ANSWERS == 3, 3, -1), classes=10, progress=False)
    assert fitted.constant
    assert set(fitted.predict(TEST).tolist()) == {3}


def test_arrays_of_whole_numbers_are_rows_too():
    fitted = student(epochs=1, least_steps=1).fit(
        X[:1400].astype(np.int64), ANSWERS, classes=10, progress=False
    )
    assert fitted.predict(X[1400:1403].astype(np.int64)).shape == (3,)


def test_clearest_rows_are_a_share_of_each_class():
    beliefs = torch.tensor([[0.9, 0.1], [0.55, 0.45], [0.8, 0.2], [0.7, 0.3], [0.1, 0.9]])
    assert clearest_rows(beliefs, share=0.5).tolist() == [0, 2, 4]
    assert clearest_rows(beliefs, share=1.0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"confidence": 1.5},
        {"first_share": 0.0},
        {"kept_share": 0.0},
        {"trust": -1.0},
        {"ema_decay": 1.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        SelfTraining(**wrong)


def test_bad_input_is_refused_before_anything_is_learned():
    with pytest.raises(UnsupportedModelError, match="10 classes"):
        SemiSupervisedStudent(model=nn.Linear(64, 9)).fit(ROWS, ANSWERS, classes=10, progress=False)
    with pytest.raises(InvalidParameterError, match="must be numbers"):
        student().fit(np.array([["a"]]), [0], classes=10, progress=False)
    with pytest.raises(InvalidParameterError, match="nothing to learn"):
        SemiSupervisedStudent(model=nn.Linear(64, 10).requires_grad_(False)).fit(
            ROWS, ANSWERS, classes=10, progress=False
        )
