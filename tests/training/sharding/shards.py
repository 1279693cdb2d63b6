# SPDX-License-Identifier: Apache-2.0
"""Steps of private training with a model that is sharded over the ranks that run this script.

Without RANK the same steps are taken by one process with the whole model, so that both can be compared.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sfumato.audit import Canaries
from sfumato.errors import SfumatoError
from sfumato.mechanisms.random import SecureGenerator
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    CoordinateClipping,
    PassSettings,
    PrivateGradients,
    add_lora,
    distributed,
    train,
)
from sfumato.training.sharding import exchange, shard_noise, states
from sfumato.training.sharding.layout import layout_of, local

ROWS, WORDS, WIDTH = 13, 11, 6
STDDEV = 2.0  # of the noise on empty batches


class Block(nn.Module):
    """What a transformer has: a norm, attention over positions, and linear layers; one bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)
        self.scale = nn.Parameter(torch.full((1,), 0.5))  # its use has no rule: it is copied for each row
        self.down.bias.requires_grad_(False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.scale * self.down(torch.tanh(self.up(x)))


class Tied(nn.Module):
    """A language model whose table is its output layer, too."""

    def __init__(self, blocks) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def network(asked):
    torch.manual_seed(3)
    model = Tied(asked.get("blocks", 2)).to(getattr(torch, asked.get("dtype", "float32")))
    if asked.get("lora"):
        add_lora(model.blocks, rank=2)
        model.table.weight.requires_grad_(False)
    if distributed.started():
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def tokens(asked):
    draws = torch.Generator().manual_seed(5)
    found = torch.randint(0, WORDS, (ROWS, 5), generator=draws)
    if asked.get("poison"):
        found[8, 2] = WORDS + 3  # no such word: the look-up fails
        found[4, 0] = found[10, 0] = WORDS - 1  # their losses are not numbers
    return found


def loss(model, x):
    if loss.memory:
        raise MemoryError
    logits = model(x[:, :-1]).float()
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), x[:, 1:], reduction="none").mean(1)
    return losses * torch.where(x[:, 0] == WORDS - 1, torch.nan, 1.0) if loss.poison else losses


loss.poison, loss.memory = False, False


def share(step):
    """Return which rows this rank has in a step: uneven numbers, none, or all of them."""
    rank, ranks = distributed.rank(), distributed.size()
    if step == 0:
        return slice(0, ROWS) if rank == ranks - 1 else slice(0, 0)
    if step == 1:
        first = rank * 3
        return slice(first, ROWS if rank == ranks - 1 else first + 3)
    return slice(0, 0)  # an empty batch


def steps(asked):
    """Return the gradients of all steps and the weights after them."""
    loss.poison = asked.get("poison", False)
    model, x = network(asked), tokens(asked)
    adaptive = AdaptiveClip(count_noise_multiplier=2.0) if asked.get("adaptive") else None
    private = PrivateGradients(
        model,
        loss,
        noise_multiplier=asked.get("noise", 1.0),
        expected_batch_size=8,
        clipping=Clipping(clip_norm=0.3, per_layer=asked.get("per_layer", False), adaptive=adaptive),
        passes=PassSettings(microbatch_size=asked.get("microbatch_size", 2), check=asked.get("check", True)),
        generator=seeded(7),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    found = {}
    for step in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=asked.get("autocast", False)):
            private.accumulate(x[share(step)])
            private.finish()
        named = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        found |= {f"{name}, step {step}": gradient.clone() for name, gradient in named.items()}
        optimizer.step()
    assert not any(type(p).__name__ == "Lent" for p in model.parameters())
    return states.gathered(found | {name: p.detach() for name, p in model.named_parameters()})


class Repeated(SecureGenerator):
    """What nobody may write: the same stream in each process, which does not say that it is seeded."""

    def fork(self, label, index):
        return seeded(9)


def noise(asked):
    """Return the noise that this rank adds to its shards of empty batches."""
    model = nn.Sequential(nn.Linear(9, asked["width"]), nn.Linear(asked["width"], 24))
    if distributed.started():
        fully_shard(model)
    if asked.get("unguarded"):
        shard_noise.require_own_streams = lambda generator: None
        from sfumato.training.sharding import sharded_passes

        sharded_passes.require_own_streams = shard_noise.require_own_streams
    private = PrivateGradients(
        model,
        noise_multiplier=STDDEV,
        clip_norm=1.0,
        expected_batch_size=1,
        generator=Repeated() if asked.get("repeated") else None,
    )
    drawn = []
    for _ in range(asked["steps"]):
        private.finish()
        drawn.append(torch.cat([local(p.grad).flatten() for p in private.parameters.values()]))
    return {"drawn": torch.stack(drawn)}


