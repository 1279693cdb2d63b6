# SPDX-License-Identifier: Apache-2.0
"""The settings of `sfumato federate`: one list, of which the flags of the command are made."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from sfumato.cli.flags import flag
from sfumato.cli.settings import MODELS

__all__ = ["FederationSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationSettings:
    """Everything that can be set for a simulated federation; None is left to the defaults of the data set."""

    data: str | None = None  # the argument of the command
    clients: int | None = flag("How many clients to simulate. Default: by data set.")
    partition: str | None = flag(
        "How rows are divided among clients: iid, dirichlet or by-user.", "iid", "dirichlet", "by-user"
    )
    alpha: float | None = flag("With --partition dirichlet: the concentration of the shares. Default: 0.3.")
    model: str | None = flag(
        "The network: linear, mlp or cnn; lstm or transformer for text. Default: by data set.", *MODELS
    )
    epsilon: float | None = flag("The epsilon to meet, for one client.")
    delta: float | None = flag(
        "The delta of the guarantee. Default: that of the account, else the largest power of ten below 1 / "
        "clients."
    )
    noise_multiplier: float | None = flag(
        "The standard deviation of the noise, divided by the clip norm. Beside --epsilon, the run stops "
        "before it would exceed it."
    )
    noise: str | None = flag(
        "Who adds noise: server (the default); or clients under secure aggregation, discrete-gaussian or "
        "skellam.",
        "server",
        "discrete-gaussian",
        "skellam",
    )
    rounds: int | None = flag("How many rounds the server asks. Default: by data set.")
    cohort: float | None = flag("How many clients a round asks on average.")
    clip_norm: float | None = flag("The L2 bound on the update of one client.")
    adaptive_quantile: float | None = flag(
        "Let the clip norm follow this quantile of updates, such as 0.5. Default: it is fixed."
    )
    local_epochs: int | None = flag("How often a client passes over its rows in a round.")
    local_batch_size: int | None = flag("How many rows a step of a client has.")
    local_learning_rate: float | None = flag("The learning rate of clients.")
    proximal: float | None = flag("The weight of the proximal term of FedProx. Default: 0.")
    full_weight_rows: int | None = flag(
        "Multiply the update of a client that has fewer rows by its share of this number. Default: all count "
        "the same."
    )
    server: str | None = flag(
        "The optimizer of the server: average (the default), momentum or adam.", "average", "momentum", "adam"
    )
    server_learning_rate: float | None = flag(
        "The learning rate of the server. Default: 1, or 0.01 for adam."
    )
    bands: int | None = flag("Ask clients in cycles, with noise that is correlated over so many rounds.")
    evaluate_every: int | None = flag("After how many rounds to measure on test rows. Default: 1.")
    audit: int | None = flag("Add this many canary clients, and show what they prove beside epsilon.")
    device: str | None = flag("Where to compute: cpu (the default) or cuda.", "cpu", "cuda")
    ledger: str | None = flag("Charge the run to an account of this ledger, which must exist.")
    account: str | None = flag("The account in that ledger.")
    purpose: str | None = flag("What the run is for; the account keeps it.")
    folder: str | None = flag("A folder for checkpoints, metrics and weights. Default: they are not kept.")
    report: str | None = flag("Write a page with curves, settings and statements here, as run.html.")
    seed: int | None = flag("For study only: noise from a seed protects nobody.")

    def over(self, below: "FederationSettings") -> "FederationSettings":
        """Return these settings, and those of `below` for what is not set here."""
        return replace(below, **self.given())

    def given(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}
