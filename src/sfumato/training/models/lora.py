# SPDX-License-Identifier: Apache-2.0
"""LoRA: freeze a network and train a low-rank change of its linear layers (Hu et al. 2021, arXiv:2106.09685).

Each chosen layer computes x W^T + b + (alpha / rank) (x A^T) B^T. A starts random and B at zero, so at first
the network computes what it did. Few trainable numbers mean little noise: DP-SGD's noise grows with their
number.

The layer is replaced by a subclass that holds the same parameters under the same names, and two new ones,
`lora_down` (A) and `lora_up` (B). State dicts of the network still load, with strict=False. A is drawn from
torch's own generator, as every layer's first weights are.
"""

import math
from collections.abc import Collection

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError, UnsupportedModelError

__all__ = ["LoraLinear", "add_lora"]


class LoraLinear(nn.Linear):
    """A frozen linear layer with a trainable change of low rank."""

    lora_down: nn.Parameter
    lora_up: nn.Parameter

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # not Linear's own, which would create weights that are not used
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.training = base.training
        self.scale = alpha / rank
        down, up = (
            base.weight.new_empty(rank, base.in_features),
            base.weight.new_zeros(base.out_features, rank),
        )
        self.lora_down, self.lora_up = nn.Parameter(down), nn.Parameter(up)
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output with the change."""
        change = F.linear(F.linear(input, self.lora_down), self.lora_up)
        return super().forward(input) + self.scale * change


def add_lora(
    model: nn.Module, *, rank: int, alpha: float | None = None, layers: Collection[str] | None = None
) -> list[str]:
    """Freeze a model and make its linear layers adaptable, in place.

    Unfreeze what else should be trained, such as a new head, afterwards.

    Args:
        model: The model to change.
        rank: The rank of the change of each layer.
        alpha: The change is multiplied by alpha / rank; None means `rank`.
        layers: Which layers, by the last part of their names, such as "q_proj"; None takes all.

    Returns:
        The names of the adapted layers.

    Raises:
        InvalidParameterError: If no linear layer is found.
        UnsupportedModelError: If torch would read the weights of a layer without calling it.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> add_lora(model, rank=2)
    ['0', '2']
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['0.lora_down', '0.lora_up', '2.lora_down', '2.lora_up']
    """
    _check.count(rank=rank)
    scale = float(rank) if alpha is None else alpha
    _check.positive(alpha=scale)
    chosen = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=True)
        if type(module) is nn.Linear and (layers is None or name.rpartition(".")[2] in layers)
    ]
    if not chosen or not chosen[0][0]:
        raise InvalidParameterError(
            f"no linear layer to adapt was found inside the model for layers={layers!r}. Name layers by the "
            "last part of their names, as named_modules() lists them."
        )
    _refuse_bypassed(model, [name for name, _ in chosen])
    model.requires_grad_(False)
    for _, module in chosen:
        _replace(model, module, LoraLinear(module, rank=rank, alpha=scale))
    return [name for name, _ in chosen]


def _refuse_bypassed(model: nn.Module, names: list[str]) -> None:
    """Raise if torch reads a layer's weights without calling it: the change would be silently left out."""
    for path, module in model.named_modules():
        inside = [name for name in names if name.startswith(f"{path}." if path else "")]
        if isinstance(module, nn.TransformerEncoderLayer) and inside:
            raise UnsupportedModelError(
                f"torch's TransformerEncoderLayer {path!r} has a fast path for evaluation that skips its "
                f"linear layers, and with them a change of {inside}. Use layers of your own, or choose "
                "others."
            )


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module wherever another one sits; a shared layer sits in several places."""
    places = [path for path, module in model.named_modules(remove_duplicate=False) if module is old]
    for path in places:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new)
