# SPDX-License-Identifier: Apache-2.0
import time

import torch
from client_app import ROUNDS, SUMS, digits, make_model
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sfumato.federated.flower import GridSums
from sfumato.training import Clipping, DpSgd, NoisyStep, Runtime, TruncatedPoissonSampling, train

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    clients = settings["clients"]
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        time.sleep(1)
    model = make_model()
    rounds = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=SUMS.clip_norm), summation=SUMS),
        sampling=TruncatedPoissonSampling(
            sampling_rate=settings["rate"], batch_size=SUMS.cohort, public_size=clients
        ),
        noise=[(SUMS.noise_multiplier, ROUNDS)],
        relation="add-remove",
    )
    run = train(
        model,
        (torch.arange(clients),),
        mechanism=rounds,
        runtime=Runtime(engine=GridSums(grid, nodes[:clients], SUMS, timeout=settings["timeout"])),
        public_size=clients,
        delta=1e-3,
        privacy_unit="client",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        evaluation=tuple(part[1437:] for part in digits()),  # NOT protected
        folder=settings["folder"] or None,
        checkpoint_every=1,  # a round that is run again is seen twice by the server
        resume=settings["resume"],
        progress=False,
    )
    print(run.statement(), run.against_server)
    print(f"accuracy {run.accuracy:.0%}")
