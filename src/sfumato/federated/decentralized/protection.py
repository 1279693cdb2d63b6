# SPDX-License-Identifier: Apache-2.0
"""How a node makes its message of a round, and what all its messages cost.

A message is the state that the node has now, which is public, moved by what the node learned from its rows.
There are two ways to protect that move:

- `ClippedUpdates` protects the whole client. The node trains as it likes, its update is clipped, and noise is
  added once.
- `NoisySteps` protects each example of the client. The node takes steps of DP-SGD over its own examples.

Guarantee  Given the state, a message depends on rows only by mechanisms that `event` counts. Nothing that was
           computed from rows is kept for the next round: momentum begins anew, and the state is replaced.
           The neighbors of a node all get the same message, so a round is one release, however many
           neighbors there are.
Neighbors  `ClippedUpdates`: replace-one, all rows of a client for any others; everybody knows that the client
           takes part. `NoisySteps`: add-remove, one example of a client.
Failure    A node whose rows cannot be read, or are not shaped and typed as declared, has none: its update is
           zeros (`ClippedUpdates`), or its steps are noise alone (`NoisySteps`). If rows make the model fail,
           the update is zeros, and in steps these rows count as none, each on its own. Nothing is raised or
           logged about either. `NoisySteps` protect one example: what reads rows must not fail, or change
           their types, because of one of them.
Not here   How long a node takes, which may depend on how many rows it has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import ClientRows, readable_rows
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.mechanisms.random import Generator
from sfumato.training.data import rows as row_trees
from sfumato.training.engine import parameter_values
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.engine.step.settings import PassSettings
from sfumato.training.privacy.sampling import PoissonSampling

__all__ = ["ClippedUpdates", "NoisySteps", "Protection", "Speak", "load_state_", "state_of"]

Speak = Callable[[Tensor, int], Tensor]  # (state, number of the round) -> message
_LOCAL = LocalTraining()


class Protection(Protocol):
    """What protects the rows of a node."""

    @property
    def relation(self) -> Relation:
        """Which data sets of a node are neighbors."""
        ...

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        ...

    def event(self, rounds: int) -> DpEvent:
        """Return what the messages of so many rounds cost a unit.

        Args:
            rounds: How many rounds there are.

        Returns:
            The event, for an accountant.
        """
        ...

    def rehearse(self, model: nn.Module, clients: ClientRows) -> None:
        """Try out on made-up rows whether a node can learn. No row is read.

        Args:
            model: The model that will be trained. It is not changed.
            clients: What nodes hold.
        """
        ...

    def open(self, model: nn.Module, clients: ClientRows, *, node: int, generator: Generator) -> Speak:
        """Return what makes the messages of a node.

        Args:
            model: A model of the node's own, whose values are overwritten.
            clients: What nodes hold. Only this node is read.
            node: The number of the node.
            generator: The source of this node's noise.

        Returns:
            A function of the state and the number of the round.
        """
        ...

    def statement(self) -> str:
        """Return what a message is, in sentences.

        Returns:
            The sentences.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedUpdates:
    """Protects a client with all of its rows: its update is clipped, and noise is added once a round.

    Args:
        noise: The bound on an update and the noise. `ClippedNoise.calibrated(..., releases=rounds)` meets a
            budget.
        local: How a node learns between two rounds.

    >>> ClippedUpdates(noise=ClippedNoise(noise_multiplier=4.0)).event(rounds=10)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=4.0), count=10)
    """

    noise: ClippedNoise
    local: LocalTraining = _LOCAL

    @property
    def relation(self) -> Relation:
        """Replace-one: all rows of a client are replaced by any others."""
        return Relation.REPLACE_ONE

    @property
    def privacy_unit(self) -> str:
        """A client: all rows of a node."""
        return "client"

    def event(self, rounds: int) -> DpEvent:
        """Return one Gaussian release for each round. Neighbors know whose it is: nothing is amplified.

        Args:
            rounds: How many rounds there are.

        Returns:
            The event, for an accountant.
        """
        return self.noise.event(rounds)

    def rehearse(self, model: nn.Module, clients: ClientRows) -> None:
        """Train a copy on made-up rows.

        Args:
            model: The model that will be trained. It is not changed.
            clients: What nodes hold. No row is read.
        """
        VectorizedClients(clients, self.local).rehearse(model)

    def open(self, model: nn.Module, clients: ClientRows, *, node: int, generator: Generator) -> Speak:
        """Return what makes the messages of a node: its state minus a clipped update, with noise.

        Args:
            model: A model of the node's own, whose values are overwritten.
            clients: What nodes hold. Only this node is read.
            node: The number of the node.
            generator: The source of this node's noise.

        Returns:
            A function of the state and the number of the round.
        """
        engine, number = VectorizedClients(clients, self.local), (torch.tensor([node]),)

        def speak(state: Tensor, step: int) -> Tensor:
            load_state_(model, state)
            update = engine.contributions(model, number, step=step)
            flat = torch.cat([update[name].flatten(1) for name in parameter_values.find(model).parameters], 1)
            return state - self.noise.release(flat, generator=generator.fork("noise", step))[0]

        return speak

    def statement(self) -> str:
        """Return what a message is.

        Returns:
            The sentences.
        """
        passes = "pass" if self.local.epochs == 1 else "passes"
        return (
            f"In each round a client took {self.local.epochs} {passes} of SGD over its own rows. Its update "
            f"was {self.noise.statement()}."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisySteps:
    """Protects each example of a client: a node takes steps of DP-SGD over its own examples.

    Args:
        noise_multiplier: The standard deviation of the noise, divided by `clip_norm`. `sfumato.plan` with
            `steps * rounds` steps finds it for a budget.
        public_size: About how many examples a node has: a public number, the same for all nodes. Sampling
            rate and learning depend on it, the guarantee does not.
        expected_batch_size: How many of `public_size` examples a step samples on average.
        steps: How many steps a node takes in a round.
        learning_rate: The rate of SGD.
        clip_norm: The L2 norm to which the gradient of an example is clipped.
        loss: `loss(model, *rows)` returns one number for each row.
        privacy_unit: What accounts call the one whose row each is, if each row is another one's, such as
            "patient".

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> NoisySteps(noise_multiplier=1.0, public_size=100, expected_batch_size=10, steps=5).sampling_rate
    0.1
    """

    noise_multiplier: float
    public_size: int
    expected_batch_size: float
    steps: int = 1
    learning_rate: float = 0.1
    clip_norm: float = 1.0
    loss: Loss = cross_entropy
    privacy_unit: str = "example"

    def __post_init__(self) -> None:
        _check.text(privacy_unit=self.privacy_unit)
        _check.count(public_size=self.public_size, steps=self.steps)
        _check.positive(
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.expected_batch_size,
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
        )
        _check.rate(sampling_rate=self.sampling_rate)

    @property
    def sampling_rate(self) -> float:
        """The probability that an example is in a batch."""
        return self.expected_batch_size / self.public_size

    @property
    def relation(self) -> Relation:
        """Add-remove: one example of a node is added or removed."""
        return Relation.ADD_REMOVE

    def event(self, rounds: int) -> DpEvent:
        """Return DP-SGD of all steps of all rounds, over secret Poisson samples.

        Args:
            rounds: How many rounds there are.

        Returns:
            The event, for an accountant.
        """
        return events.dp_sgd(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps * rounds,
        )

    def rehearse(self, model: nn.Module, clients: ClientRows) -> None:
        """Compute one step over rows of zeros.

        Args:
            model: The model that will be trained. Its values and gradients stay as they are.
            clients: What nodes hold. No row is read.
        """
        private = self._gradients(model, None)
        private.accumulate(*row_trees.padded(tuple(clients.like), 2))
        private.forget()

    def open(self, model: nn.Module, clients: ClientRows, *, node: int, generator: Generator) -> Speak:
        """Return what makes the messages of a node: its state after some steps of DP-SGD.

        Args:
            model: A model of the node's own, whose values are overwritten.
            clients: What nodes hold. Only this node is read.
            node: The number of the node.
            generator: The source of this node's noise and batches.

        Returns:
            A function of the state and the number of the round.
        """
        held = tuple(readable_rows(clients, node))
        # Neighbors decide the state: checks on private rows would tell them whether a batch is empty.
        private = self._gradients(model, generator, check=False)
        sampler = PoissonSampling(sampling_rate=self.sampling_rate).sampler(row_trees.count(held), generator)
        optimizer = torch.optim.SGD(private.parameters.values(), lr=self.learning_rate)  # without momentum

        def speak(state: Tensor, step: int) -> Tensor:
            load_state_(model, state)
            for number in range(step * self.steps, (step + 1) * self.steps):
                _take_in(private, row_trees.take(held, sampler.batch(number)))
                private.finish()
                optimizer.step()
            private.drop()
            return state_of(model)

        return speak

    def _gradients(
        self, model: nn.Module, generator: Generator | None, *, check: bool = True
    ) -> PrivateGradients:
        return PrivateGradients(
            model,
            self.loss,
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.expected_batch_size,
            clip_norm=self.clip_norm,
            passes=PassSettings(check=check),
            generator=generator,
        )

    def statement(self) -> str:
        """Return what a message is.

        Returns:
            The sentences.
        """
        return (
            f"In each round a node took {self.steps} noisy step(s) of DP-SGD over its own examples: each "
            f"example was in a batch with probability {self.sampling_rate:.4g}, gradients were clipped to an "
            f"L2 norm of {self.clip_norm:g}, and Gaussian noise of {self.noise_multiplier:.4g} times that "
            "norm was added to their sum."
        )


def _take_in(private: PrivateGradients, batch: Sequence[Any]) -> None:
    """Add the clipped gradients of a batch; rows that make the model fail are left out, each on its own.

    If the whole batch were left out, one example would move the sum by more than its bound.
    """
    if _accumulated(private, batch):
        return
    rows = [row_trees.take(batch, slice(i, i + 1)) for i in range(row_trees.count(batch))]
    usable: list[Sequence[Any]] = []
    for row in rows:
        if _accumulated(private, row):
            usable.append(row)
        private.forget()
    for row in usable:  # one by one, as they were tried
        _accumulated(private, row)


def _accumulated(private: PrivateGradients, batch: Sequence[Any]) -> bool:
    try:
        ordinary(lambda: private.accumulate(*batch))
    except Exception:  # rehearsed on made-up rows, so these are the reason. The text may show their shape
        return False
    return True


def state_of(model: nn.Module) -> Tensor:
    """Return the values of all trainable parameters as one vector, a copy.

    Args:
        model: The model.

    Returns:
        The vector, of float32.

    Raises:
        InvalidParameterError: If a parameter is not of float32, or not on the CPU.
    """
    parameters = parameter_values.find(model).parameters
    for name, value in parameters.items():
        if value.dtype != torch.float32 or not value.is_cpu:
            raise InvalidParameterError(
                f"parameter {name!r} is {value.dtype} on {value.device}. Nodes exchange float32 numbers on "
                "the CPU: use model.float().cpu()."
            )
    return torch.cat([value.detach().flatten() for value in parameters.values()])


def load_state_(model: nn.Module, state: Tensor) -> None:
    """Copy a vector of `state_of` into a model.

    Args:
        model: The model, which is changed.
        state: The vector.
    """
    parameters = parameter_values.find(model).parameters.values()
    with torch.no_grad():
        for parameter, part in zip(parameters, state.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))
