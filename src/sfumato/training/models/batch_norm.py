# SPDX-License-Identifier: Apache-2.0
"""Layers that mix the examples of a batch: refused, or replaced by layers that do not.

An example's gradient must depend on that example alone. Batch norm puts every example's activations into the
mean and the variance of all others, and an instance norm with running statistics keeps an average over
private examples in a buffer that no noise protects. `fix` replaces batch norm by group norm, which normalizes
each example alone.

Edge cases Both are allowed in eval mode, with statistics that were fixed before.
Failure    Batch norm that uses the batch's statistics, and instance norm that gathers running statistics, are
           refused. `fix` refuses a batch norm that does more than torch's own: a group norm would drop it.
Source     Wu and He 2018, arXiv:1803.08494.
"""

import copy
from typing import Any, Final

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from sfumato.errors import UnsupportedModelError

__all__ = ["fix", "refuse_mixing"]

_MOST_GROUPS: Final = 32  # the default of Wu and He
_LEAST_FEATURES: Final = 16  # features that share one mean, if there are no positions to average over
# What these classes have in common, also with classes of other libraries that torch itself does not list.
_BatchNorm: Final[Any] = nn.BatchNorm2d.__mro__[1]
_InstanceNorm: Final[Any] = nn.InstanceNorm2d.__mro__[1]
_REPLACED: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HARMLESS: Final = frozenset(  # what a class of its own may define, as nothing of it decides what is computed
    ("__doc__", "__init__", "__module__", "__annotations__", "__firstlineno__", "__static_attributes__")
)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fix(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which no layer mixes examples; the model itself stays as it is.

    Each batch norm becomes a group norm with the same scale and shift, and each instance norm stops gathering
    running statistics, except where they are frozen in eval mode. Outputs change, so train the copy before
    use, and pass the parameters of the copy to the optimizer.

    Args:
        model: A model with batch norm.

    Returns:
        The copy.

    Raises:
        UnsupportedModelError: If a batch norm does more than those of torch (an activation inside, hooks,
            parametrizations), which a group norm does not, or if a layer is still lazy.

    >>> fix(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))
    Sequential(
      (0): Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1))
      (1): GroupNorm(32, 64, eps=1e-05, affine=True, bias=True)
    )
    """
    _refuse_lazy(model)
    _refuse_more(model)
    fixed = copy.deepcopy(model)
    substitutes = {id(module): _substitute(module) for module in fixed.modules()}
    for path, module in list(fixed.named_modules(remove_duplicate=False)):  # one module may have two names
        if path and substitutes[id(module)] is not module:
            parent, _, name = path.rpartition(".")
            setattr(fixed.get_submodule(parent), name, substitutes[id(module)])
    return substitutes[id(fixed)]


def _refuse_lazy(model: nn.Module) -> None:
    for path, module in model.named_modules():
        values = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        waits = isinstance(module, LazyModuleMixin) and isinstance(module, _BatchNorm)  # even without values
        if waits or any(is_lazy(value) for value in values):
            raise UnsupportedModelError(
                f"layer {path!r} does not know its number of channels yet. Run the model once on zeros of "
                "the right shape, then call sf.training.fix(model)."
            )


def _refuse_more(model: nn.Module) -> None:
    more = {path or "the model": _added(module) for path, module in model.named_modules() if _goes(module)}
    layers = [f"{path} ({', '.join(added)})" for path, added in more.items() if added]
    if layers:
        raise UnsupportedModelError(
            "these layers are batch norms that do more than those of torch, and a group norm in their place "
            f"would not do it: {'; '.join(layers)}. Replace them yourself, by a group norm and what follows "
            "it, as in nn.Sequential(nn.GroupNorm(...), nn.ReLU()), or choose another norm where the "
            "model is built. To keep the statistics of a model trained on public data, freeze them and call "
            ".eval() on each after model.train()."
        )


def _added(norm: nn.Module) -> list[str]:
    """Return the names of what a batch norm has beyond torch's own, as far as it may change its output."""
    bases = type(norm).__mro__
    own = next((place for place, base in enumerate(bases) if base in _REPLACED), None)
    if own is None:
        return [type(norm).__name__]  # of another kind altogether
    defined = {name for base in bases[:own] for name in vars(base)} - _HARMLESS
    plain = nn.BatchNorm2d(1)
    held = {name for name, _ in norm.named_children()} | {n for n in vars(norm) if hasattr(nn.Module, n)}
    held |= {n for n, _ in (*norm.named_parameters(), *norm.named_buffers())} - set(plain.state_dict())
    hooks = {name.strip("_") for name in _HOOKS if getattr(norm, name)}
    return sorted(defined | held | hooks)


def refuse_mixing(model: nn.Module) -> None:
    """Raise an error that names every layer by which examples of one batch would meet.

    >>> refuse_mixing(fix(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))))
    """
    layers = [f"{path or 'the model'} ({type(m).__name__})" for path, m in model.named_modules() if _mixes(m)]
    if layers:
        raise UnsupportedModelError(
            "these layers mix the examples of a batch, so that no example has a gradient of its own: "
            f"{', '.join(layers)}. Replace them with sf.training.fix(model); or, to keep the statistics of a "
            "model trained on public data, freeze them and call .eval() on each after model.train()."
        )


def _mixes(module: Any) -> bool:
    if isinstance(module, _BatchNorm):
        return module.training or module.running_mean is None
    return isinstance(module, _InstanceNorm) and module.training and bool(module.track_running_stats)


def _frozen(module: nn.Module) -> bool:
    return not _mixes(module) and not any(p.requires_grad for p in module.parameters())


def _goes(module: nn.Module) -> bool:
    """Whether a module is replaced by a group norm."""
    return isinstance(module, _BatchNorm) and not _frozen(module)


def _substitute(module: Any) -> nn.Module:
    if _goes(module):
        return _group_norm(module)
    if isinstance(module, _InstanceNorm) and module.track_running_stats and not _frozen(module):
        module.track_running_stats = False
        for statistic in ("running_mean", "running_var", "num_batches_tracked"):
            module.register_buffer(statistic, None)
    return module


def _group_norm(norm: Any) -> nn.GroupNorm:
    groups = _groups(norm.num_features, least=_LEAST_FEATURES if isinstance(norm, nn.BatchNorm1d) else 1)
    group = nn.GroupNorm(groups, norm.num_features, eps=norm.eps, affine=norm.affine)
    parameters = dict(norm.named_parameters(recurse=False))
    for name in ("weight", "bias"):
        old = parameters.get(name)
        new = None if old is None else nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
        group.register_parameter(name, new)
    return group.train(norm.training)


def _groups(channels: int, *, least: int) -> int:
    """Return the most groups, up to 32, of equally many channels, at least `least` (or all of them)."""
    return max(
        n for n in range(1, _MOST_GROUPS + 1) if channels % n == 0 and (n == 1 or channels // n >= least)
    )
