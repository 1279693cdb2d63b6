# SPDX-License-Identifier: Apache-2.0
"""A finished run over columns of several parties: what was sent, and the guarantee of each party.

Who gets what:

| | label party | feature parties | others |
| --- | --- | --- | --- |
| noisy embeddings | all | their own | what the label party passes on |
| returned gradients | computes them | all, with noise | what parties pass on |
| bottom networks | no | their own | `train_split`: covered. `learn_top`: public before |
| top network | its own | if `top_may_leave` | if `top_may_leave` |

Predictions of the top network depend on labels as the network does. A person who is predicted sends new
embeddings: that is a release about that person which the run does not cover.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sfumato.accounting.guarantee import Guarantee

__all__ = ["VerticalRun"]


@dataclass(frozen=True, kw_only=True)
class VerticalRun:
    """What a run over several parties cost each of them; `print(run.statement())` says what was done.

    Attributes:
        parties: For each feature party the guarantee for one person's columns there.
        person: The guarantee for one person's columns at all feature parties together.
        labels: The guarantee for one label; None if labels were used as they are, and there is none.
        top_may_leave: Whether the top network is covered by `labels`. Otherwise it must stay with the label
            party, and so must all that is computed from it: predictions, and `accuracies` as well.
        told: What was done, in sentences.
        accuracies: The accuracy on evaluation data, which is not protected, after each epoch or at the end.
        study_note: Why the noise protects nobody, if it was seeded.
        record_note: What must be said of a run that no ledger keeps.
    """

    parties: Mapping[str, Guarantee]
    person: Guarantee
    labels: Guarantee | None
    top_may_leave: bool
    told: str
    accuracies: tuple[float, ...] = ()
    study_note: str | None = None
    record_note: str | None = None

    @property
    def accuracy(self) -> float | None:
        """The last accuracy on evaluation data, if there was any."""
        return self.accuracies[-1] if self.accuracies else None

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was done, and the guarantees.
        """
        each = "; ".join(f"party {name!r}: {guarantee}" for name, guarantee in self.parties.items())
        said = (
            self.told,
            f"For the columns of one person, against everybody else, all other parties included: {each}.",
            f"For the columns at all parties together: {self.person}.",
            "Labels were used as they are: the top network must stay with the label party, and so must "
            "its predictions and its accuracy."
            if self.labels is None
            else f"For labels, against all feature parties: {self.labels}. The top network is covered.",
            "People who are predicted later send new embeddings, which this run does not cover.",
            None if self.study_note is None else f"This run is {self.study_note}.",
            None if self.record_note is None else f"It is {self.record_note}.",
        )
        return " ".join(sentence for sentence in said if sentence)
