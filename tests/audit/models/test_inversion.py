# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from sfumato.audit.models.inversion import invert, score_inversion, similarity
from sfumato.datasets import load
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import train

PEOPLE, BOUNDS = 20, (0.0, 1.0)
DIGITS = load("digits")
FACES, WHO = DIGITS.train.features[:: len(DIGITS.train) // PEOPLE][:PEOPLE], torch.arange(PEOPLE)
AVERAGE = DIGITS.test.features.mean(0)


def filled(model):
    """Give a network weights that are the same in every run."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.uniform_(-0.15, 0.15, generator=generator)
    return model


def network(classes):
    return filled(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, classes)))


def remember(model, x, y, steps=150):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def attack(model, **asked):
    drawn = invert(model, labels=WHO, shape=(1, 8, 8), bounds=BOUNDS, expected=AVERAGE, steps=150)
    return score_inversion(drawn, labels=WHO, train=(FACES, WHO), expected=AVERAGE, bounds=BOUNDS)


def test_a_model_that_remembers_people_shows_their_faces():
    found = attack(remember(network(PEOPLE), FACES, WHO))
    assert found.identifies and found.identified.value > 0.9
    assert found.advantage.low == found.identified.low - 1 / PEOPLE > 0.5
    assert np.mean(found.similarity) > np.mean(found.expected_similarity) + 0.1
    assert "5.0% by chance" in found.statement() and "without the model" in found.statement()


def test_a_private_model_does_not():
    model = network(PEOPLE)
    train(
        model,
        (FACES, WHO),
        public_size=PEOPLE,
        expected_batch_size=10,
        steps=40,
        epsilon=1,
        delta=1e-3,
        learning_rate=0.3,
        generator=seeded(0),
        progress=False,
    )
    found = attack(model)
    assert not found.identifies
    assert np.mean(found.similarity) < np.mean(found.expected_similarity)


def split(per_class, seed):
    """Return two sets of equally many rows of each digit."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(DIGITS.train), generator=generator)
    places = [order[DIGITS.train.labels[order] == digit][: 2 * per_class] for digit in range(10)]
    return [
        (DIGITS.train.features[rows], DIGITS.train.labels[rows])
        for rows in (torch.cat([p[:per_class] for p in places]), torch.cat([p[per_class:] for p in places]))
    ]


def nearer(trained_on, rows, held_out):
    model = remember(network(10), *trained_on)
    drawn = invert(model, labels=range(10), shape=(1, 8, 8), bounds=BOUNDS, expected=AVERAGE, steps=100)
    return score_inversion(drawn, labels=range(10), train=rows, held_out=held_out, bounds=BOUNDS)


def test_drawings_are_nearer_to_training_rows_than_to_held_out_ones_of_the_same_digit():
    trained, held_out = split(1, seed=0)
    found = nearer(trained, trained, held_out)
    assert found.remembers and "nearest to a training row" in found.statement()
    assert not nearer(held_out, trained, held_out).remembers  # seen from the other side: power, not bias


def test_a_drawing_of_what_all_share_is_recognized_but_remembers_nobody():
    """Classes of many rows: identified is about the digit, nearer about the rows."""
    trained, held_out = split(40, seed=1)
    other = split(60, seed=2)[0]
    found = nearer(other, trained, held_out)
    assert found.identifies and not found.remembers


class Planes:
    """Softmax of a linear function, for those who may ask for probabilities only."""

    def __init__(self, weights, classes):
        self.weights, self.classes_ = weights, np.array(classes)

    def predict_proba(self, rows):
        logits = rows.reshape(len(rows), -1) @ self.weights.T
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_asking_for_probabilities_draws_what_slopes_draw():
    weights = np.random.default_rng(0).normal(size=(3, 6))
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False))
    model[1].weight.data = torch.from_numpy(weights).float()
    asked = {"shape": (1, 2, 3), "bounds": (-1.0, 3.0), "steps": 40}
    by_slopes = invert(model, labels=[2, 0], **asked)
    by_asking = invert(Planes(weights, ["a", "b", "c"]), labels=["c", "a"], **asked)
    torch.testing.assert_close(by_slopes, by_asking, atol=0.02, rtol=0.0)


def test_a_scikit_learn_model_can_be_inverted():
    x, y = FACES.flatten(1).numpy()[:8], np.arange(8)
    model = LogisticRegression(C=100).fit(x, y)
    drawn = invert(model, labels=y, shape=(64,), bounds=BOUNDS, steps=60, closeness=0.01)
    assert score_inversion(drawn, labels=y, train=(x, y), bounds=BOUNDS).identifies


def test_drawings_stay_within_bounds_and_leave_the_model_as_it_was():
    model = filled(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5)))
    before = [p.clone() for p in model.parameters()]
    drawn = invert(
        model, labels=[0, 1, 2], shape=(1, 2, 2), bounds=(-2.0, 5.0), closeness=0.0, learning_rate=0.3
    )
    assert drawn.min() >= -2 and drawn.max() <= 5 and not drawn.requires_grad
    assert drawn.max() == 5 or drawn.min() == -2  # a line has no end but the bounds
    assert all(p.grad is None for p in model.parameters()) and model[2].training
    assert all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True))


