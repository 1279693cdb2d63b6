# SPDX-License-Identifier: Apache-2.0
"""A network of a billion parameters on one GPU: time and peak memory of a private step over the plain one.

    python benchmarks/large_models.py                 LoRA and a full fine-tune, bfloat16, on a GPU
    python benchmarks/large_models.py --sharded       the same network cut by fully_shard, one process
    python benchmarks/large_models.py --only LoRA     the cases whose name holds this
    python benchmarks/large_models.py --quick         a tiny network on the CPU; under a minute
    python benchmarks/large_models.py --json          rows for a program: what, value, bar, met

    torchrun --nproc-per-node 4 benchmarks/large_models.py --sharded      on several GPUs: figures of rank 0

Network A decoder like GPT: 24 blocks of width 1792, 14 heads of 128, texts of 512 tokens, 50,257 words, the
        output layer tied to the table; 1.01 billion parameters with random weights. Nothing is downloaded.
Step    Private: gradients of all rows, clip, noise, AdamW update. Plain: backward pass and the same update.
        LoRA: rank 16 in all linear layers of the blocks; everything else is frozen.
Order   Each mode starts clean, on a network of its own, and takes a few steps before the clock starts. The
        ratio is that of the medians. Memory is the peak from the first byte of the network on.
Bars    None: the figures are shown as they are.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from models.results import Row, command_line, report
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from sfumato.training import PassSettings, PrivateGradients, add_lora, distributed

RANK: Final = 16
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A network and its batches."""

    blocks: int = 24
    width: int = 1792
    heads: int = 14
    words: int = 50_257
    length: int = 512
    rows: int = 8
    warm_up: int = 3
    timed: int = 10


QUICK: Final = Size(blocks=2, width=32, heads=2, words=97, length=16, rows=4, warm_up=1, timed=2)


class Block(nn.Module):
    """Attention and two linear layers, each after a norm and around a shortcut."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the next block sees: [rows, length, width]."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    """A language model whose table of words is its output layer, too."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.blocks))
        self.last, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.words, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a score for each word at each place: [rows, length, words]."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean loss of each row over its places."""
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


def main() -> int:
    """Measure and print."""
    parser = command_line(__doc__, quick="a tiny network, also without a GPU")
    parser.add_argument("--sharded", action="store_true", help="cut the network with fully_shard")
    parser.add_argument("--rows", type=int, help="how many texts a step has on each rank")
    parser.add_argument("--microbatch-size", type=int, help="how many of them are run at once")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    if not (arguments.quick or torch.cuda.is_available()):
        parser.error(
            "this machine, or this build of torch, has no CUDA device. Pass --quick for a tiny size."
        )
    device = (
        torch.device("cuda", distributed.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    )
    if arguments.sharded:
        distributed.join(device, timeout=600)
    size = QUICK if arguments.quick else Size()
    size = size if arguments.rows is None else Size(**{**vars(size), "rows": arguments.rows})
    bench = Bench(size, device, sharded=arguments.sharded, microbatch_size=arguments.microbatch_size)
    rows = [row for lora in (True, False) for row in bench.case(lora=lora, only=arguments.only)]
    if not distributed.is_first():
        return 0
    return report("Steps of a large network", rows, as_json=arguments.json)


class Bench:
    """The cases on one device."""

    def __init__(
        self, size: Size, device: torch.device, *, sharded: bool, microbatch_size: int | None
    ) -> None:
        self._size, self._device, self._sharded = size, device, sharded
        self._passes = PassSettings(microbatch_size=microbatch_size)

    def case(self, *, lora: bool, only: str) -> Iterator[Row]:
        """Yield times and memory of plain and private steps, and their ratios."""
        name = f"LoRA of rank {RANK}" if lora else "full fine-tune"
        name += ", fully_shard" if self._sharded else ""
        if only not in name:
            return
        seconds, peaks = {}, {}
        for mode, make in {"plain": self._plain, "private": self._private}.items():
            seconds[mode], peaks[mode], count = self._measured(make, lora=lora)
            yield Row(subject=name, name=f"{mode}, ms a step", value=1e3 * seconds[mode])
            if self._device.type == "cuda":
                yield Row(subject=name, name=f"{mode}, peak GiB", value=peaks[mode] / 2**30)
            if mode == "plain":
                yield Row(subject=name, name="parameters, millions", value=count / 1e6)
        yield Row(subject=name, name="private / plain, time", value=seconds["private"] / seconds["plain"])
        if self._device.type == "cuda":
            yield Row(subject=name, name="private / plain, memory", value=peaks["private"] / peaks["plain"])

    def _network(self, *, lora: bool) -> Decoder:
        torch.manual_seed(0)
        with torch.device(self._device):
            model = Decoder(self._size).to(torch.bfloat16)
            if lora:
                add_lora(model.blocks, rank=RANK)
                for part in (model.words, model.places, model.last):
                    part.requires_grad_(False)
        if self._sharded:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        return model

    def _batch(self) -> Tensor:
        shape = (self._size.rows, self._size.length)
        return torch.randint(self._size.words, shape, device=self._device)

    def _plain(self, model: Decoder) -> Step:
        optimizer, tokens = _optimizer(model), self._batch()

        def step() -> None:
            optimizer.zero_grad()
            loss(model, tokens).mean().backward()
            optimizer.step()

        return step

    def _private(self, model: Decoder) -> Step:
        optimizer, tokens = _optimizer(model), self._batch()
        private = PrivateGradients(
            model,
            loss,
            clip_norm=1.0,
            noise_multiplier=1.0,
            expected_batch_size=self._size.rows * distributed.size(),
            passes=self._passes,
        )

        def step() -> None:
            private.backward(tokens)
            optimizer.step()

        return step

    def _measured(self, make: Callable[[Decoder], Step], *, lora: bool) -> tuple[float, float, int]:
        """Return the seconds of a step, the peak of memory in bytes, and the number of parameters."""
        cuda = self._device.type == "cuda"
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        model = self._network(lora=lora)
        step, found = make(model), []
        for place in range(self._size.warm_up + self._size.timed):
            begin = time.perf_counter()
            step()
            if cuda:
                torch.cuda.synchronize(self._device)
            if place >= self._size.warm_up:
                found.append(time.perf_counter() - begin)
        peak = float(torch.cuda.max_memory_allocated(self._device)) if cuda else 0.0
        return statistics.median(found), peak, sum(p.numel() for p in model.parameters())


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
