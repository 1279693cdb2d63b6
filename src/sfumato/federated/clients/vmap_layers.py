# SPDX-License-Identifier: Apache-2.0
"""Layers of torch in a form that vmap runs well when each client has weights of its own.

torch's recurrent kernels have no vmap rule: clients would be run one after another inside of the kernel, with
a warning. Here a recurrent layer is made of products and elementwise functions, which vmap knows.

On a CPU, maxima over images are taken in another order of memory, and a convolution of the clients' own rows
is a product with columns of pixels. Both are faster. Convolutions of what a layer returned are left to torch:
its grouped kernels were as fast, or faster.

torch 2.13's vmap rules of `embedding` and `index_fill` put the tables of all clients into one, and add the
place of the client to an index. An index out of range would then reach the table of another client: it would
read its values and move its gradient. Here such an index gives NaN, or the function is refused.

Guarantee  Each substitute computes what the function of torch computes, up to rounding. It is called under
           vmap, on the tensors of one client, so it cannot mix clients.
Edge cases Arguments that a substitute does not know (packed sequences, dropout between layers) are left to
           torch. An index that an embedding does not have gives NaN, where torch raises: an error would be
           that of all clients.
Not here   What a scripted function calls is not seen from Python.
Source     The formulas of torch's documentation: nn.RNN, nn.GRU, nn.LSTM (with projections).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.errors import UnsupportedUseError
from sfumato.training.isolation.isolated_rows import Discreet

__all__ = ["ClientLayers"]


class ClientLayers(Discreet):
    """A mode in which layers run in the form of this module, and no value can be looked at."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        substitute = _SUBSTITUTES.get(func)
        if substitute is not None:
            found = substitute(*args, **(kwargs or {}))
            if found is not None:
                return found
        return super().__torch_function__(func, types, args, kwargs)


# --- recurrent layers ------------------------------------------------------------------------------------

States = tuple[Tensor, ...]  # h, or h and c: [N, size]


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of one layer in one direction."""

    ih: Tensor  # [gates * hidden, in]
    hh: Tensor  # [gates * hidden, out]
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    hr: Tensor | None = None  # [out, hidden], of a projection


def _lstm(x: Tensor, states: States, weights: _Weights) -> States:
    h, c = states
    i, f, g, o = F.linear(h, weights.hh, weights.b_hh).add(x).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if weights.hr is None else F.linear(h, weights.hr)), c


def _gru(x: Tensor, states: States, weights: _Weights) -> States:
    (h,) = states
    of_h = F.linear(h, weights.hh, weights.b_hh)
    reset, update, new = x.chunk(3, -1)
    h_reset, h_update, h_new = of_h.chunk(3, -1)
    kept = (update + h_update).sigmoid()
    proposed = (new + (reset + h_reset).sigmoid() * h_new).tanh()
    return (proposed + kept * (h - proposed),)


def _tanh(x: Tensor, states: States, weights: _Weights) -> States:
    return ((F.linear(states[0], weights.hh, weights.b_hh) + x).tanh(),)


def _relu(x: Tensor, states: States, weights: _Weights) -> States:
    return ((F.linear(states[0], weights.hh, weights.b_hh) + x).relu(),)


Cell = Callable[[Tensor, States, _Weights], States]


def _recurrent(cell: Cell) -> Callable[..., tuple[Tensor, ...] | None]:
    """Return a substitute for a recurrent function of torch; None is its answer to what it does not know."""

    def substitute(input: Tensor, hx: Any, *rest: Any) -> tuple[Tensor, ...] | None:
        if len(rest) != 7 or not isinstance(rest[0], list | tuple):  # packed sequences
            return None
        flat, biases, layers, dropout, train, bidirectional, batch_first = rest
        if train and dropout and layers > 1:
            return None
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        projected = len(states) == 2 and states[0].shape[-1] != states[1].shape[-1]
        each = list(_each_layer(flat, biases=biases, projected=projected))
        x = input.transpose(0, 1) if batch_first else input
        x, *lasts = _stack(cell, x, states, each, 2 if bidirectional else 1)
        return (x.transpose(0, 1) if batch_first else x), *lasts

    return substitute


def _each_layer(flat: Sequence[Tensor], *, biases: bool, projected: bool) -> Iterator[_Weights]:
    """Yield the weights of each layer and direction from torch's flat list."""
    size = 2 + 2 * biases + projected
    for begin in range(0, len(flat), size):
        part = flat[begin : begin + size]
        b_ih, b_hh = (part[2], part[3]) if biases else (None, None)
        yield _Weights(part[0], part[1], b_ih, b_hh, part[-1] if projected else None)


