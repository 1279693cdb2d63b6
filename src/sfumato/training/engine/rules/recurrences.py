# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of torch, forward and backward: one layer in one direction, all examples, time first.

The backward pass stops at the parameters: it gives the gradients of the gates before their
non-linearity, for all steps at once. The weights' gradients follow from these, as for any linear map. Only
the sequential part runs step by step: a product with the recurrent weight and a few elementwise operations,
into buffers made once. Nothing is read back from the device.

Source     The formulas of torch's documentation: nn.RNN, nn.GRU, nn.LSTM (with projections).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GRU", "LSTM", "RNN", "Clock", "Gradients", "Recurrence", "ReluRNN", "TanhRNN", "Weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """The values of one layer in one direction: [gates * hidden, in], [gates * hidden, out], ..."""

    ih: Tensor
    hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    hr: Tensor | None = None  # [out, hidden], of a projection


@dataclass(frozen=True, slots=True)
class Clock:
    """The order in which steps are taken. States are kept as [steps + 1, ...], the initial one included."""

    steps: int
    reverse: bool

    def forward(self) -> range:
        """The steps in the order of the forward pass."""
        return range(self.steps - 1, -1, -1) if self.reverse else range(self.steps)

    def before(self, states: Tensor) -> Tensor:
        """The state that each step starts from."""
        return states[1:] if self.reverse else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """The state that each step leaves."""
        return states[:-1] if self.reverse else states[1:]

    def last(self, states: Tensor) -> Tensor:
        """The state that the last step leaves."""
        return states[0] if self.reverse else states[-1]

    def begin(self, initial: Tensor) -> Tensor:
        """Return a buffer for all states, with the initial one in its place."""
        states = initial.new_empty((self.steps + 1, *initial.shape))
        states[-1 if self.reverse else 0] = initial
        return states


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a backward pass gives: for the gates, `of_x` and `of_h` belong to what inputs and states add."""

    of_x: Tensor  # [T, N, gates * hidden]
    of_h: Tensor  # [T, N, gates * hidden]
    h0: Tensor
    c0: Tensor | None = None
    projected: Tensor | None = None  # [T, N, out]


class _Arriving:
    """The gradient of each step's output: from above, and from the step that was taken after it."""

    def __init__(self, above: Tensor | None, last: Tensor | None, like: Tensor) -> None:
        self._above = None if above is None else above.unbind(0)
        self._last = last
        self._into = torch.empty_like(like)
        self._fresh = True

    def at(self, step: int, *products: tuple[Tensor, Tensor], kept: Tensor | None = None) -> Tensor:
        """Return above[step] + kept + the sum of the products; for the step taken last, above + last."""
        above = None if self._above is None else self._above[step]
        if self._fresh:
            self._fresh = False
            self._into.zero_()
            kept, products = self._last, ()
            if above is not None:
                self._into.copy_(above)
            return self._into if kept is None else self._into.add_(kept)
        return _accumulate(self._into, above, kept, products)


def _accumulate(
    into: Tensor, above: Tensor | None, kept: Tensor | None, products: tuple[tuple[Tensor, Tensor], ...]
) -> Tensor:
    if kept is not None:  # it may be `into` itself
        above = kept if above is None else torch.add(above, kept, out=into)
    for left, right in products:
        above = (
            torch.mm(left, right, out=into) if above is None else torch.addmm(above, left, right, out=into)
        )
    return into


class Recurrence(ABC):
    """A layer in one direction that has been run forward."""

    outputs: Tensor  # [T, N, out]
    previous: Tensor  # [T, N, out]: the output before each step
    last: Tensor  # [N, out]
    last_cell: Tensor | None = None
    unprojected: Tensor | None = None  # [T, N, hidden]: the input of a projection

    @abstractmethod
    def __init__(self, x: Tensor, weights: Weights, h0: Tensor, c0: Tensor | None, reverse: bool) -> None: ...

    @abstractmethod
    def backward(self, outputs: Tensor | None, last: Tensor | None, last_cell: Tensor | None) -> Gradients:
        """Turn the gradients of the outputs into those of the gates and of the initial states."""


