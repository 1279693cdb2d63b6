# SPDX-License-Identifier: Apache-2.0
import time

import torch
from client_app import digits, make_model
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sfumato.federated import SecureSum
from sfumato.federated.secure_sum.flower_sums import GridSums
from sfumato.training import Clipping, DpSgd, NoisyStep, Runtime, TruncatedPoissonSampling, train

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    clients, cohort, noise = settings["clients"], settings["cohort"], settings["noise"]
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        time.sleep(1)
    model = make_model()
    sums = SecureSum(
        dimension=sum(p.numel() for p in model.parameters()),
        clip_norm=settings["clip-norm"],
        noise_multiplier=noise,
        cohort=cohort,
        least_survivors=settings["least-survivors"],
    )
    rounds = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=settings["clip-norm"]), summation=sums),
        sampling=TruncatedPoissonSampling(
            sampling_rate=settings["rate"], batch_size=cohort, public_size=clients
        ),
        noise=[(noise, settings["rounds"])],
        relation="add-remove",
    )
    run = train(
        model,
        (torch.arange(clients),),
        mechanism=rounds,
        runtime=Runtime(engine=GridSums(grid, nodes[:clients], sums, timeout=settings["timeout"])),
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
