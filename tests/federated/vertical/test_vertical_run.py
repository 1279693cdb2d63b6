# SPDX-License-Identifier: Apache-2.0
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.federated.vertical.vertical_run import VerticalRun


def guarantee(epsilon, unit="person", relation=Relation.REPLACE_ONE):
    return Guarantee(epsilon=epsilon, delta=1e-5, relation=relation, privacy_unit=unit)


def run_of(**changes):
    settings = {
        "parties": {"bank": guarantee(1.0), "shop": guarantee(2.0)},
        "person": guarantee(2.5),
        "labels": None,
        "top_may_leave": False,
        "told": "Two parties sent embeddings.",
    }
    return VerticalRun(**settings | changes)


def test_a_statement_names_each_party_and_who_must_keep_the_top_network():
    said = run_of().statement()
    assert "party 'bank': (1, 1e-05)" in said and "(2.5, 1e-05)" in said
    assert (
        "must stay with the label party" in said and "its accuracy" in said and "send new embeddings" in said
    )


def test_a_statement_names_labels_study_and_records():
    labels = guarantee(3.0, "label", Relation.REPLACE_LABEL)
    said = run_of(
        labels=labels, top_may_leave=True, study_note="for study only", record_note="not kept"
    ).statement()
    assert "(3, 1e-05)" in said and "must stay" not in said
    assert "This run is for study only." in said and "It is not kept." in said


def test_the_accuracy_is_the_last_one():
    assert run_of().accuracy is None
    assert run_of(accuracies=(0.5, 0.75)).accuracy == 0.75
