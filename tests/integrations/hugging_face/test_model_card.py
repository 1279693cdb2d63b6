# SPDX-License-Identifier: Apache-2.0
import pytest
from huggingface_hub import ModelCard

from sfumato.integrations.hugging_face import model_card


class Card:
    def __init__(self, epsilon):
        self.epsilon = epsilon

    def to_markdown(self):
        return f"# Privacy\n\nEpsilon is {self.epsilon}.\n"

    def metadata(self):
        return {"tags": ["sfumato"], "differential_privacy": {"epsilon": self.epsilon}}


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        "# A model\n\nGood at words.\n",
        "---\nlicense: mit\ntags:\n- words\n---\n\n# A model\n\nGood at words.\n",
    ],
)
def test_the_card_is_written_into_what_is_there(before, tmp_path):
    path = tmp_path / "README.md"
    if before is not None:
        path.write_text(before)
    model_card.write(path, Card(2.0))
    found = ModelCard.load(path)
    assert found.data.to_dict()["differential_privacy"] == {"epsilon": 2.0}
    assert "Epsilon is 2.0." in found.text
    if before:
        assert "Good at words." in found.text
    if before and "license" in before:
        assert found.data.license == "mit" and set(found.data.tags) == {"sfumato", "words"}


def test_a_card_takes_the_place_of_an_earlier_one(tmp_path):
    path = tmp_path / "README.md"
    model_card.write(path, Card(2.0))
    path.write_text("".join([path.read_text(), "\nA note at the end.\n"]))
    once = path.read_text()
    model_card.write(path, Card(3.0))
    text = path.read_text()
    assert "Epsilon is 3.0." in text and "2.0" not in text and "A note at the end." in text
    model_card.write(path, Card(2.0))
    assert path.read_text() == once
