# SPDX-License-Identifier: Apache-2.0
"""Every public setting of a run as text: runs that agree in all of them are the same run.

Guarantee  Everything that changes the claim is included: event, relation, sampling, clipping, unit, delta,
           account, and whether noise is secure. A checkpoint keeps it, and ranks compare it. Two seeds can be
           told apart by it; nothing of a secret stream is in it.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sfumato.accounting import events
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.training.loop import TrainingLoop
from sfumato.training.privacy.dp_sgd import DpSgd

__all__ = ["for_loggers", "of_claim", "of_loop"]


def of_claim(mechanism: DpSgd, generator: Generator | None, **others: object) -> dict[str, str]:
    """Return the settings that change the claim, and the `others`."""
    return {
        **{name: str(value) for name, value in others.items()},
        "steps": str(mechanism.steps),
        "event": events.to_json(mechanism.event()),
        "relation": mechanism.relation.value,
        "sampling": repr(mechanism.sampling),
        "clipping": repr(mechanism.step),
        "generator": _mark(generator),
        **({} if mechanism.correlation is None else {"correlation": repr(mechanism.correlation)}),
    }


def of_loop(loop: TrainingLoop, loss: Any, factors: Sequence[float] | None) -> dict[str, str]:
    """Return the settings of what moves from step to step."""
    digest = None if factors is None else _digest(repr(factors))
    return {
        "loss": getattr(loss, "__qualname__", type(loss).__name__),
        "parameters": repr([_shape(n, p) for n, p in loop.private.parameters.items()]),
        "optimizer": f"{type(loop.optimizer).__name__} {loop.optimizer.defaults!r}",
        "schedule": "None" if loop.schedule is None else type(loop.schedule).__name__,
        "clip_schedule": repr(digest),
        **({} if loop.contributor is None else {"contributor": repr(loop.contributor)}),
    }


def for_loggers(loop: TrainingLoop, **others: str | float) -> dict[str, str | int | float | None]:
    """Return the settings that loggers get, and the `others`."""
    mechanism, private = loop.mechanism, loop.private
    return {
        "steps": mechanism.steps,
        "noise_multiplier": mechanism.noise_multiplier(0),
        "sampling": repr(mechanism.sampling),
        "clipping": repr(mechanism.step),
        "relation": mechanism.relation.value,
        "expected_batch_size": private.expected_batch_size,
        "parameters": sum(parameter.numel() for parameter in private.parameters.values()),
        "optimizer": type(loop.optimizer).__name__,
        "learning_rate": loop.learning_rate,
        **others,
    }


def _shape(name: str, parameter: Tensor) -> tuple[str, list[int], str]:
    return name, list(parameter.shape), str(parameter.dtype)


def _mark(generator: Generator | None) -> str:
    """Return what tells one seed from another; nothing of a stream that must stay secret."""
    source = resolve(generator)
    if not source.seeded:
        return "secure" if source.secure else "not cryptographic"
    return _digest(str(int(words(1, source.fork("fingerprint", 0))[0])))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
