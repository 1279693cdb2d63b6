# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r3.networks import EXPERIMENT, TEXT, RowLstm, made_up_text, most_frequent


def made_up(*, lstm: float, lstm_private: float) -> list[dict]:
    """Rows in which the CNN has 0.8 at its best learning rate, and the LSTM as much as asked for."""
    right = {("lstm over rows", False): lstm, ("lstm over rows", True): lstm_private}
    return [
        {
            "network": name,
            "rate": rate,
            "private": private,
            "seed": s,
            "accuracy": right.get((name, private), 0.8)
            - (rate != 0.2) * 0.3
            + s / 1000 * (1 + len(name) / 50),
            "epsilon": 8.0 if private else None,
            "noise": 1.0,
            "parameters": 100,
            "seconds": 1.0,
            "most frequent": 0.1,
        }
        for name, rates in {"cnn": (0.05, 0.2), "lstm over rows": (0.2, 0.8), TEXT: (0.5,)}.items()
        for rate in rates
        for private in (False, True)
        for s in range(3)
    ]


@pytest.mark.parametrize(
    ("lstm", "lstm_private", "verdict"),
    [(0.9, 0.9, Verdict.CONFIRMED), (0.9, 0.7, Verdict.PARTLY), (0.7, 0.7, Verdict.REFUTED)],
)
def test_the_finding_follows_from_the_rows(lstm, lstm_private, verdict):
    assert EXPERIMENT.finding(made_up(lstm=lstm, lstm_private=lstm_private)).verdict is verdict


def test_each_network_is_shown_with_its_best_learning_rate():
    rows = made_up(lstm=0.9, lstm_private=0.7)
    shown = {row[0]: row[2] for row in EXPERIMENT.tables(rows)[0].rows}
    assert shown == {"cnn": "0.2", "lstm over rows": "0.2", TEXT: "0.5"}
    assert list(EXPERIMENT.figures(rows)) == ["accuracy"]


def test_the_lstm_over_rows_reads_pictures_from_top_to_bottom():
    model = RowLstm(8, 10)
    picture = torch.randn(2, 1, 5, 8)
    assert model(picture).shape == (2, 10)
    assert not model(picture).allclose(model(picture.flip(2)))


def test_the_most_frequent_label_is_what_a_constant_answer_gets_right():
    assert most_frequent(torch.tensor([[1, 1], [0, 1]])) == 0.75


def test_the_made_up_text_has_as_many_users_as_asked_for():
    assert made_up_text(users=7).public_size == 7


@pytest.mark.parametrize("network", ["lstm over rows", TEXT])
def test_recurrent_networks_learn_in_a_federation(network):
    case = {"network": network, "rate": 0.5, "private": True, "seed": 0}
    measured = EXPERIMENT.measure(case, Scale(quick=True, device="cpu"))
    assert measured["epsilon"] <= 8 and measured["accuracy"] > 0 and measured["parameters"] > 10_000