def failing(asked):
    """Let one rank die, or fail in a step, in a way that a row does not cause."""
    model, x = network(asked), tokens(asked)
    private = PrivateGradients(model, loss, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1)
    private.backward(x[:2])
    private.accumulate(x[:2])
    if asked.get("kill") and distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.memory = distributed.rank() == 1
    try:
        private.accumulate(x[:1])
        private.finish()
    finally:
        loss.memory = False
        assert all(p.grad is None for p in model.parameters()) or distributed.rank() == 0
    return {}


def refused(asked):
    """Return what each way to distribute or to train that cannot be done is refused with."""
    return {name: _refusal(attempt) for name, attempt in WRONG.items()}


def _refusal(attempt):
    try:
        attempt()
    except SfumatoError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def _linear(**how):
    layer = nn.Linear(4, 4)
    fully_shard(layer, **how)
    return layer


def _private(model, **settings):
    given = {"clip_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 1} | settings
    if "clipping" in given:
        del given["clip_norm"]
    return PrivateGradients(model, **given)


def _two_axes():
    return init_device_mesh("cpu", (1, distributed.size()), mesh_dim_names=("copies", "parts"))


def _tensor_parallel():
    layer = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (distributed.size(),))
    layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Replicate()]))
    return layer


def _part():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model[0])
    return model


class Scaled(nn.Module):
    def __init__(self, forward) -> None:
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.ones(4)), forward

    def forward(self, x):
        return self.change(self.weight, x)


def _trained(change):
    model = Scaled(change)
    fully_shard(model)
    _private(model).backward(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64))


class Contributor:
    def contributions(self, model, batch, *, step):
        return {}

    def statement(self):
        return ""


def _run(**settings):
    data = torch.zeros(20, 4), torch.zeros(20, dtype=torch.int64)
    train(_linear(), data, public_size=20, steps=1, noise_multiplier=1.0, progress=False, **settings)


class Denoiser:
    reveals_batches = False

    def statement(self):
        return ""


WRONG = {
    "two axes": lambda: _private(_linear(mesh=_two_axes())),
    "second axis": lambda: _private(_linear(shard_placement_fn=lambda p: Shard(p.dim() - 1))),
    "tensor parallel": lambda: _private(_tensor_parallel()),
    "mixed precision": lambda: _private(_linear(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))),
    "part": lambda: _private(_part()),
    "functional": lambda: _private(_linear(), passes=PassSettings(engine="functional")),
    "compile": lambda: _private(_linear(), passes=PassSettings(compile=True)),
    "coordinates": lambda: _private(_linear(), clipping=CoordinateClipping(coordinate_bound=1.0)),
    "projections": lambda: _private(_linear(), projections=3),
    "denoiser": lambda: _run(denoiser=Denoiser(), relation="replace-label"),
    "audit": lambda: _run(audit=Canaries(count=20)),
    "contributor": lambda: _private(_linear(), passes=PassSettings(engine=Contributor())),
    "in place": lambda: _trained(lambda weight, x: x * weight.data.mul_(2.0)),
    "values": lambda: _trained(lambda weight, x: x * weight if float(x.sum()) > 0 else x),
}


def whole(asked):
    """Return how many bytes of whole parameters there were at once, and how many the units have."""
    model, x, made, most = network(asked), tokens(asked), [], [0]
    private = PrivateGradients(model, loss, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1)
    gather = exchange.whole

    def watched(parameter):
        found = gather(parameter)
        made.append((StorageWeakRef(found.untyped_storage()), found.untyped_storage().nbytes()))
        most[0] = max(most[0], sum(size for held, size in made if not held.expired()))
        return found

    exchange.whole = watched
    try:
        private.backward(x[share(1)])
    finally:
        exchange.whole = gather
    units = [[s for s in layout_of(model) if s.unit == unit] for unit in range(len(model.blocks) + 1)]
    each = [sum(len(gather(s.parameter)) * s.row * 4 for s in unit) for unit in units]
    return {"most": most[0], "units": each}


DOES = {"steps": steps, "noise": noise, "failing": failing, "refused": refused, "whole": whole}


def attempt(asked):
    try:
        return DOES[asked.get("do", "steps")](asked)
    except SfumatoError as error:
        return {"error": type(error).__name__, "message": str(error)}


def main(several, out):
    if "RANK" in os.environ:
        distributed.join(torch.device("cpu"), timeout=60)
    torch.set_num_threads(1)
    for number, asked in enumerate(several):
        torch.save(attempt(asked), Path(out) / f"{number}-{distributed.rank()}.pt")


if __name__ == "__main__":
    warnings.simplefilter("error", FutureWarning)
    main(json.loads(sys.argv[1]), sys.argv[2])