def _stack(
    cell: Cell, x: Tensor, states: States, each: Sequence[_Weights], directions: int
) -> tuple[Tensor, ...]:
    """Run all layers over [T, N, in]. Return the outputs and the last states, as torch does."""
    lasts: list[States] = []
    for begin in range(0, len(each), directions):
        outputs: list[Tensor] = []
        for place in range(begin, begin + directions):
            start = tuple(state[place] for state in states)
            output, last = _run(cell, x, start, each[place], reverse=place > begin)
            outputs.append(output)
            lasts.append(last)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return x, *(torch.stack(last) for last in zip(*lasts, strict=True))


def _run(cell: Cell, x: Tensor, states: States, weights: _Weights, *, reverse: bool) -> tuple[Tensor, States]:
    """Run one layer in one direction."""
    steps = F.linear(x, weights.ih, weights.b_ih).unbind(0)  # what inputs add, for all steps at once
    outputs: list[Tensor] = []
    for step in reversed(steps) if reverse else steps:
        states = cell(step, states, weights)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if reverse else outputs), states


# --- images ----------------------------------------------------------------------------------------------

_COLUMNS: Final = 4  # times the numbers of the result: columns of pixels take at most as much memory
_ALIGNED: Final = 16  # numbers in 64 bytes: products round by where the numbers of a client begin in memory
_CHANNELS: Final = 8  # from here on, kernels that go through channels first are faster on a CPU


def _max_pool2d(input: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    """Take maxima with the kernel for images whose channels are last in memory: 2 to 3 times as fast."""
    if input.dim() != 4 or input.device.type != "cpu" or input.shape[1] < _CHANNELS:
        return None
    rows, channels, *size = input.shape
    flat = input.movedim(1, -1).reshape(-1, channels)  # copies, unless memory has this order already
    return F.max_pool2d(flat.unflatten(0, (rows, *size)).movedim(-1, 1), *args, **kwargs)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """Convolve images that need no gradient: the product of columns of pixels with the weights."""
    known = groups == 1 and not isinstance(padding, str) and _pair(dilation) == (1, 1)
    small = weight[0].numel() <= _COLUMNS * len(weight)
    if not known or not small or input.requires_grad or input.dim() != 4 or input.device.type != "cpu":
        return None
    (down, right), (below, beside), (height, width) = _pair(stride), _pair(padding), weight.shape[2:]
    images = F.pad(input.movedim(1, -1), (0, 0, beside, beside, below, below))
    windows = images.unfold(1, height, down).unfold(2, width, right)  # [N, y, x, channels, height, width]
    if len(weight) % _ALIGNED or windows.numel() % _ALIGNED:
        return None
    columns = windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(0, 2)  # copies
    found = columns @ weight.permute(2, 3, 1, 0).flatten(0, 2)
    if bias is not None:
        found = found + bias
    return found.unflatten(0, windows.shape[:3]).movedim(-1, 1)


def _pair(value: Any) -> tuple[int, int]:
    """Return an option for height and width, which may be one number for both."""
    down, right = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return down, right


# --- embeddings ------------------------------------------------------------------------------------------


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    **options: Any,
) -> Tensor:
    """Look up rows of a table, and NaN for an index out of range."""
    if max_norm is not None:
        raise UnsupportedUseError("`max_norm` changes the table of an embedding during a pass.")
    last = weight.shape[0] - 1
    found = F.embedding(input.clamp(0, last), weight, padding_idx, **options)
    return torch.where(((input >= 0) & (input <= last)).unsqueeze(-1), found, torch.nan)


def _aten_embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, *options: Any, **named: Any
) -> Tensor:
    """Look up rows of a table as `torch.embedding`, where a padding index of -1 is none."""
    names = dict(zip(("scale_grad_by_freq", "sparse"), options, strict=False)) | named
    return _embedding(indices, weight, None if padding_idx < 0 else padding_idx, **names)


def _refused(*args: Any, **kwargs: Any) -> None:
    """Refuse a function whose vmap rule lets an index reach another client."""
    raise UnsupportedUseError(
        "`index_fill` cannot be run for many clients at once: torch's rule lets an index out of range reach "
        "another client. Use torch.where."
    )


def _forms(packet: Any) -> Iterator[Any]:
    """Yield the names under which an operation can be called by `torch.ops`."""
    yield packet
    yield from (getattr(packet, overload) for overload in packet.overloads())


_SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = {
    torch.lstm: _recurrent(_lstm),
    torch.gru: _recurrent(_gru),
    torch.rnn_tanh: _recurrent(_tanh),
    torch.rnn_relu: _recurrent(_relu),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _max_pool2d),
    **dict.fromkeys((F.conv2d, torch.conv2d), _conv2d),
    F.embedding: _embedding,
    **dict.fromkeys((torch.embedding, *_forms(torch.ops.aten.embedding)), _aten_embedding),
    **dict.fromkeys((torch.index_fill, *_forms(torch.ops.aten.index_fill)), _refused),
    **dict.fromkeys((Tensor.index_fill, Tensor.index_fill_, *_forms(torch.ops.aten.index_fill_)), _refused),
}
