# SPDX-License-Identifier: Apache-2.0
"""Training in several processes: the same script under `torchrun`, with the same sums as in one process.

Guarantee  Rank 0 draws each batch and sends it to the others, so one sampler forms the batches, however many
           ranks there are. Each rank clips and adds up its share of the units. Noise is added once, by rank
           0, to its share before the shares are added up. So all ranks get the same noisy sum. The ranks
           trust each other: shares without noise are sent between them.
Edge cases Without torch.distributed every function here does the same for one process. Only rank 0 writes
           files, uses the ledger and shows progress.
Failure    An error of rank 0 is raised on all ranks. If a rank dies, the others stop with an error when their
           connection breaks or the timeout is over; torchrun ends them at once. All ranks must hold the same
           data, or the run is refused (`rank_agreement`).
"""

import atexit
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, SfumatoError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "OtherRankError",
    "add_up_",
    "alike",
    "drawn",
    "first_decides",
    "from_first",
    "gathered",
    "global_rank",
    "is_first",
    "is_sharded",
    "join",
    "local_rank",
    "rank",
    "refuse_groups",
    "same_weights_",
    "share",
    "size",
]

Answer = TypeVar("Answer")


class OtherRankError(SfumatoError, RuntimeError):
    """Raised if another rank failed, so no rank can continue. That rank's own error has the reason."""


def started() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the number of this process; 0 if it is alone.

    >>> rank(), size(), is_first()
    (0, 1, True)
    """
    return dist.get_rank() if started() else 0


def size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if started() else 1


def is_first() -> bool:
    """Whether this process draws, writes and speaks for all."""
    return rank() == 0


def local_rank() -> int:
    """Return the number of this process on its machine, as set by torchrun; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def global_rank() -> int:
    """Return the number of this process among all of them, as set by torchrun, before they are connected."""
    return int(os.environ.get("RANK", "0"))


def join(device: torch.device, *, timeout: float) -> None:
    """Meet the other processes that torchrun started; do nothing if there are none, or they have met."""
    if started() or "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # This module of torch keeps the group that it finds when it is imported, for good. A group that is kept
    # cannot end its threads, and one of them may then abort the process while it leaves.
    importlib.import_module("torch.distributed.nn.functional")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    atexit.register(_leave)


def _leave() -> None:
    if started():
        dist.destroy_process_group()


def add_up_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all ranks, the same on every rank."""
    if size() == 1:
        return
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise InvalidParameterError("only contiguous tensors can be added up over ranks.")
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        if work is not None:
            work.wait()


def from_first(tensor: Tensor) -> Tensor:
    """Return rank 0's tensor on every rank; shape and type must agree."""
    if size() > 1:
        dist.broadcast(tensor, src=0)
    return tensor


def is_sharded(value: object) -> "TypeGuard[DTensor]":
    """Whether a value is a tensor of which each rank holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # while nobody has imported it, there is none
    return module is not None and isinstance(value, module.DTensor)


def same_weights_(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0; shards stay, of which no rank has another's."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not is_sharded(tensor):
            from_first(tensor.detach())


def share(units: Tensor) -> Tensor:
    """Return this rank's part of the units of a batch: every size()-th, from its own number on."""
    return units if size() == 1 else units[rank() :: size()]


def drawn(draw: Callable[[], Tensor], device: torch.device) -> Tensor:
    """Return on every rank the units that rank 0 draws."""
    if size() == 1:
        return draw()
    units = draw().to(device) if is_first() else torch.empty(0, dtype=torch.int64, device=device)
    count = from_first(torch.tensor([len(units)], device=device))
    if not is_first():
        units = torch.empty(int(count), dtype=torch.int64, device=device)
    return from_first(units).cpu()


def first_decides(decide: Callable[[], Answer], *, meanwhile: Callable[[], object] | None = None) -> Answer:
    """Return on every rank what `decide` returns on rank 0; if it raises there, every rank raises.

    `meanwhile` is called on the other ranks while rank 0 decides, and on rank 0 when it has decided.
    """
    if size() == 1:
        return decide()
    outcome: list[Any] = [None, None]
    failure: Exception | None = None
    if is_first():
        try:
            outcome = [decide(), None]
        except Exception as error:
            failure = error
            outcome = [None, f"{type(error).__name__}: {error}"]
    if meanwhile is not None:
        meanwhile()
    dist.broadcast_object_list(outcome, src=0)
    if failure is not None:
        raise failure
    if outcome[1] is not None:
        raise OtherRankError(f"rank 0 stopped with {outcome[1]}")
    return outcome[0]


def alike(compute: Callable[[], Any]) -> bool:
    """Return whether `compute` returns the same on all ranks; if it raises on one, every rank raises."""
    outcome, failure = [None, ""], None
    try:
        outcome = [compute(), ""]
    except Exception as error:
        failure, ours = error, isinstance(error, SfumatoError)  # messages of other errors may quote a row
        outcome = [None, f"{type(error).__name__}: {error}" if ours else type(error).__name__]
    everyones: list[Any] = [outcome]
    if size() > 1:
        everyones = [None] * size()
        dist.all_gather_object(everyones, outcome)
    if failure is not None:
        raise failure
    for place, (_, error) in enumerate(everyones):
        if error:
            raise OtherRankError(f"rank {place} stopped with {error}")
    return all(value == everyones[0][0] for value, _ in everyones)


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks on rank 0, and nothing on the others."""
    if size() == 1:
        return [value]
    values: list[Any] | None = [None] * size() if is_first() else None
    dist.gather_object(value, values, dst=0)
    return values or []


def refuse_groups(group_size: int) -> None:
    """Raise if clipped groups would be formed on several ranks.

    A unit's place in the batch decides its rank, and one unit more moves the places of others: then it would
    also move them into other groups, and the sum by more than the event states.
    """
    if group_size > 1 and size() > 1:
        raise InvalidParameterError(
            f"group_size={group_size} works in one process only. Run without torchrun, or clip single units."
        )
