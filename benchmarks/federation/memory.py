# SPDX-License-Identifier: Apache-2.0
"""How much memory a simulation takes with more clients, each number of them in a process of its own.

Each client has 60 made-up pictures of the size of MNIST, which are read when it is asked; all pictures of
10,000 clients would take 1.9 GB. Rounds ask 100 clients on average, whatever their number. Run as a program,
this prints the memory of one simulation as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from models.results import Row
from releases.large import peak

from sfumato.federated import LazyRows, LocalTraining, federate
from sfumato.training.models.networks import for_shape

NUMBERS: Final = (1_000, 10_000)  # of clients
COHORT: Final = 100
ROUNDS: Final = 5
ROWS: Final = 60  # of a client
SHAPE: Final = (1, 28, 28)
MOST_GROWTH: Final = 1.1  # times the memory of the fewest clients: cohorts differ, too


def memory() -> Iterator[Row]:
    """Simulate each number of clients once; yield the peaks of memory and how much they grow."""
    subject = f"{ROUNDS} rounds of {COHORT} clients of {ROWS} rows on average, mlp"
    peaks = []
    for number in NUMBERS:
        found = _of_a_process(number)
        peaks.append(found["peak"])
        name = f"peak of memory with {number:,} clients, GiB"
        yield Row(
            subject=subject, name=name, value=found["peak"], note=f"{found['before']:.3f} before the run"
        )
    name = f"memory of {NUMBERS[-1]:,} clients, times that of {NUMBERS[0]:,}"
    yield Row(subject=subject, name=name, value=peaks[-1] / peaks[0], bar=MOST_GROWTH)


def _of_a_process(number: int) -> dict[str, float]:
    command = [sys.executable, "-m", "federation.memory", str(number)]
    folder = Path(__file__).parents[1]
    return json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)


def _rows(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(client)
    return torch.rand(ROWS, *SHAPE, generator=draws), torch.randint(10, (ROWS,), generator=draws)


def main() -> None:
    """Simulate as many clients as the first argument says."""
    clients = LazyRows(_rows, clients=int(sys.argv[1]), like=_rows(0))
    model, before = for_shape(SHAPE, 10, "mlp"), peak()
    federate(
        model,
        clients,
        rounds=ROUNDS,
        expected_cohort_size=COHORT,
        local=LocalTraining(batch_size=10),
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
        progress=False,
    )
    print(json.dumps({"before": before, "peak": peak()}))


if __name__ == "__main__":
    main()
