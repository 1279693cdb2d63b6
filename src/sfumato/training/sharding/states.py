# SPDX-License-Identifier: Apache-2.0
"""States of sharded models and optimizers as files hold them: whole, and the same for any number of ranks.

Guarantee  `gathered` followed by `placed` changes no number, whether the number of ranks is the same or not.
Edge cases Tensors that are not sharded stay as they are.
Not here   Memory: rank 0 holds the whole state, on the CPU, and each rank reads all of it to take its part.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sfumato.training import distributed
from sfumato.training.data import tree
from sfumato.training.distributed import is_sharded
from sfumato.training.sharding.layout import Shard, sharded_like, whole

__all__ = ["gathered", "of_optimizer", "placed", "placed_all"]


def gathered(state: Any) -> Any:
    """Return a nested state with whole tensors on rank 0, and nothing in their places on others. All ask.

    >>> gathered({"weight": torch.ones(1)})
    {'weight': tensor([1.])}
    """
    return tree.mapped(state, _gathered)


def _gathered(tensor: Tensor) -> Tensor:
    if not is_sharded(tensor):
        return tensor
    found = whole(tensor)  # one at a time: this is all that ranks other than the first hold of it
    return found.cpu() if distributed.is_first() else found.new_empty(0)


@torch.no_grad()
def placed(value: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor, if `like` is sharded; else the tensor itself."""
    if not is_sharded(like) or is_sharded(value):
        return value
    shard, own = Shard(name="", unit=0, parameter=like), like.to_local()
    begin = distributed.rank() * shard.rows_each
    part = value[begin : begin + own.shape[0]]
    return sharded_like(like, part.to(own.device, copy=True).contiguous())


def placed_all(state: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose tensors are sharded as those of the same name are."""
    return {
        name: placed(value, like[name]) if name in like and isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def of_optimizer(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer with what has a parameter's shape sharded as that parameter is."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def of_one(number: int, held: Mapping[str, Any]) -> dict[str, Any]:
        parameter = parameters[number]
        return {
            name: placed(value, parameter)
            if isinstance(value, Tensor) and value.shape == parameter.shape
            else value
            for name, value in held.items()
        }

    return {**state, "state": {number: of_one(number, held) for number, held in state["state"].items()}}
