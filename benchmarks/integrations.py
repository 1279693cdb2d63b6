# SPDX-License-Identifier: Apache-2.0
"""What a step costs in the trainers of other libraries, over a step of our own trainer.

    python benchmarks/integrations.py                       five architectures each, some minutes
    python benchmarks/integrations.py --quick               fewer steps; under a minute
    python benchmarks/integrations.py --only "Hugging Face"  the parts whose name holds this
    python benchmarks/integrations.py --json                rows for a program: what, value, bar, met

Both trainers take the same steps: the same rows in the same batches, the same loss, optimizer and noise.
They are timed in turns, on one thread, in CPU time between one update of the weights and the next, which
counts all of a step: reading rows, gradients, noise, callbacks. Of each step the least of all turns is
taken, as other work on the machine only adds to it; a value is the ratio of the sums. The weights must be
the same bit for bit. Exit status 1: a bar is missed.
"""

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from models.results import Row, command_line, report

from sfumato.testing import seeded
from sfumato.training import Privacy, Runtime, Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))

MOST = 1.05  # of the time of a step
COUNT, BATCH, WARM = 256, 16, 2  # rows, rows of a step on average, steps that are not timed
PRIVACY = Privacy(noise_multiplier=1.0, delta=1e-5, public_size=COUNT, expected_batch_size=BATCH)


