# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a private module, and of its copies.

Guarantee  In training mode with gradients, every call of the module goes to the private steps, however it is
           called. In evaluation mode or without gradients the module runs as it is. A gradient that reaches a
           private parameter by another way raises in the backward pass that brings it, and is dropped.
           A copy of the module, by deepcopy or pickle, is not private and refuses to train.
Edge cases The state dict keeps its keys. A copy can be evaluated, and made private itself.
           Parts of a copy, called on their own, are ordinary modules, which are not checked.
Failure    Hooks that run before the module's own forward pass would see all rows: they are refused.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedModelError

__all__ = ["CopiedForward", "PrivateForward", "forward_of", "install", "refuse_private", "uncompiled"]

Forward = Callable[..., Any]


class _Steps(Protocol):
    quiet: bool

    def call_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module on the rows of the batch at hand."""
        ...


def _own_forward(module: nn.Module, own: Forward | None) -> Forward:
    """Return a module's forward pass: one that was set on this object, or that of its class."""
    return type(module).forward.__get__(module) if own is None else own


class PrivateForward:
    """In the place of a private module's `forward`."""

    def __init__(self, module: nn.Module, own: Forward | None, steps: _Steps) -> None:
        self._module, self._own, self._steps = module, own, steps
        functools.update_wrapper(self, _own_forward(module, own))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._steps.quiet or not (self._module.training and torch.is_grad_enabled()):
            return self.original(*args, **kwargs)
        if self._module._forward_pre_hooks:  # pyright: ignore[reportPrivateUsage] - nn.Module has no other way to ask
            raise UnsupportedModelError(
                "the module has forward pre-hooks, which run before each row is alone and could mix rows. "
                "Put the module into another one, such as nn.Sequential(module), and make that private."
            )
        return self._as_written(args, kwargs)

    def _as_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the steps, without torch.compile looking on if the module was compiled afterwards."""
        if "torch._dynamo" not in sys.modules:  # nothing was compiled
            return self._steps.call_module(args, kwargs)
        undisturbed: Any = torch.compiler.disable(self._steps.call_module)
        return undisturbed(args, kwargs)

    @property
    def original(self) -> Forward:
        """The forward pass as it was before."""
        return _own_forward(self._module, self._own)

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedForward, (self._module, self._own)


class CopiedForward:
    """In the place of `forward` in a copy of a private module: it does not train."""

    def __init__(self, module: nn.Module, own: Forward | None) -> None:
        self.module, self.own = module, own
        self._guarded: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            if self.module.training:
                raise _copied()
            if not self._guarded:
                self._guarded = _guard(self.module, _refuse_copied)
        return _own_forward(self.module, self.own)(*args, **kwargs)

    def free(self) -> None:
        """Let gradients reach parameters again: the copy is being made private itself."""
        for handle in self._guarded:
            handle.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedForward, (self.module, self.own)


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` was given; the module itself if it was not compiled."""
    inner = getattr(module, "_orig_mod", None)
    return uncompiled(inner) if isinstance(inner, nn.Module) else module


def _own(module: nn.Module) -> Forward | None:
    """Return the forward pass that was set on this object, if any, and not by us."""
    own = vars(module).get("forward")
    return own.own if isinstance(own, CopiedForward) else own


def forward_of(module: nn.Module) -> Forward:
    """Return the forward pass of a module that is not private yet, or a copy of one that is."""
    return _own_forward(module, _own(module))


def install(module: nn.Module, steps: _Steps) -> None:
    """Let calls of a module in training mode go to `steps`, and refuse gradients that come otherwise."""
    inner = uncompiled(module)
    before, own = vars(inner).get("forward"), _own(inner)
    if isinstance(before, CopiedForward):
        before.free()
    inner.forward = PrivateForward(inner, own, steps)
    _guard(inner, _refuse_around)
    if inner is not module:
        vars(module)["forward"] = _as_written(inner, vars(module)["forward"])


def _as_written(inner: nn.Module, compiled: Forward) -> Forward:
    """Return a forward pass that trains without compiled code: that was made for other parameters."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        training = inner.training and torch.is_grad_enabled()
        return (inner if training else compiled)(*args, **kwargs)

    return forward


def refuse_private(module: nn.Module) -> None:
    """Raise if a module, or a part of it, is private already."""
    if any(isinstance(vars(part).get("forward"), PrivateForward) for part in module.modules()):
        raise InvalidParameterError(
            "the module, or a part of it, was made private before. Go on with what make_private returned "
            "then, or load its state dict into a new module and make that private."
        )


def _guard(module: nn.Module, refuse: Callable[[Tensor], NoReturn]) -> list[Any]:
    return [p.register_post_accumulate_grad_hook(refuse) for p in module.parameters() if p.requires_grad]


def _refuse_around(parameter: Tensor) -> NoReturn:
    parameter.grad = None
    raise UnsupportedModelError(
        "a gradient reached a parameter of the private module around its criterion, and would be neither "
        "clipped nor noised: a part of the module was called on its own, the module was in evaluation mode, "
        "or a parameter was used in a loss outside of the criterion. Call module(...) as a whole, after "
        "module.train(), and compute losses inside of the criterion; use the optimizer's weight_decay; for "
        "gradients of inputs use torch.autograd.grad."
    )


def _refuse_copied(parameter: Tensor) -> NoReturn:
    parameter.grad = None
    raise _copied()


def _copied() -> NotPrivateError:
    return NotPrivateError(
        "this is a copy of a module that was made private, and a copy is not private: training it would add "
        "no noise, and count nothing. To train it, call make_private on it with an optimizer of its own, or "
        "load its state dict into a new module. A copy can be evaluated, after eval() or under "
        "torch.no_grad()."
    )
