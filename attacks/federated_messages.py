# SPDX-License-Identifier: Apache-2.0
"""Attacks on messages that a participant protects alone, from the view of who receives them.

Each canary is the only unit of a participant of its own: a client, an example of a client, or a person at
parties that hold columns and labels. It is in every batch, because the receiver may know that.

- `LocalNoise` and gossip with `ClippedUpdates` protect a client: its update is the canary.
- `ExampleLevel` and gossip with `NoisySteps` protect an example. Its gradient is the canary. A message has
  several noisy steps, so it is divided by their number.
- `learn_top` and `train_split` protect a person. Embeddings and returned gradients are read where they leave
  a party, and steps of networks from the weights, which may leave. What a person adds to a step depends on
  releases that the receiver knows, so it looks along the direction that these set.

Guarantee  The claim is that of the federation itself, not one made here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from torch import Tensor, nn

from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.federations.round_canaries import RoundCanaries, Send
from sfumato.federated import (
    ClippedNoise,
    ClippedUpdates,
    FeatureParty,
    LabelParty,
    LazyRows,
    LocalTraining,
    NoisySteps,
    SplitSteps,
    learn_top,
    train_split,
)
from sfumato.federated.decentralized.node import Node
from sfumato.federated.decentralized.protection import Protection
from sfumato.federated.flower import ExampleLevel, LocalNoise
from sfumato.labels import Learner
from sfumato.mechanisms.random import Generator

__all__ = ["MESSAGES", "Attack"]

Attack = Callable[[int, float, Generator], AuditResult]  # canaries, confidence, randomness

_DELTA: Final = 1e-5
_ROUNDS, _SIZE = 3, 8  # messages of each client, and coordinates of each
_STEPS, _STEP_NOISE = 2, 6.0  # of DP-SGD in a message, and their noise multiplier
_EPOCHS, _SPLIT_NOISE = 2, 4.0  # of a split network, and the noise multiplier of all that is shown
_SLOW = 1e-6  # the rate of a split network: it stays nearly what it is, so that its map is known
_LOUD = 20.0  # the noise of what a party receives: long enough that a person's part in a step is clipped


def _heard(
    send: Send,
    claim: Guarantee,
    canaries: int,
    confidence: float,
    generator: Generator,
    *,
    noise: float,
    clip_norm: float = 1.0,
    rounds: int = _ROUNDS,
) -> AuditResult:
    """Let each canary send its messages, and compare what they show with a claim."""
    return RoundCanaries(count=canaries, confidence=confidence).messages(
        send,
        noise_multiplier=noise,
        clip_norm=clip_norm,
        rounds=rounds,
        claim=claim,
        size=_SIZE,
        generator=generator,
    )


# --- clients ----------------------------------------------------------------------------------------------


def _local_noise(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what the mod of a client lets leave."""
    mod = LocalNoise(clip_norm=0.5, rounds=_ROUNDS, epsilon=4.0, delta=_DELTA, generator=generator)

    def send(client: int, number: int, update: Tensor) -> Tensor:
        sent = {"weight": update}
        mod._randomize(sent, generator.fork("client", client).fork("round", number))  # pyright: ignore[reportPrivateUsage] - what leaves, without Flower's messages
        return sent["weight"]

    noise = mod.noise_multiplier
    return _heard(send, mod.guarantee, canaries, confidence, generator, noise=noise, clip_norm=0.5)


