# SPDX-License-Identifier: Apache-2.0
"""How a run is computed: all settings that change its speed and memory, and none that change its claim.

Guarantee  Two runs that differ in their `Runtime` alone have the same event, the same noise and the same
           clipping bound; their numbers differ by rounding at most. What decides the claim is in
           `dp_sgd.DpSgd`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.training import distributed
from sfumato.training.engine.contributions import Contributor, NoisySummer
from sfumato.training.engine.step.settings import Engines, PassSettings

__all__ = ["Runtime"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """Speed and memory of a run. Nothing here changes the claim.

    Args:
        engine: How clipped sums are computed. Default: the fastest one that the model allows. A `Contributor`
            gives something else than gradients, such as the updates of clients; a `NoisySummer` gives sums
            with noise, which `NoisyStep(summation=...)` must describe.
        microbatch_size: How many units are held in memory at once. Default: all of a batch, and fewer if they
            do not fit.
        device: Where to train. Default: where the model is. "cuda" under torchrun: one GPU for each process.
        autocast: The type of products in the forward pass: torch.bfloat16, or None.
        compile: True: compile whole passes at the first step. False: never. Default: if the run is long
            enough to repay it, on a GPU.
        cuda_graphs: True: launch the kernels of a pass at once. False: never. Default: if it is faster, on a
            GPU; that is measured on synthetic rows after a few steps. If `compile` or `cuda_graphs` is True,
            nothing is measured, and the other one is used only if it is True as well.
        check: Whether to compare the engine with the reference before the run, on synthetic rows.
        evaluation_batch_size: How many rows are evaluated at once.
        timeout: How many seconds a process waits for another.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> Runtime(engine="functional").engine
    <Engines.FUNCTIONAL: 'functional'>
    """

    engine: Engines | Contributor | NoisySummer | str = Engines.AUTO
    microbatch_size: int | None = None
    device: torch.device | str | None = None
    autocast: torch.dtype | None = None
    compile: bool | None = None
    cuda_graphs: bool | None = None
    check: bool = True
    evaluation_batch_size: int = 1024
    timeout: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", self.passes.engine)
        _check.count(evaluation_batch_size=self.evaluation_batch_size)
        _check.positive(timeout=self.timeout)
        if self.autocast not in (None, torch.bfloat16):
            raise InvalidParameterError(
                f"autocast must be torch.bfloat16 or None, but {self.autocast!r} was given: in coarser "
                "ranges small gradients vanish."
            )

    @property
    def passes(self) -> PassSettings:
        """How passes over a batch are computed."""
        return PassSettings(
            engine=self.engine,
            microbatch_size=self.microbatch_size,
            cuda_graphs=self.cuda_graphs,
            compile=self.compile,
            check=self.check,
        )

    def device_for(self, model: nn.Module) -> torch.device:
        """Return where to train a model; a process under torchrun gets its own GPU.

        Args:
            model: The model.

        Returns:
            The device.
        """
        here = next((parameter.device for parameter in model.parameters()), "cpu")
        device = torch.device(here if self.device is None else self.device)
        if str(device) == "cuda":
            return torch.device("cuda", distributed.local_rank())
        return device

    @contextmanager
    def forward(self, device: torch.device) -> Generator[None]:
        """Compute the block in the type of `autocast`, if there is one.

        Args:
            device: Where it is computed.

        Yields:
            Nothing.
        """
        with torch.autocast(device.type, dtype=self.autocast, enabled=self.autocast is not None):
            yield
