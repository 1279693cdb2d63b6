# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.experiments import Experiment, Finding, Scale, Table, Verdict


def made(**changed):
    settings = dict(
        name="one-two",
        report="mine",
        shows=(),
        title="Title",
        claim="Claim.",
        cases=lambda scale: [],
        measure=lambda case, scale: {},
        tables=lambda rows: [],
        finding=lambda rows: Finding(Verdict.REFUTED, "No."),
    )
    return Experiment(**(settings | changed))


def test_a_name_is_one_of_a_file():
    assert made().name == "one-two"
    for wrong in ("", "../x", "Upper", "with space", "-"):
        with pytest.raises(InvalidParameterError, match="name"):
            made(name=wrong)


def test_an_experiment_without_figures_draws_none():
    assert made().figures([]) == {}


def test_a_table_has_a_cell_for_each_column():
    assert Table("t", ("a", "b"), [(1, 2)]).rows == [(1, 2)]
    with pytest.raises(InvalidParameterError, match="2 cells"):
        Table("t", ("a", "b"), [(1, 2), (3,)])


def test_a_scale_names_its_folder():
    assert (Scale(quick=True).name, Scale().name) == ("quick", "full")


@pytest.mark.parametrize(
    ("verdict", "sentence"), [("confirmed", "Yes."), (None, "Yes."), (Verdict.REFUTED, " ")]
)
def test_a_finding_has_a_verdict_and_a_sentence(verdict, sentence):
    with pytest.raises(InvalidParameterError, match=r"verdict must be one of|sentence"):
        Finding(verdict, sentence)