def _example_level(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack replies of clients that learn by DP-SGD from one example."""
    rows, contexts = [torch.zeros(1, _SIZE)], dict[int, Context]()
    answer = ExampleLevel(
        _line(),
        lambda _: (rows[0],),
        rounds=_ROUNDS,
        local_steps=_STEPS,
        noise_multiplier=_STEP_NOISE,
        delta=_DELTA,
        public_size=1,
        expected_batch_size=1,
        clip_norm=1.0,
        loss=_itself,
        optimizer=partial(torch.optim.SGD, lr=1.0),
        generator=generator,
    )

    def send(client: int, number: int, update: Tensor) -> Tensor:
        rows[:] = [update.float()[None]]
        own = contexts.setdefault(client, Context(1, client, {}, RecordDict(), {}))
        (state,) = answer(_question(client, number), own).content.array_records.values()
        return -state.to_torch_state_dict()["weight"][0] / _STEPS  # of a server that sent zeros

    noise = _STEP_NOISE / _STEPS**0.5
    return _heard(send, answer.guarantee, canaries, confidence, generator, noise=noise)


def _question(client: int, number: int) -> Message:
    """Return the message of a server that asks a client to learn from a model of zeros."""
    config = ConfigRecord({"server-round": number + 1})
    content = RecordDict({"arrays": ArrayRecord(_line().state_dict()), "config": config})
    about = Metadata(
        run_id=1,
        message_id=f"{client} {number}",
        src_node_id=0,
        dst_node_id=client,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1e12,
        message_type="train",
    )
    return make_message(about, content)


def _line() -> nn.Linear:
    model = nn.Linear(_SIZE, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def _itself(model: nn.Module, rows: Tensor) -> Tensor:
    """Return a loss whose gradient at each row is that row."""
    return model(rows)[:, 0]


# --- nodes of a graph -------------------------------------------------------------------------------------


def _updates_of_nodes(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what nodes of a graph send: the noisy update of a node whose one row is its update."""
    noise = ClippedNoise.calibrated(epsilon=4.0, delta=_DELTA, releases=_ROUNDS)
    how = ClippedUpdates(noise=noise, local=LocalTraining(learning_rate=1.0, loss=_itself))
    claim = _claim_of(how)
    return _heard(
        _spoken(how, generator), claim, canaries, confidence, generator, noise=noise.noise_multiplier
    )


def _steps_of_nodes(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what nodes of a graph send: noisy steps over one example."""
    how = NoisySteps(
        noise_multiplier=_STEP_NOISE,
        public_size=1,
        expected_batch_size=1,
        steps=_STEPS,
        learning_rate=1.0,
        loss=_itself,
    )
    spoken, noise = _spoken(how, generator), _STEP_NOISE / _STEPS**0.5

    def send(client: int, number: int, update: Tensor) -> Tensor:
        return spoken(client, number, update) / _STEPS

    return _heard(send, _claim_of(how), canaries, confidence, generator, noise=noise)


def _claim_of(protection: Protection) -> Guarantee:
    found = price(protection.event(_ROUNDS), delta=_DELTA, relation=protection.relation)
    return found.guarantee(protection.privacy_unit)


def _spoken(protection: Protection, generator: Generator) -> Send:
    """Return what a node sends that has no neighbors, whose one row is the update of a canary."""
    nodes = dict[int, Node]()

    def send(client: int, number: int, update: Tensor) -> Tensor:
        if client not in nodes:
            rows = LazyRows(lambda _: (update.float()[None],), clients=1, like=(torch.zeros(0, _SIZE),))
            own = generator.fork("node", client)
            speak = protection.open(_line(), rows, node=0, generator=own)
            nodes[client] = Node(client, {client: 1.0}, torch.zeros(_SIZE), speak)
        node = nodes[client]
        before, message = node.state, node.message(number)
        node.mix({client: message})
        return before - message

    return send


# --- parties with columns and labels ----------------------------------------------------------------------


def _embeddings(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what the label party gets where only its own network learns."""
    learner = Learner(epochs=1, batch_size=1)

    def run(client: int, update: Tensor) -> tuple[Guarantee, Tensor]:
        heard: list[Tensor] = []
        noise = _Overheard(_SPLIT_NOISE, heard.append)
        party = FeatureParty(name="bank", columns=update[None], bottom=_as_it_is(), embeddings=noise)
        top = nn.Linear(_SIZE, 2, dtype=torch.float64)
        held = LabelParty(labels=torch.zeros(1, dtype=torch.int64), classes=2, top=top)
        own = generator.fork("person", client)
        found = learn_top([party], held, delta=_DELTA, learner=learner, generator=own)
        (sent,) = heard
        return found.parties["bank"], sent[0]

    claim, _ = run(canaries, torch.zeros(_SIZE, dtype=torch.float64))

    def send(client: int, number: int, update: Tensor) -> Tensor:
        return run(client, update.double())[1]

    return _heard(send, claim, canaries, confidence, generator, noise=_SPLIT_NOISE, rounds=1)


def _columns_of_split(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what the columns of a person show: their embeddings, and each step of the bottom network."""
    seen = dict[int, _Shown]()

    def run(client: int, update: Tensor) -> _Shown:
        own = generator.fork("person", client)
        return _split(update.double(), 0, own, embeddings=_SPLIT_NOISE, gradients=_LOUD)

    def send(client: int, number: int, update: Tensor) -> Tensor:
        shown = seen[client] if number else seen.setdefault(client, run(client, update))
        epoch, after = divmod(number, 2)
        if not after:
            return shown.embeddings[epoch][0]
        # Clipping removes what is returned along the embedding itself: the canary's own coordinate.
        along = shown.returned[epoch][0] * (torch.arange(_SIZE) != client % _SIZE)
        return (along / along.norm()) @ _step(shown.bottoms, epoch)

    claim = run(canaries, torch.zeros(_SIZE)).columns
    return _heard(send, claim, canaries, confidence, generator, noise=_SPLIT_NOISE, rounds=2 * _EPOCHS)


def _labels_of_split(canaries: int, confidence: float, generator: Generator) -> AuditResult:
    """Attack what the label of a person shows: returned gradients, and each step of the top network."""
    seen = dict[int, _Shown]()

    def run(client: int, label: int) -> _Shown:
        own, blank = generator.fork("person", client), torch.zeros(_SIZE, dtype=torch.float64)
        return _split(blank, label, own, embeddings=_LOUD, gradients=_SPLIT_NOISE)

    def send(client: int, number: int, update: Tensor) -> Tensor:
        place = client % _SIZE
        label = 2 * place + int(update[place] > 0)
        shown = seen[client] if number else seen.setdefault(client, run(client, label))
        epoch, after = divmod(number, 2)
        if not after:
            return shown.returned[epoch][0]
        sent = shown.embeddings[epoch][0]
        return _step(shown.tops, epoch) @ (sent / sent.norm())

    claim = run(canaries, 0).labels
    return _heard(send, claim, canaries, confidence, generator, noise=_SPLIT_NOISE, rounds=2 * _EPOCHS)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What a split network of one person shows, one entry for each epoch, and its claims.

    Weights have one more entry: those after the last step.
    """

    embeddings: list[Tensor]
    returned: list[Tensor]
    bottoms: list[Tensor]
    tops: list[Tensor]
    columns: Guarantee
    labels: Guarantee


def _split(
    columns: Tensor, label: int, generator: Generator, *, embeddings: float, gradients: float
) -> _Shown:
    """Train a split network on one person, with the noise multipliers of what is sent."""
    bottom, top, updates = _as_it_is(), _as_it_is(), ClippedNoise(noise_multiplier=_SPLIT_NOISE)
    sent, returned, bottoms, tops = ([] for _ in range(4))

    def send(rows: Tensor) -> None:
        sent.append(rows)
        bottoms.append(bottom.weight.detach().clone())
        tops.append(top.weight.detach().clone())

    party = FeatureParty(
        name="bank",
        columns=columns[None],
        bottom=bottom,
        embeddings=_Overheard(embeddings, send),
        updates=updates,
    )
    held = LabelParty(
        labels=torch.tensor([label]),
        classes=2 * _SIZE,
        top=top,
        gradients=_Overheard(gradients, returned.append),
        updates=updates,
        loss=_pull,
    )
    steps = SplitSteps(epochs=_EPOCHS, batch_size=1, learning_rate=_SLOW)
    run = train_split([party], held, delta=_DELTA, steps=steps, generator=generator)
    assert run.labels is not None
    return _Shown(
        embeddings=sent,
        returned=returned,
        bottoms=[*bottoms, bottom.weight.detach()],
        tops=[*tops, top.weight.detach()],
        columns=run.parties["bank"],
        labels=run.labels,
    )


class _Overheard(ClippedNoise):
    """Clipping and noise as they are, with a listener where rows leave."""

    def __init__(self, noise: float, listener: Callable[[Tensor], None]) -> None:
        super().__init__(noise_multiplier=noise)
        object.__setattr__(self, "listener", listener)

    def release(self, rows: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Return what leaves, and pass it to the listener."""
        found = super().release(rows, generator=generator)
        self.listener(found.clone())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - frozen: set above
        return found


def _as_it_is() -> nn.Linear:
    """Return a network that returns its rows. Steps are read from its weights, so these are precise."""
    network = nn.Linear(_SIZE, _SIZE, bias=False, dtype=torch.float64)
    nn.init.eye_(network.weight)
    return network


def _pull(top: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return a loss whose gradient is long, in the coordinate and with the sign that a label stands for."""
    signs = torch.eye(_SIZE, dtype=embeddings.dtype).repeat_interleave(2, 0) * 1e3
    signs[::2] *= -1
    return (top(embeddings) * signs[labels]).sum(1)


def _step(weights: Sequence[Tensor], epoch: int) -> Tensor:
    return (weights[epoch] - weights[epoch + 1]) / _SLOW


MESSAGES: Final[Mapping[str, Attack]] = {
    "LocalNoise, seen by the server": _local_noise,
    "ExampleLevel, seen by the server": _example_level,
    "gossip, ClippedUpdates, seen by neighbors": _updates_of_nodes,
    "gossip, NoisySteps, seen by neighbors": _steps_of_nodes,
    "learn_top with ClippedNoise, columns, seen by the label party": _embeddings,
    "train_split, columns, seen by the label party": _columns_of_split,
    "train_split, labels, seen by a feature party": _labels_of_split,
}
