# SPDX-License-Identifier: Apache-2.0
"""The ways to take a step that are compared: plain PyTorch, ours, vmap(grad), and the modes of Opacus 1.6.0.

A step is zero_grad, forward, backward, clip, noise and SGD update; the plain one has neither clip nor noise.
Ours and vmap(grad) draw secure noise, which is our default; Opacus draws ordinary noise, which is its own.
"""

import importlib.util
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from models.networks import Case, LanguageModel, Recurrent, VisionTransformer
from torch import Tensor, nn

from sfumato.training import Clipping, PassSettings, PrivateGradients

Step = Callable[[], object]

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.01
LONG_RUN = 100_000  # steps
OPACUS = ("Opacus hooks", "Opacus functorch", "Opacus ghost")


@dataclass(frozen=True)
class Workload:
    """A case on a device: its model, optimizer and one batch."""

    case: Case
    model: nn.Module
    x: Tensor
    y: Tensor

    @staticmethod
    def of(case: Case, device: torch.device) -> "Workload":
        """Make it on the device itself, so that nothing else is left behind there."""
        with device:
            return Workload(case, case.make(), *case.batch(case.batch_size))

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """Return plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def cast(self) -> AbstractContextManager[Any]:
        """Return the context of forward products."""
        return torch.autocast(
            self.x.device.type, dtype=self.case.autocast, enabled=self.case.autocast is not None
        )


def plain(work: Workload) -> Step:
    """Return the ordinary eager step."""
    optimizer = work.optimizer(work.model)

    def step() -> None:
        optimizer.zero_grad()
        with work.cast():
            loss = work.case.loss(work.model, work.x, work.y).mean()
        loss.backward()
        optimizer.step()

    return step


def plain_compiled(work: Workload) -> Step:
    """Return the ordinary step, compiled, with its kernels in CUDA graphs."""
    optimizer = work.optimizer(work.model)

    @torch.compile(mode="reduce-overhead", dynamic=False)
    def compiled(x: Tensor, y: Tensor) -> Tensor:
        return work.case.loss(work.model, x, y).mean()

    def step() -> None:
        optimizer.zero_grad()
        with work.cast():
            loss = compiled(work.x, work.y)
        loss.backward()
        optimizer.step()

    return step


class PrivateStep:
    """Our step. `way` says how its passes run."""

    def __init__(self, work: Workload, *, per_layer: bool = False, **passes: Any) -> None:
        self._work, self._optimizer = work, work.optimizer(work.model)
        self._gradients = PrivateGradients(
            work.model,
            work.case.loss,
            clipping=Clipping(clip_norm=CLIP_NORM, per_layer=per_layer),
            noise_multiplier=NOISE_MULTIPLIER,
            expected_batch_size=work.case.batch_size,
            passes=PassSettings(**passes),
        )

    @property
    def way(self) -> str:
        """How passes run, and why."""
        return self._gradients.way

    def __call__(self) -> None:
        self._optimizer.zero_grad()
        with self._work.cast():
            self._gradients.backward(self._work.x, self._work.y)
        self._optimizer.step()


def private(
    work: Workload, *, engine: str = "auto", cuda_graphs: bool = False, compile: bool = False
) -> Step:
    """Return our step, in a way that is given."""
    return PrivateStep(work, engine=engine, cuda_graphs=cuda_graphs, compile=compile)


def chosen(work: Workload, *, per_layer: bool = False) -> Step:
    """Return our step without a flag, as in a long run."""
    return PrivateStep(work, per_layer=per_layer, planned_steps=LONG_RUN)


# --- Opacus ----------------------------------------------------------------------------------------------


def opacus_is_installed() -> bool:
    """Return whether the peer is there."""
    return importlib.util.find_spec("opacus") is not None


def opacus(work: Workload, *, functorch: bool = False) -> Step:
    """Return the step that keeps a gradient for each example."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(suited(work.model), force_functorch=functorch)
    optimizer = DPOptimizer(work.optimizer(model), **_settings(work))

    def step() -> None:
        optimizer.zero_grad()
        with work.cast():
            loss = work.case.loss(model, work.x, work.y).mean()
        loss.backward()
        optimizer.step()

    return step


def opacus_ghost(work: Workload) -> Step:
    """Return the step with ghost norms and a second backward pass."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        suited(work.model), max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(work.optimizer(model), **_settings(work))

    def step() -> None:
        optimizer.zero_grad()
        with work.cast():
            losses = work.case.loss(model, work.x, work.y)
        DPTensorFastGradientClipping(model, optimizer, losses).backward()
        optimizer.step()

    return step


def _settings(work: Workload) -> dict[str, Any]:
    return {
        "noise_multiplier": NOISE_MULTIPLIER,
        "max_grad_norm": CLIP_NORM,
        "expected_batch_size": work.case.batch_size,
    }


def suited(model: nn.Module) -> nn.Module:
    """Write a network as Opacus wants it, with as many parameters: the best it can do, not a stumble."""
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # its own hooks
    from opacus.layers import DPLSTM

    if isinstance(model, Recurrent):
        device = model.head.weight.device
        model.lstm = DPLSTM(64, 128, batch_first=True).to(device)  # it has no rule for nn.LSTM
    elif isinstance(model, LanguageModel):
        model.repeat_places = True
    elif isinstance(model, VisionTransformer):
        return _VisionOfModules(model)
    return model


class _VisionOfModules(nn.Module):
    """The vision transformer with embeddings for its bare parameters, which Opacus has no layer rule for."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.patches, self.blocks, self.norm, self.head = model.patches, model.blocks, model.norm, model.head
        self.token = nn.Embedding.from_pretrained(model.token.detach()[0], freeze=False)
        self.positions = nn.Embedding.from_pretrained(model.positions.detach()[0], freeze=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        rows, places = x.shape[0], torch.arange(x.shape[1] + 1, device=x.device)
        x = torch.cat([self.token(places[:1].repeat(rows, 1)), x], 1) + self.positions(places.repeat(rows, 1))
        return self.head(self.norm(self.blocks(x))[:, 0])


MODES: dict[str, Callable[[Workload], Step]] = {
    "plain": plain,
    "plain, compiled in graphs": plain_compiled,
    "no flag": chosen,
    "no flag, per layer": partial(chosen, per_layer=True),
    "ours": private,
    "ours, compiled": lambda work: private(work, compile=True),
    "ours, in graphs": lambda work: private(work, cuda_graphs=True),
    "vmap(grad)": lambda work: private(work, engine="functional"),
    "Opacus hooks": opacus,
    "Opacus functorch": lambda work: opacus(work, functorch=True),
    "Opacus ghost": opacus_ghost,
}
