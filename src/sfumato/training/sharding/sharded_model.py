# SPDX-License-Identifier: Apache-2.0
"""A model that `fully_shard` has cut into shards, and how private passes see it.

Guarantee  Inside of `lent` the model computes with the whole values of its parameters, which are gathered
           unit by unit when they are used and given up soon after. Outside of it, the model is what torch
           made of it. torch's own hooks of `fully_shard` rest inside: they gather before a module is called
           and add up gradients over ranks after it, without clipping.
Edge cases A model that is not sharded has a `WholeModel`, whose methods do nothing.
Failure    An error inside of `together` is told to the other ranks, which raise too.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.training.distributed import OtherRankError, is_sharded
from sfumato.training.engine import parameter_values
from sfumato.training.privacy.gradient_pass import GradientPass
from sfumato.training.sharding.exchange import Exchange, PartialSumError
from sfumato.training.sharding.layout import Shard, is_unit, layout_of, local
from sfumato.training.sharding.lent import Lent

__all__ = ["InParts", "ShardedModel", "WholeModel", "open_model", "placed_on", "refuse_shards"]

_NEEDS_ALL: Final = (
    "{} needs all parameters and gradients on one rank, and fully_shard has cut them. Leave it out, or train "
    "the model without fully_shard."
)
Waiting = Callable[[Sequence[str]], dict[str, Tensor]]  # sums of the parameters that are named


class WholeModel:
    """A model of which each rank holds all parameters."""

    shards: Sequence[Shard] = ()

    def refuse(self, **given: object) -> None:
        """Do nothing: whole models have no such limits."""

    def serve(self) -> None:
        """Do nothing: no rank needs another one's parameters."""

    def give_away(self, waiting: Sequence[Any]) -> None:
        """Do nothing: sums are added up when the step ends."""

    @contextmanager
    def failing(self) -> Generator[None]:
        """Do nothing before the block and after it."""
        yield

    @contextmanager
    def together(self) -> Generator[None]:
        """Do nothing before the block and after it."""
        yield

    @contextmanager
    def lent(self) -> Generator[None]:
        """Do nothing before the block and after it."""
        yield


