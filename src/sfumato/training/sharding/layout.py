# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model are sharded, into which units, and which rank holds which rows of them.

`fully_shard` cuts each parameter along its first axis into one shard for each rank, as `torch.chunk` would:
the first ranks have equal numbers of rows, the last ones may have fewer, or none. Each module that it was
called on is a unit, with the parameters of that module that belong to no unit inside of it.

Guarantee  `whole` and `added_up` pad shards to equal size for torch's collectives, and cut the padding off
           again. So a shard of a sum has the numbers of its own rows and nothing else: padding gets no noise,
           because no noise is added before it is cut off.
Failure    Whatever else distributes parameters (tensor parallelism, two-dimensional meshes, offloading to the
           CPU, another axis, FSDP1) is refused by its name, before anything is charged.
Not here   When values are gathered (`exchange`), and what stands for a parameter meanwhile (`lent`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sfumato.errors import UnsupportedModelError
from sfumato.training import distributed
from sfumato.training.distributed import is_sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "Shard",
    "added_up",
    "gathered",
    "is_unit",
    "layout_of",
    "local",
    "refuse_old_wrappers",
    "sharded_like",
    "whole",
]

# torch 2.13 has new names for these two, and warns at the old ones.
_NEW = hasattr(dist, "all_gather_single")
_gather: Any = getattr(dist, "all_gather_single" if _NEW else "all_gather_into_tensor")
_reduce: Any = getattr(dist, "reduce_scatter_single" if _NEW else "reduce_scatter_tensor")

_HOW = "call torch.distributed.fsdp.fully_shard(part) on the parts of the model, then on the model itself"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One sharded parameter: its name, its unit, and whether it was trainable when training was set up."""

    name: str
    unit: int
    parameter: "DTensor"
    trainable: bool = False

    @property
    def row(self) -> int:
        """How many numbers one row of the parameter has."""
        return self.parameter.shape[1:].numel()

    @property
    def rows_each(self) -> int:
        """How many rows a rank holds, unless it is one of the last."""
        return -(-self.parameter.shape[0] // distributed.size())

    def rows_of(self, rank: int) -> int:
        """Return how many rows a rank holds."""
        rows, each = self.parameter.shape[0], self.rows_each
        return min(max(rows - rank * each, 0), each)


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds; all of it, if it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor.detach()


def gathered(own: Tensor, group: Any) -> Tensor:
    """Return the contiguous tensors of all ranks of a group, one behind the other. All ranks must ask."""
    found = own.new_empty((own.shape[0] * dist.get_world_size(group), *own.shape[1:]))
    _gather(found.view(-1), own.view(-1), group=group)
    return found


def sharded_like(parameter: "DTensor", own: Tensor) -> "DTensor":
    """Return a tensor that is sharded as a parameter is, of which this rank's shard is given."""
    from torch.distributed.tensor import DTensor  # imported by whoever made the parameter

    return DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


