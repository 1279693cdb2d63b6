# SPDX-License-Identifier: Apache-2.0
"""Replace the parameters of a model by other values during one call.

The model is not wrapped and its state dict keeps its keys: each trainable parameter is found once, with every
place that holds it (tied weights have several), and put back afterwards, whatever happens in between.
"""

import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError

__all__ = ["Places", "as_written", "find", "find_those"]


@dataclass(frozen=True)
class Places:
    """The trainable parameters of a model by name, and where each of them sits."""

    parameters: Mapping[str, nn.Parameter]
    _holders: Mapping[str, list[tuple[nn.Module, str]]]

    @contextmanager
    def swapped(self, values: Mapping[str, Tensor]) -> Generator[None]:
        """Put `values` where the parameters of those names are, and put the parameters back at the end."""
        self._refuse_replaced(values)
        try:
            self._put(values)
            with as_written():
                yield
        finally:
            self._put({name: self.parameters[name] for name in values})

    def _refuse_replaced(self, names: Iterable[str]) -> None:
        for name in names:
            held = (getattr(module, attribute, None) for module, attribute in self._holders[name])
            if any(parameter is not self.parameters[name] for parameter in held):
                raise InvalidParameterError(
                    f"parameter {name!r} of the model was replaced by another since training was set up. "
                    "Change it in place (under torch.no_grad or by load_state_dict), or set training up anew."
                )

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            for module, attribute in self._holders[name]:
                own: dict[str, Any] = module._parameters  # pyright: ignore[reportPrivateUsage] - a stand-in, for one call
                own[attribute] = value
                if isinstance(module, nn.RNNBase):
                    _put_flat(module, attribute, value)


def as_written() -> AbstractContextManager[object]:
    """Return a context in which a compiled model, or a compiled part of it, runs as it is written.

    What was compiled was compiled for its parameters, not for what stands in for them. A whole private pass
    can be compiled instead (`compilation`).
    """
    compiled = "torch._dynamo" in sys.modules  # else nothing was
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _put_flat(module: Any, attribute: str, value: Tensor) -> None:
    """Put a value into the list that a recurrent module made of its weights when it was built."""
    place = module._flat_weights_names.index(attribute)
    module._flat_weights[place] = value
    module._flat_weight_refs[place] = weakref.ref(value)  # else it believes its weights were replaced


def find(model: nn.Module) -> Places:
    """Find what is trainable in a model.

    >>> sorted(find(nn.Linear(2, 3)).parameters)
    ['bias', 'weight']
    """
    found = find_those(model, lambda parameter: parameter.requires_grad)
    if not found.parameters:
        raise InvalidParameterError(
            "the model has no trainable parameter: nothing would be learned. Set requires_grad=True on what "
            "should be trained, or add a layer that is not frozen."
        )
    return found


def find_those(model: nn.Module, wanted: Callable[[nn.Parameter], bool]) -> Places:
    """Find the parameters of a model that are wanted, and where each of them sits."""
    names: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    holders: dict[str, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module._parameters.items():  # pyright: ignore[reportPrivateUsage]
            if parameter is None or not wanted(parameter):
                continue
            if parameter.requires_grad and not parameter.is_floating_point():
                raise InvalidParameterError(
                    f"parameter {path}.{attribute} is {parameter.dtype}: only floating-point parameters have "
                    "a clipped gradient here. Keep the real and the imaginary part as two parameters."
                )
            name = names.setdefault(id(parameter), f"{path}.{attribute}" if path else attribute)
            parameters[name] = parameter
            holders.setdefault(name, []).append((module, attribute))
    return Places(parameters, holders)
