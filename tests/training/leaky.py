# SPDX-License-Identifier: Apache-2.0
"""Models that keep something of their rows, each in another way; several tests share them."""

import math
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

SECRET = 7777.0
X = torch.tensor([[SECRET, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])


@dataclass
class Record:
    total: float = 0.0
    last: object = None


class Equal:
    """Equals everything."""

    def __eq__(self, other):
        return True

    __hash__ = None


class Slotted:
    __slots__ = ("last",)


class Part(nn.Module):
    """A layer with one of everything; `do` is what its forward pass does besides."""

    def __init__(self, do=None):
        super().__init__()
        self.do = do
        self.weight = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("unset", None)
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("small", torch.zeros(3, dtype=torch.int8))
        self.register_buffer("flag", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("turned", torch.zeros(3, dtype=torch.complex64))
        self.register_buffer("unknown", torch.full((3,), math.nan))
        self.register_buffer("part", torch.zeros(8)[:3])
        self.register_buffer("sparse", torch.zeros(3).to_sparse())
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("abstract", torch.zeros(3, device="meta"))
        self.kept, self.count, self.total, self.word, self.on = torch.zeros(3), 0, 0.0, "", False
        self.items, self.table, self.queue, self.names = [], {}, deque(), set()
        self.terms, self.zeros = {"first": 1}, [0.0]
        self.nested = {"a": [torch.zeros(3), (1, [2])]}
        self.record, self.loose, self.slotted = Record(), SimpleNamespace(n=0, inner=[]), Slotted()
        self.array, self.bytes = np.zeros(3), bytearray(3)
        self.note = 0

    def forward(self, x):
        if self.do is not None:
            self.do(self, x)
        return x * self.weight

    def get_extra_state(self):
        return {"note": NOTES.get(id(self), 0)}

    def set_extra_state(self, state):
        NOTES[id(self)] = state["note"]


NOTES = {}  # extra state that lives outside of any module


def quietly(do):
    @torch.no_grad()
    def undone(m, x):
        do(m, x.detach())

    return undone


def set_grad(m, x):
    m.frozen.grad = x.mean(0)


def register(m, x):
    m.register_buffer("fresh", x.mean(0))


def new_parameter(m, x):
    m.frozen = nn.Parameter(x.mean(0), requires_grad=False)


def new_module(m, x):
    m.added = nn.Linear(2, 2)


def through_storage(m, x):
    m.frozen.untyped_storage()[0] = int(x[0, 0]) % 256


def beyond_the_view(m, x):
    torch.empty(0).set_(m.part.untyped_storage(), 4, (3,), (1,)).copy_(x[0])


def resized(m, x):
    m.mean.resize_(5)


def extra(m, x):
    NOTES[id(m)] = float(x.sum())


def counted_words(m, x):
    m.table[float(x[0, 0])] = 1


def renamed(m, x):
    m.terms[str(float(x[0, 0]))] = m.terms.pop(next(iter(m.terms)))


def named_attribute(m, x):
    setattr(m, f"seen_{int(x[0, 0])}", True)


def sparse_values(m, x):
    m.sparse = x[0].to_sparse()


def emptied(m, x):
    del m.note


def set_word(m, x):
    m.word = str(float(x[0, 0]))


def set_on(m, x):
    m.on = bool((x > 0).any())


def set_record(m, x):
    m.record.last = x[0]


def slot(m, x):
    m.slotted.last = x[0]


def attribute_of_a_parameter(m, x):
    m.frozen.kept = x[0]


def unfreeze(m, x):
    m.frozen.requires_grad_(bool((x > 0).any()))


# What a leaky layer does -> the name that the error must have.
MARKED = {  # a quick check finds these, too
    "frozen, under no_grad": (lambda m, x: m.frozen.copy_(x.mean(0)), "frozen"),
    "trainable, under no_grad": (lambda m, x: m.weight.copy_(x.mean(0)), "weight"),
    "trainable, by set_": (lambda m, x: m.weight.set_(x.mean(0).clone()), "weight"),
    "frozen, .data replaced": (lambda m, x: setattr(m.frozen, "data", x.mean(0)), "frozen"),
    "trainable, .data replaced": (lambda m, x: setattr(m.weight, "data", x.mean(0)), "weight"),
    "parameter replaced": (new_parameter, "frozen"),
    "running average": (lambda m, x: m.mean.lerp_(x.mean(0), 0.1), "mean"),
    "counter of rows": (lambda m, x: m.seen.add_(len(x)), "seen"),
    "counter of passes": (lambda m, x: m.seen.add_(1), "seen"),
    "buffer through a view": (lambda m, x: m.mean[1:].add_(x[0, 1:]), "mean"),
    "buffer replaced": (lambda m, x: setattr(m, "mean", x.mean(0)), "mean"),
    "buffer resized": (resized, "mean"),
    "buffer that was None": (lambda m, x: setattr(m, "unset", x.mean(0)), "unset"),
    "non-persistent buffer": (lambda m, x: m.hidden.add_(x[0]), "hidden"),
    "buffer of int8": (lambda m, x: m.small.add_(x[0].to(torch.int8)), "small"),
    "buffer of bool": (lambda m, x: m.flag.logical_or_(x[0] > 0), "flag"),
    "complex buffer": (lambda m, x: m.turned.add_(x[0]), "turned"),
    "sparse buffer": (sparse_values, "sparse"),
    "new buffer": (register, r"the model \(something new\)"),
    "attribute": (lambda m, x: setattr(m, "kept", x[0]), "kept"),
    "attribute in place": (lambda m, x: m.kept.add_(x[0]), "kept"),
    "new attribute": (lambda m, x: setattr(m, "fresh", x[0]), r"the model \(something new\)"),
    "attribute named by a row": (named_attribute, r"the model \(something new\)"),
    "attribute deleted": (emptied, "note"),
    "list": (lambda m, x: m.items.append(x), "items"),
    "queue": (lambda m, x: m.queue.append(x), "queue"),
    "dict": (lambda m, x: m.table.update(a=x), "table"),
    "dict named by a row": (counted_words, "table"),
    "dict entry renamed": (renamed, "terms"),
    "number of another type": (lambda m, x: m.terms.update(first=1.0), "terms"),
    "sign of a zero in a list": (lambda m, x: m.zeros.__setitem__(0, -0.0), "zeros"),
    "object that equals all others": (lambda m, x: setattr(m, "note", Equal()), "note"),
    "set": (lambda m, x: m.names.add(float(x[0, 0])), "names"),
    "nested list": (lambda m, x: m.nested["a"][1][1].append(x), "nested"),
    "nested tensor": (lambda m, x: m.nested["a"][0].add_(x[0]), "nested"),
    "dataclass": (set_record, "record"),
    "object": (lambda m, x: setattr(m.loose, "n", x.sum()), "loose"),
    "list of an object": (lambda m, x: m.loose.inner.append(x), "loose"),
    "python counter": (lambda m, x: setattr(m, "count", m.count + 1 + int(x.abs().sum())), "count"),
    "python float": (lambda m, x: setattr(m, "total", m.total + float(x.sum())), "total"),
    "python counter of passes": (lambda m, x: setattr(m, "count", m.count + 1), "count"),
    "python text": (set_word, "word"),
    "python bool": (set_on, "on"),
    "new submodule": (new_module, r"the model \(something new\)"),
    "mode": (lambda m, x: m.eval(), "training"),
    "attribute of a parameter": (attribute_of_a_parameter, "frozen"),
}
UNMARKED = {  # only a thorough check finds these
    "frozen, through .data": (lambda m, x: m.frozen.data.copy_(x.mean(0)), "frozen"),
    "trainable, through .data": (lambda m, x: m.weight.data.copy_(x.mean(0)), "weight"),
    "frozen, through its storage": (through_storage, "frozen"),
    "frozen, through numpy": (lambda m, x: np.copyto(m.frozen.numpy(), x[0].numpy()), "frozen"),
    "buffer, through .data": (lambda m, x: m.mean.data.add_(x[0]), "mean"),
    "NaN to a number": (lambda m, x: m.unknown.data.copy_(x[0]), "unknown"),
    "sign of zero": (lambda m, x: m.mean.data.copysign_(-x[0]), "mean"),
    "beyond a view": (beyond_the_view, "part"),
    "gradient of a frozen parameter": (set_grad, "frozen"),
    "frozen or not": (unfreeze, "frozen"),
    "extra state": (extra, r"the model \(extra state\)"),
    "numpy array": (lambda m, x: m.array.__iadd__(x[0].numpy()), "array"),
    "bytearray": (lambda m, x: m.bytes.__setitem__(0, 7), "bytes"),
    "slot": (slot, "slotted"),
}
LEAKY = MARKED | UNMARKED


def seen(value, depth=6):
    """All that a value holds, in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        bits = None if value.is_meta else value.detach().to_dense().clone().numpy().tobytes()
        kind = type(value), value.shape, value.dtype, value.requires_grad
        return kind, bits, sorted(vars(value)), value.grad is None
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, seen(part, depth - 1)) for key, part in value.items()] if depth else None
    if isinstance(value, list | tuple | deque):
        return type(value), [seen(part, depth - 1) for part in value]
    if isinstance(value, Slotted):
        return hasattr(value, "last")
    if hasattr(value, "__dict__") and not callable(value):
        return seen(vars(value), depth - 1)
    return repr(value) if not callable(value) else None


def state(model):
    return seen(vars(model)), NOTES.get(id(model), 0)


class Leaking(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.layer, self.part = nn.Linear(3, 3), Part(do)
        self.part.weight.requires_grad_(False)

    def forward(self, x):
        return self.part(self.layer(x))


PLAIN = [  # ways that also work on the tensors of vmap, or where it falls back to a loop
    "frozen, through .data",
    "frozen, under no_grad",
    "running average",
    "counter of rows",
    "counter of passes",
    "buffer replaced",
    "attribute",
    "list",
    "dataclass",
    "python counter",
    "python counter of passes",
    "new submodule",
]