def test_closeness_keeps_a_drawing_at_what_was_expected():
    model, expected = filled(nn.Linear(2, 2)), torch.tensor([0.2, 0.7])
    drawn = invert(model, labels=[0, 1], shape=(2,), bounds=BOUNDS, expected=expected, closeness=1e4)
    torch.testing.assert_close(drawn, expected.expand(2, 2), atol=0.01, rtol=0.0)


def test_smoothness_makes_neighbors_alike():
    model = filled(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    rough, smooth = (
        invert(model, labels=range(4), shape=(1, 8, 8), bounds=BOUNDS, smoothness=s, steps=80)
        for s in (0.0, 10.0)
    )
    assert smooth.diff(dim=-1).abs().mean() < rough.diff(dim=-1).abs().mean() / 5


# Of scikit-image 0.26.0: structural_similarity(a, b, data_range=1.0).
LINES, HILLS = np.add.outer(range(9), range(8)) % 5 / 4, np.multiply.outer(range(9), range(8)) % 5 / 4


@pytest.mark.parametrize(
    ("one", "other", "known"),
    [(LINES, HILLS, 0.050154714433), (LINES, LINES / 2, 0.640971193156), (LINES, LINES, 1.0)],
    ids=["another", "darker", "same"],
)
def test_similarity_is_that_of_scikit_image(one, other, known):
    found = similarity(one[None, None], other[None, None], bounds=BOUNDS)
    assert found == pytest.approx([known], abs=1e-9)


def test_similarity_knows_scale_and_needs_no_pictures():
    near = similarity(100 * LINES[None, None], 100 * HILLS[None, None], bounds=(0.0, 100.0))
    assert near == pytest.approx([0.050154714433], abs=1e-9)
    flat = similarity(LINES.reshape(1, -1), 1 - LINES.reshape(1, -1), bounds=BOUNDS)
    assert flat[0] < -0.5


def test_drawings_of_everybody_alike_are_identified_by_chance():
    found = score_inversion(
        AVERAGE.expand(PEOPLE, 1, 8, 8), labels=WHO, train=(FACES, WHO), expected=AVERAGE, bounds=BOUNDS
    )
    assert found.identified.value == pytest.approx(1 / PEOPLE) and not found.identifies
    assert found.similarity == found.expected_similarity


def test_what_chance_explains_is_no_recognition():
    drawn = AVERAGE.repeat(PEOPLE, 1, 1, 1)
    drawn[:2] = FACES[:2]  # two of twenty, or three with the one that is nearest to the average
    found = score_inversion(drawn, labels=WHO, train=(FACES, WHO), bounds=BOUNDS)
    assert found.identified.value > found.chance and not found.identifies


def test_a_tie_is_no_memory():
    found = score_inversion(FACES, labels=WHO, train=(FACES, WHO), held_out=(FACES, WHO), bounds=BOUNDS)
    assert found.nearer.value == 0.0 and not found.remembers


def test_classes_too_few_for_the_confidence_are_refused_and_told_how_many_are_needed():
    with pytest.raises(InvalidParameterError, match="at least 4 classes"):
        score_inversion(np.eye(2), labels=range(2), train=(np.eye(2), np.arange(2)), bounds=BOUNDS)
    with pytest.raises(InvalidParameterError, match="at least 5 classes"):
        score_inversion(
            np.eye(4), labels=range(4), train=(np.eye(4), np.arange(4)), bounds=BOUNDS, confidence=0.999
        )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"train": (FACES, WHO + 1)}, "every label"),
        ({"train": (FACES[:, :, :4], WHO)}, "same shape"),
        ({"labels": WHO[:5]}, "one for each label"),
        ({"held_out": (FACES.repeat(2, 1, 1, 1), WHO.repeat(2))}, "as many rows of each label"),
        ({"expected": AVERAGE[0]}, "shape of a drawing"),
        ({"train": (FACES * float("nan"), WHO)}, "NaN"),
        ({"confidence": 1.0}, "confidence"),
    ],
    ids=lambda value: value if isinstance(value, str) else "asked",
)
def test_rows_that_cannot_be_compared_are_refused(asked, said):
    given = {"labels": WHO, "train": (FACES, WHO), "bounds": BOUNDS} | asked
    with pytest.raises(InvalidParameterError, match=said):
        score_inversion(FACES, **given)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"labels": []}, "labels"),
        ({"labels": [3]}, "not one of the 2 classes"),
        ({"shape": ()}, "shape"),
        ({"bounds": (1.0, 0.0)}, "bounds"),
        ({"closeness": -1.0}, "closeness"),
        ({"smoothness": float("nan")}, "smoothness"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"expected": torch.zeros(3)}, "one row of shape"),
        ({"expected": torch.full((2,), float("nan"))}, "without NaN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "asked",
)
def test_an_inversion_that_makes_no_sense_is_refused(asked, said):
    given = {"labels": [0], "shape": (2,), "bounds": BOUNDS} | asked
    with pytest.raises(InvalidParameterError, match=said):
        invert(nn.Linear(2, 2), **given)
