# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from sfumato.audit.models.attribute_inference import Attribute, infer_attribute, value_scores
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import train

SECRET = Attribute.one_hot([6, 7, 8])
FLAG = Attribute(columns=(1,), values=((0.0,), (1.0,)))


def patients(count, seed, values=3):
    generator = torch.Generator().manual_seed(seed)
    known = torch.randn(count, 6, generator=generator)
    secret = torch.randint(values, (count,), generator=generator)
    needed = known[:, 0] + secret - 1 + torch.randn(count, generator=generator)
    return torch.cat([known, F.one_hot(secret, values)], 1), torch.bucketize(
        needed, torch.tensor([-1.0, 1.0])
    )


MEMBERS, OUTSIDERS, POPULATION = patients(300, 1), patients(1500, 2), patients(1500, 3)


def network():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, 3))
    for parameter in model.parameters():
        parameter.data.uniform_(-0.3, 0.3, generator=generator)
    return model


def attack(model, members=MEMBERS, outsiders=OUTSIDERS, population=POPULATION, **asked):
    return infer_attribute(model, members, outsiders, population=population, attribute=SECRET, **asked)


@pytest.fixture(scope="module")
def leaky():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(250):
        optimizer.zero_grad()
        F.cross_entropy(model(MEMBERS[0]), MEMBERS[1]).backward()
        optimizer.step()
    return attack(model)


def test_a_model_that_remembers_gives_its_members_away(leaky):
    assert leaky.leaks and leaky.over_outsiders.low > 0
    assert leaky.over_population.low > 0
    assert leaky.members.value > leaky.outsiders.value + 0.1
    assert "is shown at confidence 0.95" in leaky.statement()


def test_a_private_model_does_not(leaky):
    model = network()
    train(
        model,
        MEMBERS,
        public_size=300,
        expected_batch_size=100,
        epochs=10,
        epsilon=1,
        delta=1e-4,
        learning_rate=0.3,
        generator=seeded(0),
        progress=False,
    )
    found = attack(model)
    assert not found.leaks
    assert found.over_outsiders.high < leaky.over_outsiders.value + 0.05
    assert "is not shown" in found.statement()


def test_a_model_of_the_population_leaks_nothing_about_members():
    """Trained on other rows: members and outsiders are the same to it."""
    model = LogisticRegression().fit(*patients(1500, 4))
    assert not attack(model).leaks


def test_no_more_false_alarms_than_the_confidence_allows():
    """Members drawn anew, for a model that has seen none of them."""
    model = LogisticRegression().fit(*patients(1500, 4))
    outsiders = tuple(part[:200] for part in OUTSIDERS)
    alarms = [
        attack(model, members=patients(100, 100 + s), outsiders=outsiders, confidence=0.8).leaks
        for s in range(40)
    ]
    assert sum(alarms) <= 4  # a share of 0.1 may leave the interval on this side; union bounds leave fewer


def test_the_value_under_which_the_label_is_likeliest_is_guessed():
    class Doses:
        def predict_proba(self, rows):
            return np.where(rows[:, 1:2] == 1, [[0.1, 0.9]], [[0.8, 0.2]])

    scores = value_scores(Doses(), np.zeros((2, 2)), [0, 1], attribute=FLAG)
    odds = np.log([[0.8 / 0.2, 0.1 / 0.9], [0.2 / 0.8, 0.9 / 0.1]])
    np.testing.assert_allclose(scores, odds, rtol=1e-9)


def test_the_secret_of_a_row_does_not_change_what_is_guessed():
    model = LogisticRegression().fit(*patients(500, 4))
    x, y = (part.numpy() for part in patients(30, 5))
    changed = SECRET.write(x, 0)
    before, after = (value_scores(model, rows, y, attribute=SECRET) for rows in (x, changed))
    np.testing.assert_array_equal(before, after)


def test_a_secret_that_other_columns_tell_is_no_leak_of_the_model():
    """The population gives it away: a model that adds nothing has no advantage over it."""
    x = np.random.default_rng(0).integers(2, size=(400, 1)).astype(float)
    rows = np.concatenate([x, x], 1), x[:, 0].astype(int)

    class Silent:
        def predict_proba(self, rows):
            return np.full((len(rows), 2), 0.5)

    found = infer_attribute(Silent(), rows, rows, population=rows, attribute=FLAG)
    assert found.population.value == 1.0 and found.over_population.value == 0.0 and not found.leaks


def test_a_value_that_the_population_never_shows_can_still_be_guessed():
    class Sure:
        def predict_proba(self, rows):
            return np.where(rows[:, 1:2] == 1, [[1 - 1e-12, 1e-12]], [[1e-12, 1 - 1e-12]])

    without, rows = ((np.full((20, 2), value), np.zeros(20, dtype=int)) for value in (0.0, 1.0))
    found = infer_attribute(Sure(), rows, rows, population=without, attribute=FLAG)
    assert found.members.value == 1.0 and found.population.value == 0.0


def test_rows_of_any_way_of_writing_are_read():
    years = Attribute(columns=(0, 2), values=((1.0, 5.0), (2.0, 5.0), (1.0, 6.0)))
    rows = np.array([[1.0, 9.0, 6.0], [2.0, 9.0, 5.0], [1.0, 9.0, 5.0]])
    assert years.read(rows).tolist() == [2, 1, 0]
    assert years.read(years.write(rows, 1)).tolist() == [1, 1, 1]
    assert years.rest(rows).tolist() == [[9.0]] * 3


@pytest.mark.parametrize(
    ("columns", "values", "said"),
    [
        ((), (), "columns must be"),
        ((1, 1), ((0.0, 0.0), (1.0, 1.0)), "columns must be"),
        ((-1,), ((0.0,), (1.0,)), "column must be"),
        ((0,), ((0.0,),), "two or more"),
        ((0,), ((0.0,), (0.0,)), "all different"),
        ((0,), ((0.0, 1.0), (1.0, 0.0)), "one number for each"),
        ((0,), ((0.0,), (float("nan"),)), "value must be"),
    ],
)
def test_a_secret_that_makes_no_sense_is_refused(columns, values, said):
    with pytest.raises(InvalidParameterError, match=said):
        Attribute(columns=columns, values=values)


def test_a_row_with_none_of_the_values_is_refused_without_showing_it():
    with pytest.raises(InvalidParameterError, match="none of the values") as refusal:
        FLAG.read(np.array([[0.0, 0.7351]]))
    assert "0.7351" not in str(refusal.value)


@pytest.mark.parametrize("group", ["members", "outsiders", "population"])
def test_too_few_rows_are_refused_and_told_how_many_are_needed(group):
    with pytest.raises(InvalidParameterError, match=f"{group} must have at least 7 rows"):
        attack(network(), **{group: tuple(part[:6] for part in MEMBERS)})


def test_groups_of_other_columns_cannot_be_compared():
    wide = torch.cat([MEMBERS[0], MEMBERS[0]], 1), MEMBERS[1]
    with pytest.raises(InvalidParameterError, match="same columns"):
        attack(network(), outsiders=wide)


def test_rows_without_the_secrets_columns_are_refused():
    with pytest.raises(InvalidParameterError, match="members must be a table"):
        attack(network(), members=(MEMBERS[0][:, :5], MEMBERS[1]))
