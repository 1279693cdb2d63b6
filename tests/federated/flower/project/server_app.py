# SPDX-License-Identifier: Apache-2.0
"""A server whose run is kept in a folder and paid by an account."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from sfumato import Budget, Ledger
from sfumato.federated.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    model = torch.nn.Linear(2, 1)
    budget = Budget(epsilon=50, delta=1e-3)
    ledger = Ledger(Path(settings["folder"]).parent / "ledger.db")
    strategy = PrivateStrategy(
        model,
        noise_multiplier=1.0,
        delta=1e-3,
        cohort=settings["clients"],  # everybody in each round, so that the test knows who is asked
        least_clients=settings["clients"],
        folder=settings["folder"],
        checkpoint_every=1,
        account=ledger.open("nodes", privacy_unit="client", budget=budget),
        purpose=Path(settings["folder"]).name,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=settings["rounds"],
        timeout=settings["timeout"],
        resume=settings["resume"],
    )
