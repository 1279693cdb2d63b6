# SPDX-License-Identifier: Apache-2.0
import inspect

import pandas as pd
import pytest

import sfumato as sf
from sfumato import statistics

FRAME = pd.DataFrame({"age": [20.0, 40.0] * 200, "income": [1.0, 3.0] * 200, "city": ["Rome", "Oslo"] * 200})


@pytest.fixture
def people():
    """Return private data with a large budget."""
    return sf.open("people", FRAME, budget=sf.Budget(epsilon=300, delta=1e-6))


def test_a_column_a_category_and_rows_are_asked_about_by_name(people):
    assert people.mean("age", bounds=(0, 100), epsilon=50).value == pytest.approx(30, abs=1)
    assert set(people.top_k("city", k=2, categories=["Rome", "Oslo", "Bonn"], epsilon=50).value) == {
        "Rome",
        "Oslo",
    }
    found = people.covariance(["age", "income"], bounds=[(0, 100), (0, 5)], epsilon=100, delta=1e-7)
    assert found.value[0, 1] == pytest.approx(10, rel=0.3)


def test_every_answer_is_charged_to_the_account(people):
    people.mean("age", bounds=(0, 100), epsilon=1)
    people.median("age", bounds=(0, 100), epsilon=1)
    assert len(people.account.releases()) == 2


def test_a_method_is_documented_as_its_function_is(people):
    assert inspect.getdoc(people.mean) == inspect.getdoc(statistics.mean)
