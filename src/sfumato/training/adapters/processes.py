# SPDX-License-Identifier: Apache-2.0
"""A private loop runs in one process.

Each process would draw its own samples and noise. Their weights would drift apart, and the counted steps
would not be the steps taken. `train` and `PrivateGradients` work in several processes.
"""

import os

from torch import nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.training import distributed

__all__ = ["refuse_several", "refuse_wrapped"]

_INSTEAD = "use sfumato.train, or a loop with PrivateGradients, which share the work under torchrun."
_WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})


def refuse_several() -> None:
    """Raise if this process is one of several that train together."""
    if distributed.size() > 1 or _started_by_torchrun():
        raise InvalidParameterError(
            "make_private works in one process, and this is one of several: each would draw its own samples "
            f"and its own noise. Run without torchrun, or {_INSTEAD}"
        )


def _started_by_torchrun() -> bool:
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    return launched and int(os.environ.get("WORLD_SIZE", "1")) > 1


def refuse_wrapped(module: nn.Module) -> None:
    """Raise if a module, or a part of it, spreads batches or parameters over devices or processes."""
    for part in module.modules():
        kinds = {kind.__name__ for kind in type(part).__mro__} & _WRAPPERS
        if "FSDPModule" in kinds:
            raise UnsupportedModelError(
                "fully_shard has cut the parameters of the module, and the loop that make_private watches "
                f"works in one process, with whole parameters: {_INSTEAD} Both take modules that are cut."
            )
        if kinds:
            raise UnsupportedModelError(
                f"the module is wrapped in {min(kinds)}, which splits batches or parameters by itself. Give "
                f"the module inside of it (module.module) to make_private; for several processes {_INSTEAD}"
            )