class ShardedModel:
    """A model of which each rank holds a part.

    Args:
        model: The model.
        shards: Its sharded parameters.
        take: Adds this rank's shards of a clipped sum to those of the step.
    """

    def __init__(
        self, model: nn.Module, shards: Sequence[Shard], take: Callable[[Mapping[str, Tensor]], None]
    ) -> None:
        self.shards, self._model = shards, model
        self._units = [module for module in model.modules() if is_unit(module)]
        self._exchange = Exchange(shards, take)
        self._places = parameter_values.find_those(model, is_sharded)
        self._stand_ins = {shard.name: self._stand_in(shard) for shard in shards}
        self._lent = 0

    def _stand_in(self, shard: Shard) -> Lent:
        parameter = shard.parameter
        like = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        return Lent.of(
            like,
            lambda: self._exchange.value(shard.name),
            shard=local(parameter),
            requires_grad=parameter.requires_grad,
        )

    @property
    def trainable(self) -> list[Shard]:
        """The shards of trainable parameters."""
        return [shard for shard in self.shards if shard.trainable]

    @property
    def parts(self) -> list[list[str]]:
        """The names of the trainable parameters of each unit."""
        named = [[s.name for s in unit if s.trainable] for unit in self._exchange.units]
        return [names for names in named if names]

    def refuse(self, **given: object) -> None:
        """Raise for what needs all parameters or gradients on one rank, unless it is None."""
        for name, value in given.items():
            if value is not None:
                raise InvalidParameterError(_NEEDS_ALL.format(name))

    def serve(self) -> None:
        """Answer the other ranks until all are done with the model. All ranks must ask."""
        self._exchange.serve()

    @contextmanager
    def failing(self) -> Generator[None]:
        """Tell the other ranks if the block fails."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, OtherRankError) or isinstance(error, PartialSumError):
                self._exchange.fail()
            raise
        except BaseException:  # an interrupt: others may hold sums of this step, so it cannot begin anew
            self._exchange.interrupt()
            raise

    @contextmanager
    def together(self) -> Generator[None]:
        """Let all ranks leave the block together; if it fails on one of them, all fail."""
        with self.failing():
            yield
        self.serve()

    @contextmanager
    def lent(self) -> Generator[None]:
        """Put stand-ins in the places of sharded parameters, and take them back after the block."""
        if self._lent:
            yield
            return
        with ExitStack() as undone:
            for unit in self._units:
                unit.reshard()  # type: ignore[operator]  # torch may have left the outermost one gathered
                undone.enter_context(_without_hooks(unit))
            for shard in self.shards:
                stand_in = self._stand_ins[shard.name]
                stand_in.shard = local(shard.parameter)
                stand_in.requires_grad_(shard.parameter.requires_grad)
            undone.enter_context(self._places.swapped(self._stand_ins))
            undone.callback(self._exchange.drop)
            self._lent += 1
            try:
                yield
            finally:
                self._lent -= 1

    @contextmanager
    def doubled(self) -> Generator[None]:
        """Compute in float64, inside of `lent`."""
        found = parameter_values.find_those(self._model, lambda parameter: isinstance(parameter, Lent))
        wide = {name: _doubled(held) for name, held in found.parameters.items() if isinstance(held, Lent)}
        with found.swapped(wide):
            yield

    def in_parts(self, run: GradientPass) -> "InParts":
        """Return a pass whose weighted sums are computed later, unit by unit, for those who hold them."""
        return InParts(run, self.parts)

    def give_away(self, waiting: Sequence[Waiting]) -> None:
        """Compute weighted sums unit by unit, and give each to the ranks that hold it. Failing is final."""
        try:
            for total in waiting:
                for names in self.parts:
                    self._exchange.add(names, total(names))
        except OtherRankError:
            raise
        except Exception as error:
            raise PartialSumError(
                f"clipped sums were given to the other ranks in part only ({type(error).__name__}). Use a "
                "smaller microbatch_size, if memory ran out."
            ) from None


def _doubled(held: Lent) -> Lent:
    like = torch.empty(held.shape, dtype=torch.float64, device="meta")
    return Lent.of(like, lambda: held.value.double(), shard=held.shard, requires_grad=held.requires_grad)


class InParts:
    """A pass whose weighted sums wait until they are asked for, some parameters at a time.

    A pass may be thrown away after its sums were asked for, and run again: nothing of it must have left.
    """

    def __init__(self, run: GradientPass, parts: Sequence[Sequence[str]]) -> None:
        self._run, self._parts = run, parts
        self.waiting: tuple[Waiting, ...] = ()

    def squared_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the squared norm of each unit's gradient in each group of parameters: [groups, units]."""
        return self._run.squared_norms(groups)

    def per_unit(self, name: str) -> Tensor:
        """Return each unit's gradient of one parameter: [units, *shape]."""
        return self._run.per_unit(name)

    def weighted_sums(
        self, groups: Sequence[Sequence[str]], weights: Tensor, *, last: bool = False
    ) -> dict[str, Tensor]:
        """Note the sum of all units' gradients times their weights [groups, units]; return nothing."""

        def total(names: Sequence[str]) -> dict[str, Tensor]:
            part = [[name for name in group if name in names] for group in groups]
            return self._run.weighted_sums(part, weights, last=last)

        self.waiting = (*self.waiting, total)
        return {}


@contextmanager
def _without_hooks(unit: nn.Module) -> Generator[None]:
    """Take torch's own hooks of `fully_shard` from a module for the length of the block."""
    held: list[tuple[dict[int, Any], dict[int, Any]]] = [
        (hooks, dict(hooks))
        for hooks in (unit._forward_pre_hooks, unit._forward_hooks)  # pyright: ignore[reportPrivateUsage]
    ]
    try:
        for hooks, before in held:
            for key, hook in before.items():
                if _is_of_fully_shard(hook):
                    del hooks[key]
        yield
    finally:
        for hooks, before in held:
            added = {key: hook for key, hook in hooks.items() if key not in before}
            hooks.clear()
            hooks.update(before | added)


def _is_of_fully_shard(hook: Any) -> bool:
    """Whether a hook is a method of the state that `fully_shard` keeps, or a function around one."""
    while hook is not None:
        if type(getattr(hook, "__self__", None)).__name__ == "FSDPState":
            return True
        hook = getattr(hook, "__wrapped__", None)
    return False


def open_model(model: nn.Module, take: Callable[[Mapping[str, Tensor]], None]) -> ShardedModel | WholeModel:
    """Return how private passes see a model."""
    shards = layout_of(model)
    return ShardedModel(model, shards, take) if shards else WholeModel()


def placed_on(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a model on a device; one that is sharded must be there."""
    shards = layout_of(model)
    if not shards:
        return model.to(device)
    there = local(shards[0].parameter).device
    if there != device:
        raise InvalidParameterError(
            f"fully_shard has put the parameters on {str(there)!r}, and Runtime(device=...) says "
            f"{str(device)!r}. Leave device out."
        )
    return model


def refuse_shards(model: nn.Module, what: str) -> None:
    """Raise if a model is sharded, for something that needs all of it."""
    if layout_of(model):
        raise InvalidParameterError(_NEEDS_ALL.format(what))