@torch.no_grad()
def whole(tensor: "DTensor") -> Tensor:
    """Return all of a tensor that is cut along its first axis. All ranks must ask."""
    rows = tensor.shape[0]
    own = _padded(tensor.to_local(), -(-rows // distributed.size()))
    return gathered(own, tensor.device_mesh.get_group())[:rows]


@torch.no_grad()
def added_up(shard: Shard, total: Tensor | None) -> Tensor:
    """Return this rank's rows of the sum of all ranks' totals; None counts as zeros. All ranks must ask."""
    parameter, each = shard.parameter, shard.rows_each
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    shape = (each * distributed.size(), *parameter.shape[1:])
    if total is None:
        given = torch.zeros(shape, dtype=dtype, device=parameter.to_local().device)
    else:
        given = _padded(total.to(dtype), shape[0])
    own = given.new_empty((each, *parameter.shape[1:]))
    _reduce(own.view(-1), given.view(-1), group=parameter.device_mesh.get_group())
    return own[: shard.rows_of(distributed.rank())]


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Return a contiguous tensor with so many rows, zeros behind its own."""
    missing = rows - tensor.shape[0]
    if not missing:
        return tensor.contiguous()
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])


def layout_of(model: nn.Module) -> list[Shard]:
    """Return the sharded parameters of a model, trainable and frozen; none if it is not sharded.

    Raises:
        UnsupportedModelError: If parameters are distributed in another way than by `fully_shard`.
    """
    refuse_old_wrappers(model)
    if not any(is_sharded(parameter) for parameter in model.parameters()):
        return []
    units: dict[int, int] = {}
    found: dict[int, Shard] = {}
    for name, parameter, unit in _owned(model):
        if id(parameter) in found:
            continue
        if is_sharded(parameter):
            _refuse_other_placements(name, parameter, unit)
            number = units.setdefault(id(unit), len(units))
            found[id(parameter)] = Shard(
                name=name, unit=number, parameter=parameter, trainable=parameter.requires_grad
            )
        elif parameter.requires_grad:
            raise UnsupportedModelError(
                f"parameter {name!r} is trainable and not sharded, though others of the model are: {_HOW}, "
                "or freeze it."
            )
    return list(found.values())


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module | None]]:
    """Yield each parameter with its name, and the innermost unit that it is in."""
    units: dict[str, nn.Module | None] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        above = units.get(path.rpartition(".")[0]) if path else None
        units[path] = module if is_unit(module) else above
        _refuse_policies(path, module)
        for attribute, parameter in module._parameters.items():  # pyright: ignore[reportPrivateUsage]
            if parameter is not None:
                yield (f"{path}.{attribute}" if path else attribute), parameter, units[path]


def is_unit(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on a module."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def refuse_old_wrappers(model: nn.Module) -> None:
    """Raise if a part of a model is wrapped by the first FSDP of torch."""
    for path, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise UnsupportedModelError(
                f"{path or 'the model'} is wrapped in FullyShardedDataParallel, which makes one parameter of "
                f"many and shows no layer its own. Unwrap it, and {_HOW}."
            )


def _refuse_other_placements(name: str, parameter: "DTensor", unit: nn.Module | None) -> None:
    mesh = parameter.device_mesh
    if mesh.ndim != 1:
        raise UnsupportedModelError(
            f"parameter {name!r} lies on a mesh of {mesh.ndim} axes (hybrid sharding, tensor parallelism). "
            "Private training knows meshes of one axis, over all processes: leave mesh= out of fully_shard."
        )
    if unit is None:
        raise UnsupportedModelError(
            f"parameter {name!r} was distributed by something else than fully_shard, such as "
            f"distribute_tensor or tensor parallelism. Load it as a plain parameter, and {_HOW}."
        )
    if mesh.mesh.flatten().tolist() != list(range(distributed.size())):
        raise UnsupportedModelError(
            f"parameter {name!r} lies on a mesh that is not all of the {distributed.size()} processes in "
            "order. Leave mesh= out of fully_shard."
        )
    expected = Shard(name=name, unit=0, parameter=parameter).rows_of(distributed.rank())
    placement = parameter.placements[0]
    own = parameter.to_local()
    if not (placement.is_shard() and placement.dim == 0) or own.shape[0] != expected:  # type: ignore[attr-defined]
        raise UnsupportedModelError(
            f"parameter {name!r} is placed as {placement}. Private training knows shards along the first "
            "axis: leave shard_placement_fn out of fully_shard."
        )
    if own.device.type != mesh.device_type:
        raise UnsupportedModelError(
            f"the shards of parameter {name!r} are offloaded to {own.device.type!r}. Leave "
            "CPUOffloadPolicy out of fully_shard: clipped sums and noise are made on the device."
        )


def _refuse_policies(path: str, module: nn.Module) -> None:
    """Raise if values would be computed in another type than the parameters have."""
    state = module._get_fsdp_state() if is_unit(module) else None  # type: ignore[operator]  # there is no public way
    policy = getattr(state, "_mp_policy", None)
    if policy is None or not (policy.param_dtype or policy.reduce_dtype or policy.output_dtype):
        return
    raise UnsupportedModelError(
        f"{path or 'the model'} was sharded with mp_policy={policy}. Private passes compute in the "
        "parameters' own type: leave mp_policy out, and pass Runtime(autocast=torch.bfloat16), or convert "
        "the model to bfloat16 before fully_shard."
    )
