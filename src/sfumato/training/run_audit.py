# SPDX-License-Identifier: Apache-2.0
"""The protocol between a run and its audit (`sfumato.audit.runs.canaries` implements it).

An audit adds synthetic canary units to a run, and sees its noisy gradients. It may also take trial steps with
synthetic rows and noise of their own, which do not count.

Guarantee  An audit sees noisy gradients alone, which the guarantee of the run covers. The model, its
           optimizer and its evaluation never see canaries: these have their own parameters
           (`AuditedRun.host`), and the loss of every other row is unchanged.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training.data.units import Units
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import Loss
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.weight_average import WeightAverage

__all__ = ["AuditedRun", "RunAudit", "Verdict", "require_audit"]


_LEAST = 20  # canaries, the fewest that an audit can show anything with at its default confidence


class Verdict(Protocol):
    """What an audit found."""

    def statement(self) -> str:
        """Return it in a sentence."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values."""
        ...


class AuditedRun(Protocol):
    """A run with canaries in it."""

    @property
    def units(self) -> Units:
        """The run's units, and canaries among them; blank rows are those of canaries."""
        ...

    def host(self, model: nn.Module) -> nn.Module:
        """Return a module that holds the model and the canaries' own parameters."""
        ...

    def loss(self, loss: Loss) -> Loss:
        """Return the loss of rows some of which are canaries, for a host."""
        ...

    def engine(self, engine: Any) -> Any:
        """Return the engine of a run, for batches in which some units are canaries."""
        ...

    def ordinary(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return synthetic rows of any kind as rows of the run's own units: none is a canary's."""
        ...

    def require(self, *, finite: bool) -> None:
        """Raise unless the gradients of canaries, which the units' blank rows are, were all finite."""
        ...

    def counted(self) -> str:
        """Return the sentence that says how canaries count among a public number of units."""
        ...

    def observe(self, units: Tensor, private: PrivateGradients, *, step: int, bound: float) -> None:
        """Look at the noisy gradient of a step, as it was released.

        `units` are this rank's of the batch; `bound` is the bound on one contribution in this step.
        """
        ...

    def try_out(self, private: PrivateGradients, *, step: int, device: torch.device) -> None:
        """Take steps that do not count before a step, where it is time to. All ranks must ask."""
        ...

    def follow(self, optimizer: Optimizer, average: WeightAverage | None) -> None:
        """Watch what the weights of a run are moved by: called once, before the first step of a process."""
        ...

    def moved(self, step: int) -> None:
        """Look at the weights after a step."""
        ...

    def judge(self, claim: Guarantee) -> Verdict:
        """Return what the steps so far show about a claim."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return which canaries are in, and what was seen."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        ...


class RunAudit(Protocol):
    """How runs are to be audited: the settings of an audit, which its repr names."""

    @property
    def units(self) -> int:
        """The most units that an audit adds to a run."""
        ...

    @property
    def coordinates(self) -> int:
        """How many coordinates it adds to sums over units whose whole contribution is clipped."""
        ...

    def plant(self, units: Units, mechanism: DpSgd, generator: Generator | None) -> AuditedRun:
        """Put canaries among the units of a run."""
        ...


def require_audit(audit: object) -> None:
    """Raise unless this is a plan of an audit, or None.

    >>> require_audit(None)
    """
    if audit is None or (callable(getattr(audit, "plant", None)) and not isinstance(audit, type)):
        return
    count = max(audit, _LEAST) if isinstance(audit, int) and not isinstance(audit, bool) else 1000
    raise InvalidParameterError(
        f"audit is of type {type(audit).__name__}, which is no plan of an audit: pass "
        f"audit=Canaries(count={count}), from sfumato.audit, or leave audit=... out."
    )