def _gates(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b for all steps at once: [T, N, gates * hidden]."""
    flat = x.reshape(-1, x.shape[-1])
    y = flat @ weight.T if bias is None else torch.addmm(bias, flat, weight.T)
    return y.view(*x.shape[:-1], -1)


def _both(weights: Weights) -> Tensor | None:
    return None if weights.b_ih is None or weights.b_hh is None else weights.b_ih + weights.b_hh


class RNN(Recurrence):
    """h' = f(W_ih x + b_ih + W_hh h + b_hh)."""

    def __init__(self, x: Tensor, weights: Weights, h0: Tensor, c0: Tensor | None, reverse: bool) -> None:
        self._clock = clock = Clock(len(x), reverse)
        self._hh = weights.hh
        states = clock.begin(h0)
        pre = _gates(x, weights.ih, _both(weights)).unbind(0)
        before, after, recurrent = clock.before(states).unbind(0), clock.after(states).unbind(0), weights.hh.T
        for t in clock.forward():
            self._activate(torch.addmm(pre[t], before[t], recurrent, out=after[t]))
        self.outputs, self.previous = clock.after(states), clock.before(states)
        self.last = clock.last(states).clone()

    @staticmethod
    @abstractmethod
    def _activate(pre: Tensor) -> None: ...

    @staticmethod
    @abstractmethod
    def _slopes(outputs: Tensor) -> Tensor: ...

    def backward(self, outputs: Tensor | None, last: Tensor | None, last_cell: Tensor | None) -> Gradients:
        pre = self._slopes(self.outputs)  # becomes the gradient, step by step
        each = pre.unbind(0)
        arriving = _Arriving(outputs, last, self.last)
        later = pre
        for t in reversed(self._clock.forward()):
            later = each[t].mul_(arriving.at(t, (later, self._hh)))
        return Gradients(pre, pre, later @ self._hh)


class TanhRNN(RNN):
    """An RNN with f = tanh."""

    @staticmethod
    def _activate(pre: Tensor) -> None:
        pre.tanh_()

    @staticmethod
    def _slopes(outputs: Tensor) -> Tensor:
        return outputs.square().neg_().add_(1)


class ReluRNN(RNN):
    """An RNN with f = relu."""

    @staticmethod
    def _activate(pre: Tensor) -> None:
        pre.relu_()

    @staticmethod
    def _slopes(outputs: Tensor) -> Tensor:
        return (outputs > 0).to(outputs.dtype)


class GRU(Recurrence):
    """r, z = s(...), n = tanh(W_in x + b_in + r q), q = W_hn h + b_hn, h' = (1 - z) n + z h."""

    def __init__(self, x: Tensor, weights: Weights, h0: Tensor, c0: Tensor | None, reverse: bool) -> None:
        self._clock = clock = Clock(len(x), reverse)
        self._hidden = size = h0.shape[-1]
        self._hh = weights.hh
        states = clock.begin(h0)
        self._activated = _gates(x, weights.ih, self._input_bias(weights))
        self._q = _biased(weights.b_hh, 2 * size, like=states[1:])
        before, after, q = (s.unbind(0) for s in (clock.before(states), clock.after(states), self._q))
        rz, n = (part.unbind(0) for part in self._activated.split([2 * size, size], 2))
        r, z = (part.unbind(0) for part in self._activated[..., : 2 * size].split(size, 2))
        to_rz, to_q = weights.hh[: 2 * size].T, weights.hh[2 * size :].T
        for t in clock.forward():
            rz[t].addmm_(before[t], to_rz).sigmoid_()
            q[t].addmm_(before[t], to_q)
            n[t].addcmul_(r[t], q[t]).tanh_()
            torch.lerp(n[t], before[t], z[t], out=after[t])
        self.outputs, self.previous = clock.after(states), clock.before(states)
        self.last = clock.last(states).clone()

    def _input_bias(self, weights: Weights) -> Tensor | None:
        """b_ih, with the part of b_hh that is outside of r q."""
        if weights.b_ih is None or weights.b_hh is None:
            return None
        bias = weights.b_ih.clone()
        bias[: 2 * self._hidden] += weights.b_hh[: 2 * self._hidden]
        return bias

    def _slopes(self) -> Tensor:
        """Return how the parts of r, z, n and q move with h': [T, N, 4, hidden]."""
        r, z, n = self._activated.split(self._hidden, 2)
        slopes = r.new_empty((*r.shape[:2], 4, self._hidden))
        of_r, of_z, of_n, of_q = slopes.unbind(2)
        torch.mul(n, n, out=of_n).neg_().add_(1)
        of_n.addcmul_(of_n, z, value=-1)  # (1 - n^2)(1 - z)
        torch.mul(of_n, r, out=of_q)
        torch.addcmul(of_q, of_q, r, value=-1, out=of_r).mul_(self._q)  # (1 - n^2)(1 - z) q r (1 - r)
        torch.addcmul(z, z, z, value=-1, out=of_z).mul_(self.previous - n)
        return slopes

    def backward(self, outputs: Tensor | None, last: Tensor | None, last_cell: Tensor | None) -> Gradients:
        size, slopes = self._hidden, self._slopes()  # becomes the gradient, step by step
        flat = slopes.flatten(2)
        each, of_rz, of_q = slopes.unbind(0), flat[..., : 2 * size].unbind(0), flat[..., 3 * size :].unbind(0)
        z = self._activated[..., size : 2 * size].unbind(0)
        arriving = _Arriving(outputs, last, self.last)
        products: tuple[tuple[Tensor, Tensor], ...] = ()
        kept: Tensor | None = None
        for t in reversed(self._clock.forward()):
            dh = arriving.at(t, *products, kept=kept)
            each[t].mul_(dh.unsqueeze(1))
            kept = dh.mul_(z[t])
            products = ((of_rz[t], self._hh[: 2 * size]), (of_q[t], self._hh[2 * size :]))
        h0 = _accumulate(torch.empty_like(self.last), None, kept, products)
        return Gradients(
            flat[..., : 3 * size], torch.cat([flat[..., : 2 * size], flat[..., 3 * size :]], 2), h0
        )


def _biased(bias: Tensor | None, start: int, like: Tensor) -> Tensor:
    """Return a tensor like `like` that is the bias, from `start` on, everywhere; zeros if there is none."""
    return torch.zeros_like(like) if bias is None else bias[start:].expand_as(like).clone()


class LSTM(Recurrence):
    """i, f, o = s(...), g = tanh(...), c' = f c + i g, h' = W_hr (o tanh(c')); W_hr = 1 if not projected."""

    def __init__(self, x: Tensor, weights: Weights, h0: Tensor, c0: Tensor | None, reverse: bool) -> None:
        if c0 is None:
            raise TypeError("an LSTM has a cell state")
        self._clock = clock = Clock(len(x), reverse)
        self._hh, self._hr, self._hidden = weights.hh, weights.hr, c0.shape[-1]
        states, self._cells = clock.begin(h0), clock.begin(c0)
        self._activated = _gates(x, weights.ih, _both(weights))
        self._tanh = torch.empty_like(clock.after(self._cells))
        self.outputs, self.previous = clock.after(states), clock.before(states)
        self.unprojected = None if weights.hr is None else torch.empty_like(self._tanh)
        self._run()
        self.last, self.last_cell = clock.last(states).clone(), clock.last(self._cells).clone()

    def _run(self) -> None:
        clock, size = self._clock, self._hidden
        before, after = self.previous.unbind(0), self.outputs.unbind(0)
        hidden = after if self.unprojected is None else self.unprojected.unbind(0)
        cell, new_cell = clock.before(self._cells).unbind(0), clock.after(self._cells).unbind(0)
        pre, tanh, recurrent = self._activated.unbind(0), self._tanh.unbind(0), self._hh.T
        i_and_f = self._activated[..., : 2 * size].unbind(0)
        i, f, g, o = (part.unbind(0) for part in self._activated.split(size, 2))
        for t in clock.forward():
            pre[t].addmm_(before[t], recurrent)
            i_and_f[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(i[t], g[t], out=new_cell[t]).addcmul_(f[t], cell[t])
            torch.mul(o[t], torch.tanh(new_cell[t], out=tanh[t]), out=hidden[t])
            if self._hr is not None:
                torch.mm(hidden[t], self._hr.T, out=after[t])

    def _slopes(self) -> tuple[Tensor, Tensor]:
        """Return how i, f, g move with c' and o with h', [T, N, 4, hidden], and how c' moves with h'."""
        i, f, g, o = self._activated.split(self._hidden, 2)
        slopes = i.new_empty((*i.shape[:2], 4, self._hidden))
        of_i, of_f, of_g, of_o = slopes.unbind(2)
        torch.addcmul(i, i, i, value=-1, out=of_i).mul_(g)
        torch.addcmul(f, f, f, value=-1, out=of_f).mul_(self._clock.before(self._cells))
        torch.mul(g, g, out=of_g).neg_().add_(1).mul_(i)
        torch.addcmul(o, o, o, value=-1, out=of_o).mul_(self._tanh)
        return slopes, self._tanh.square().neg_().add_(1).mul_(o)

    def backward(self, outputs: Tensor | None, last: Tensor | None, last_cell: Tensor | None) -> Gradients:
        size, (slopes, to_cell) = self._hidden, self._slopes()  # slopes become the gradient, step by step
        whole, of_ifg, of_o = (
            slopes.flatten(2).unbind(0),
            slopes[:, :, :3].unbind(0),
            slopes[:, :, 3].unbind(0),
        )
        f, through = self._activated[..., size : 2 * size].unbind(0), to_cell.unbind(0)
        arriving = _Arriving(outputs, last, self.last)
        projected = None if self._hr is None else torch.empty_like(self.outputs)
        dc = torch.zeros_like(to_cell[0]) if last_cell is None else last_cell.clone()
        later = whole[0]
        for t in reversed(self._clock.forward()):
            dh = arriving.at(t, (later, self._hh))
            if projected is not None and self._hr is not None:
                projected[t] = dh
                dh = dh @ self._hr
            dc.addcmul_(dh, through[t])
            of_ifg[t].mul_(dc.unsqueeze(1))
            of_o[t].mul_(dh)
            dc.mul_(f[t])
            later = whole[t]
        gates = slopes.flatten(2)
        return Gradients(gates, gates, later @ self._hh, dc, projected)
