# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato federate`: one list, of which the flags of the command are made."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from sfumato.cli.flags import flag

__all__ = ["FederationSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationSettings:
    """Everything that can be set for a simulated federation; None is left to the defaults of the data set."""

    data: str | None = None  # the argument of the command
    clients: int | None = flag("How many clients to simulate.")
    partition: str | None = flag("How rows are divided: iid, dirichlet or by-user.")
    alpha: float | None = flag("With --partition dirichlet: the concentration; 0.3 if not said.")
    model: str | None = flag("linear, mlp or cnn; lstm or transformer for text.")
    epsilon: float | None = flag("The epsilon for one client.")
    delta: float | None = flag("The delta of the guarantee; the largest power of ten below 1 / clients.")
    noise_multiplier: float | None = flag("Noise stddev over clip norm, in place of or beside --epsilon.")
    noise: str | None = flag(
        "Who adds noise: server (the default); or discrete-gaussian or skellam, by clients."
    )
    rounds: int | None = flag("How many rounds.")
    cohort: float | None = flag("How many clients a round asks on average.")
    clip_norm: float | None = flag("L2 bound on one client's update.")
    adaptive_quantile: float | None = flag("Let the clip norm follow this quantile of updates, as 0.5.")
    local_epochs: int | None = flag("How often a client passes over its rows in a round.")
    local_batch_size: int | None = flag("Rows of a client's step.")
    local_learning_rate: float | None = flag("The rate of a client's SGD.")
    proximal: float | None = flag("The weight of FedProx's term.")
    full_weight_rows: int | None = flag("Clients with fewer rows count less; those with more as one of them.")
    server: str | None = flag("The server's optimizer: average (the default), momentum or adam.")
    server_learning_rate: float | None = flag("Its rate; 1, or 0.01 for adam.")
    bands: int | None = flag("Ask clients in cycles, with noise that is correlated over so many rounds.")
    evaluate_every: int | None = flag("After how many rounds to measure on test rows; each one if not said.")
    audit: int | None = flag("Add this many canary clients, and show what they prove beside epsilon.")
    device: str | None = flag("Where to compute: cpu or cuda.")
    ledger: str | None = flag("Charge the run to an account of this ledger.")
    account: str | None = flag("The account in that ledger.")
    purpose: str | None = flag("What the run is for; the account keeps it.")
    folder: str | None = flag("Where checkpoints, metrics and weights go.")
    report: str | None = flag("Write a page with the curves here.")
    seed: int | None = flag("For study only: noise from a seed protects nobody.")

    def over(self, below: "FederationSettings") -> "FederationSettings":
        """Return these settings, and those of `below` for what is not set here."""
        return replace(below, **self.given())

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}