class Stamps:
    """Notes the CPU time of each update of an optimizer."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def sgd(self, parameters: Any) -> torch.optim.Optimizer:
        """Return an optimizer that is watched."""
        found = torch.optim.SGD(parameters, lr=0.01)
        found.register_step_post_hook(lambda *_: self.times.append(time.process_time()))
        return found

    @property
    def seconds(self) -> list[float]:
        """CPU time of each step but for the first ones."""
        return [after - before for before, after in pairwise(self.times[WARM - 1 :])]


Run = Callable[[int], tuple[list[float], torch.nn.Module]]  # from steps to CPU times and model


def own(build: Callable[[], torch.nn.Module], rows: Any, loss: Any, *, every: int | None) -> Run:
    """Return a run of our own trainer, which prices its steps as often as the other one does."""

    def run(steps: int) -> tuple[list[float], torch.nn.Module]:
        stamps, model = Stamps(), build()
        Trainer(
            model,
            rows,
            privacy=replace(PRIVACY, steps=steps),
            loss=loss,
            optimizer=stamps.sgd,
            runtime=Runtime(microbatch_size=BATCH, check=False),  # the check is before the steps
            generator=seeded(1),
            evaluate_every=every,
            progress=False,
        ).fit()
        return stamps.seconds, model

    return run


# --- Hugging Face -------------------------------------------------------------------------------------------


def hugging_face(steps: int, turns: int) -> Iterator[Row]:
    """Yield the ratio for five architectures."""
    from transformers import TrainingArguments, logging

    from sfumato.integrations.hugging_face import PrivateTrainer
    from tests.integrations.hugging_face import architectures

    logging.set_verbosity_error()
    size = architectures.Size(width=64, layers=2, heads=4, length=32, words=500, side=32)
    for name in architectures.MODELS:
        rows = architectures.rows(name, COUNT, size)

        def build(name: str = name) -> torch.nn.Module:
            return architectures.model(name, size)

        def theirs(steps: int, build: Any = build, rows: Any = rows) -> tuple[list[float], torch.nn.Module]:
            stamps, model = Stamps(), build()
            optimizer = stamps.sgd([p for p in model.parameters() if p.requires_grad])
            given = {"max_steps": steps, "per_device_train_batch_size": BATCH, "save_strategy": "no"}
            with tempfile.TemporaryDirectory() as folder:
                args = TrainingArguments(
                    folder, **given, disable_tqdm=True, use_cpu=True, lr_scheduler_type="constant"
                )
                PrivateTrainer(
                    model,
                    args,
                    train_dataset=rows,
                    privacy=PRIVACY,
                    runtime=Runtime(check=False),
                    generator=seeded(1),
                    optimizers=(optimizer, None),
                ).train()
            return stamps.seconds, model

        # what steps cost together is priced after the last one, by both
        ours = own(build, architectures.tensors(rows), architectures.own_loss, every=steps)
        yield from compared(f"Hugging Face: {name}", theirs, ours, steps, turns)


# --- Lightning ----------------------------------------------------------------------------------------------


def lightning(steps: int, turns: int) -> Iterator[Row]:
    """Yield the ratio for five architectures."""
    import logging

    import lightning.pytorch
    from torch.utils.data import DataLoader, TensorDataset

    from sfumato.integrations.lightning import PrivateStrategy
    from tests.integrations.lightning import architectures, modules

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    sizes = {
        "perceptron": architectures.Size(width=2048, hidden=2048),
        "convolutional": architectures.Size(channels=128, side=32),
        "recurrent": architectures.Size(width=128, hidden=256, length=32),
        "attentive": architectures.Size(width=128, length=32, heads=4),
        "residual": architectures.Size(channels=64, side=24),
    }
    for name, size in sizes.items():
        rows = modules.rows(*architectures.shape(name, size), count=COUNT)

        def build(name: str = name, size: Any = size) -> torch.nn.Module:
            return modules.Classifier(architectures.model(name, size))

        def theirs(steps: int, build: Any = build, rows: Any = rows) -> tuple[list[float], torch.nn.Module]:
            stamps, model = Stamps(), build()
            model.configure_optimizers = lambda: stamps.sgd(model.parameters())
            strategy = PrivateStrategy(
                replace(PRIVACY, expected_batch_size=None),
                runtime=Runtime(microbatch_size=BATCH, check=False),
                generator=seeded(1),
            )
            trainer = lightning.pytorch.Trainer(
                strategy=strategy,
                max_epochs=-1,
                max_steps=steps,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(model, DataLoader(TensorDataset(*rows), batch_size=BATCH))
            return stamps.seconds, model

        ours = own(build, rows, _cross_entropy, every=None)  # ten times in a run, by both
        yield from compared(f"Lightning: {name}", theirs, ours, steps, turns)


def _cross_entropy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), y).reshape(1)  # of one row


# --- measuring ----------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[int, int], Iterator[Row]]] = {
    "Hugging Face": hugging_face,
    "Lightning": lightning,
}


def compared(subject: str, theirs: Run, ours: Run, steps: int, turns: int) -> Iterator[Row]:
    """Yield the ratio of CPU times, and whether the weights are the same."""
    times: dict[Run, list[list[float]]] = {theirs: [], ours: []}
    same = True
    for turn in range(turns):
        order = (theirs, ours) if turn % 2 else (ours, theirs)
        models = []
        for run in order:
            seconds, model = run(steps)
            times[run].append(seconds)
            models.append(model)
        pairs = zip(*(model.parameters() for model in models), strict=True)
        same = same and all(torch.equal(p, q) for p, q in pairs)
    a, b = (sum(map(min, zip(*times[run], strict=True))) for run in (theirs, ours))
    ratios = [sum(x) / sum(y) for x, y in zip(times[theirs], times[ours], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    yield Row(subject=subject, name="step / our step", value=a / b, bar=MOST, quartiles=(low, high))
    yield Row(subject=subject, name="same weights", value=float(same), bar=1, at_least=True)


def measured(only: str, *, quick: bool) -> Iterator[Row]:
    """Yield the rows of each part."""
    for name, part in PARTS.items():
        if only in name:
            yield from part(6 if quick else 12, 5 if quick else 15)


def main() -> int:
    """Measure, print, and fail where a bar is not met."""
    parser = command_line(__doc__, quick="fewer steps")
    parser.add_argument("--only", default="", help="the parts whose name holds this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models and trainers of other libraries advise
    rows = measured(arguments.only, quick=arguments.quick)
    return report("Steps in trainers of other libraries", rows, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
