# SPDX-License-Identifier: Apache-2.0
"""Local privacy: a client adds the noise itself, before its update leaves.

`LocalNoise` is a mod for a ClientApp. It clips what the app learned, adds Gaussian noise, and replies with
the noisy model and nothing else. The server is not trusted. It averages replies with any strategy of Flower
and adds no noise. A model learned in this way is worse than with noise of the server: the average of n
replies has the noise of one client divided by the square root of n, where noise that is added once to the sum
is divided by n.

Guarantee  All replies of a client together, at most `rounds` of them, are (epsilon, delta)-private for all
           of the client's data, whoever sees them. What the app does inside does not matter: an app that
           fails, or whose model is not finite or does not fit, replies with noise alone.
Neighbors  Replace-one: the data of the client against any other data. One update moves by at most twice the
           clip norm. That the client takes part, in which rounds, and how long it takes is not protected.
Failure    A client that has answered `rounds` rounds replies with an error. So it does for messages other
           than training, whose replies have no noise.
Not here   Cohorts: the event has no sampling, because the server knows whom it asked.
"""

from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.federated.flower.client_side import own_stream, record_in
from sfumato.federated.flower.replies import update_in
from sfumato.federated.messages.planned_rounds import AccountOf, PlannedRounds, refusal
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.mechanisms.tensors import add_gaussian_many_
from sfumato.training.run import sentence

__all__ = ["LocalNoise"]

WEIGHT = "num-examples"  # by which Flower's strategies weight; the number of examples is private, so it is 1


class LocalNoise:
    """A mod that makes the replies of a client private: `@app.train(mods=[LocalNoise(...)])`.

    Args:
        clip_norm: The L2 norm to which an update is clipped.
        rounds: How many rounds the client answers at most.
        epsilon: The privacy budget of all rounds together. Pass it or `noise_multiplier`.
        delta: The delta of the guarantee.
        noise_multiplier: Standard deviation of the noise, divided by the clip norm.
        account_of: Returns the account of the client, a replace-one one, from Flower's context. It keeps the
            count of rounds, too. Without it the count is kept for one run of Flower, and nothing is recorded.
        purpose: What the account keeps with the charge. Another purpose is another charge.
        generator: The source of noise. Default: secure. A seeded one protects nobody.

    Raises:
        InvalidParameterError: If a setting is missing or out of range.

    >>> noise = LocalNoise(clip_norm=1.0, rounds=20, epsilon=8, delta=1e-5)
    >>> print(noise.guarantee)
    (8, 1e-05)-differential privacy for one client, replace-one neighbors
    """

    def __init__(
        self,
        *,
        clip_norm: float,
        rounds: int,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        account_of: AccountOf | None = None,
        purpose: str = "updates with local noise",
        generator: Generator | None = None,
    ) -> None:
        _check.positive(clip_norm=clip_norm)
        _check.count(rounds=rounds)
        if (epsilon is None) == (noise_multiplier is None):
            raise InvalidParameterError("pass epsilon=... or noise_multiplier=..., one of the two.")
        self._clip_norm, self._steps, self._generator = clip_norm, rounds, generator
        self._noise = _calibrated(rounds, epsilon, delta) if noise_multiplier is None else noise_multiplier
        _check.positive(noise_multiplier=self._noise)
        self._price = price(self.event(), delta=delta, relation=self.relation)
        self._rounds = PlannedRounds(
            self, rounds=rounds, purpose=purpose, account_of=account_of, generator=generator
        )
        self._recorded = account_of is not None

    @property
    def relation(self) -> Relation:
        """Replace-one: all data of the client against any other."""
        return Relation.REPLACE_ONE

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise, divided by the clip norm."""
        return self._noise

    @property
    def guarantee(self) -> Guarantee:
        """What all replies of a client together satisfy."""
        return self._price.guarantee("client")

    def event(self) -> DpEvent:
        """Return what all rounds together cost.

        Returns:
            The event, for replace-one neighbors.
        """
        return _event(self._steps, self._noise)

    def statement(self) -> str:
        """Return a paragraph for the person whose data it is.

        Returns:
            What the client sends, and the guarantee.
        """
        notes = [study_note(self._generator), None if self._recorded else record_note(None)]
        return " ".join(
            [
                f"This client answers at most {self._steps} rounds. Each answer is the update of its model, "
                f"clipped to an L2 norm of {self._clip_norm:g}, with Gaussian noise of {self._noise:.4g} "
                f"times that norm, added by the client itself. All answers together satisfy "
                f"{self.guarantee}, whoever sees them.",
                *filter(None, map(sentence, notes)),
            ]
        )

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app learn, and reply with a noisy update.

        Args:
            message: The message of the server.
            context: The context of the client.
            call_next: The app.

        Returns:
            The reply.
        """
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return refusal(message, "Messages other than training are not answered: no noise protects them.")
        sent = ArrayRecord(dict(record_in(message)))  # a copy: the app may change its message
        (name,) = message.content.array_records
        if not self._rounds.take(context):
            return refusal(message, "All rounds that this client agreed to are answered.")
        given = _floats(sent)
        update = _learned(message, context, call_next, sent, given)
        self._randomize(update, own_stream(self._generator, message, context))
        arrays = sent.to_torch_state_dict()
        arrays.update({key: (given[key] - update[key]).to(arrays[key].dtype) for key in given})
        content = RecordDict({name: ArrayRecord(arrays), "metrics": MetricRecord({WEIGHT: 1})})
        return Message(content, reply_to=message)

    def _randomize(self, update: dict[str, Tensor], generator: Generator | None) -> None:
        """Clip an update and add noise to it, in place."""
        norm = torch.stack([value.double().norm() for value in update.values()]).norm().item()
        usable = norm < float("inf")  # False for NaN
        scale = min(1.0, self._clip_norm / norm) if usable and norm > 0 else 0.0
        for value in update.values():
            value.mul_(scale) if usable else value.zero_()
        stddev = self._noise * self._clip_norm
        add_gaussian_many_(list(update.values()), stddev=stddev, generator=generator)


def _event(rounds: int, noise: float) -> DpEvent:
    return dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), rounds)


def _calibrated(rounds: int, epsilon: float | None, delta: float) -> float:
    assert epsilon is not None  # one of the two was given
    return calibrate(
        lambda noise: _event(rounds, noise), epsilon=epsilon, delta=delta, relation=Relation.REPLACE_ONE
    )


def _floats(sent: ArrayRecord) -> dict[str, Tensor]:
    """Return what can be learned: arrays of floating-point numbers, as float32 or float64."""
    arrays = sent.to_torch_state_dict()
    kept = {name: value for name, value in arrays.items() if value.is_floating_point()}
    if not kept:
        raise InvalidParameterError("the message of the server has no array of floating-point numbers.")
    return {name: value if value.dtype == torch.float64 else value.float() for name, value in kept.items()}


def _learned(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    sent: ArrayRecord,
    given: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the update of the app; zeros where there is none. Nothing tells the two apart."""
    try:
        update = ordinary(lambda: update_in(call_next(message, context), sent, given))
    except Exception:  # of the app, on private data: its text must not leave, and neither must the failure
        update = None
    return update if update is not None else {name: torch.zeros_like(v) for name, v in given.items()}
