# SPDX-License-Identifier: Apache-2.0
import torch
from client_app import digits, make_model
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from sfumato.federated.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    torch.manual_seed(0)
    model = make_model()
    strategy = PrivateStrategy(
        model,
        epsilon=settings["epsilon"],
        delta=1e-3,
        cohort=settings["cohort"],
        clip_norm=1.0,
        least_clients=settings["clients"],
        evaluation=tuple(part[1437:] for part in digits()),  # NOT protected
        folder=settings["folder"] or None,
        checkpoint_every=1 if settings["folder"] else None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=settings["rounds"],
        timeout=settings["timeout"],
        resume=settings["resume"],
    )
    print(result.run.statement())
    print(f"accuracy {result.run.accuracy:.0%}")
