# SPDX-License-Identifier: Apache-2.0
"""Bugs that a server or a neighbor in a graph sees: secure sums, local noise, gossip, replies of clients."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.accounting.price import price
from sfumato.audit.federations.round_canaries import RoundCanaries
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.federated import ClippedNoise, ClippedUpdates, LazyRows, LocalTraining, SecureSum
from sfumato.federated.decentralized.node import Node
from sfumato.federated.secure_sum import encoding, secure_sum
from sfumato.federated.secure_sum.encoding import whole_numbers
from sfumato.mechanisms.random import Generator
from sfumato.testing import seeded

from .catalogue import CONFIDENCE, Planted, leaks

__all__ = ["BUGS"]

SIZE = 8
SUMS = SecureSum(
    dimension=100, clip_norm=1.0, noise_multiplier=2.0, cohort=60, least_survivors=40, noise="skellam"
)
ROUND = "server-round"


# --- secure sums ------------------------------------------------------------------------------------------


def sums(seed: int) -> bool:
    canaries = RoundCanaries(count=200, confidence=CONFIDENCE)
    return canaries.sums(SUMS, rounds=2, delta=1e-5, generator=seeded(seed)).refuted


def fresh_scales(patch: pytest.MonkeyPatch) -> None:
    """Forget which scales were found before."""
    patch.setattr(secure_sum, "_largest_scale", lru_cache(secure_sum._largest_scale.__wrapped__))


def room_for_one_client(patch: pytest.MonkeyPatch) -> None:
    original = secure_sum.log_wrap_probability

    def of_one(**terms):
        return original(**terms | {"clients": 1})  # "each client must fit"

    patch.setattr(secure_sum, "log_wrap_probability", of_one)
    fresh_scales(patch)


def noise_of_all_invited(patch: pytest.MonkeyPatch) -> None:
    original = SecureSum._share_stddev

    def share(self, scale, noise_multiplier):
        return original(self, scale, noise_multiplier) * (self.least_survivors / self.cohort) ** 0.5

    patch.setattr(SecureSum, "_share_stddev", share)
    fresh_scales(patch)


def rounded_update(seed: int) -> bool:
    """Compare the integers of a client with those of one that has nothing to tell."""

    def release(update: Any, generator: Generator) -> Any:
        return whole_numbers(update, SUMS, seed=seed, generator=generator).astype(np.float64)

    update = np.random.default_rng(seed).normal(size=SUMS.dimension)
    bound = SUMS.l2_bound
    return leaks(
        lambda: check_sensitivity(release, update, 0 * update, sensitivity=bound, generator=seeded(seed))
    )


def round_away_from_zero(patch: pytest.MonkeyPatch) -> None:
    def rounded(values, *, bound, generator=None):
        return (np.sign(values) * np.ceil(np.abs(values))).astype(np.int64)

    patch.setattr(encoding, "rounded", rounded)


# --- local noise ------------------------------------------------------------------------------------------


def _message(arrays: dict[str, Any], step: int) -> Any:
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    from tests.federated.flower.local_grid import array, identify

    identify()
    record = ArrayRecord({name: array(value) for name, value in arrays.items()})
    return Message(RecordDict({"arrays": record, "config": ConfigRecord({ROUND: step + 1})}), 1, "train")


def _told(mod: Any, updates: dict[str, Any], *, client: int, step: int, state: Any = None) -> Tensor:
    """Return the update that leaves a client, through the mod."""
    from flwr.app import ArrayRecord

    from tests.federated.flower.local_grid import answer, array, context

    def app(message: Any, _context: Any) -> Any:
        return answer(message, ArrayRecord({name: array(-np.asarray(u)) for name, u in updates.items()}))

    asked = _message({name: np.zeros_like(value) for name, value in updates.items()}, step)
    reply = mod(asked, context(client, partition=client, state=state), app)
    arrays = reply.content["arrays"].to_torch_state_dict()
    return -torch.cat([arrays[name].flatten() for name in updates])


def local_messages(seed: int) -> bool:
    from sfumato.federated.flower import LocalNoise

    mod = LocalNoise(clip_norm=0.5, rounds=2, noise_multiplier=2.0, delta=1e-5, generator=seeded(seed))

    def send(client: int, number: int, update: Tensor) -> Tensor:
        return _told(mod, {"weight": update.numpy()}, client=client, step=number)

    canaries = RoundCanaries(count=120, confidence=CONFIDENCE)
    return canaries.messages(
        send,
        noise_multiplier=2.0,
        clip_norm=0.5,
        rounds=2,
        claim=mod.guarantee,
        size=SIZE,
        generator=seeded(seed),
    ).refuted


def one_seed_for_all_clients(patch: pytest.MonkeyPatch) -> None:
    from sfumato.federated.flower import local_noise
    from sfumato.federated.flower.client_side import round_number

    def own_stream(generator, message, context):
        return generator.fork("round", round_number(message))

    patch.setattr(local_noise, "own_stream", own_stream)


def two_tensors(seed: int) -> bool:
    """Replay the message of a client on other data of two tensors."""
    from sfumato.federated.flower import LocalNoise

    mod = LocalNoise(clip_norm=0.5, rounds=2, noise_multiplier=2.0, delta=1e-5)

    def release(update: float, generator: Generator) -> Any:
        mod._generator = generator
        updates = {"weight": np.full(4, update), "bias": np.full(2, update)}
        return _told(mod, updates, client=0, step=0).double().numpy()

    return leaks(lambda: check_sensitivity(release, 100.0, -100.0, sensitivity=1.0, generator=seeded(seed)))


def noise_for_one_of_the_tensors(patch: pytest.MonkeyPatch) -> None:
    from sfumato.federated.flower import local_noise

    original = local_noise.LocalNoise._randomize

    def randomize(self, update, generator):
        for name, value in update.items():  # each at the whole norm
            original(self, {name: value}, None if generator is None else generator.fork(name, 0))

    patch.setattr(local_noise.LocalNoise, "_randomize", randomize)


# --- gossip -----------------------------------------------------------------------------------------------


def itself(model: nn.Module, rows: Tensor) -> Tensor:
    """Return a loss whose gradient at each row is that row."""
    return model(rows)[:, 0]


def gossip_messages(seed: int) -> bool:
    """Let each canary be a node of a ring; record what its two neighbors hear."""
    noise, rounds = ClippedNoise(noise_multiplier=1.0, clip_norm=0.5), 2
    learning = LocalTraining(batch_size=1, learning_rate=1.0, loss=itself)
    protection = ClippedUpdates(noise=noise, local=learning)
    asked = [torch.zeros(1, SIZE)]  # the row of the node that speaks
    rows = LazyRows(lambda _: tuple(asked), clients=1, like=(torch.zeros(0, SIZE),))
    model, source = nn.Linear(SIZE, 1, bias=False), seeded(seed).fork("nodes", 0)
    speak, nodes = protection.open(model, rows, node=0, generator=source), dict[int, Node]()

    def send(client: int, number: int, update: Tensor) -> Tensor:
        asked[:] = [update.float()[None]]
        node = nodes.setdefault(client, Node(client, {client: 1.0}, torch.zeros(SIZE), speak))
        return _heard(node, client * rounds + number)  # each node and round has noise of its own

    canaries = RoundCanaries(count=60, confidence=CONFIDENCE)
    claim = price(protection.event(rounds), delta=1e-5, relation=protection.relation).guarantee("client")
    return canaries.messages(
        send,
        noise_multiplier=noise.noise_multiplier,
        clip_norm=noise.clip_norm,
        rounds=rounds,
        claim=claim,
        size=SIZE,
        generator=seeded(seed),
    ).refuted


def _heard(node: Node, number: int) -> Tensor:
    """Return the different updates that the neighbors of a node hear in a round."""
    before, made = node.state, node.message(number)
    sent = made if made.dim() == 2 else made[None]
    node.mix({node.number: sent[0]})
    return before - torch.unique(sent, dim=0)


def a_message_for_each_neighbor(patch: pytest.MonkeyPatch) -> None:
    original = Node.message

    def message(self, step):
        return torch.stack([original(self, 2 * step + neighbor) for neighbor in range(2)])

    patch.setattr(Node, "message", message)


def keep_the_model_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Let a node go on from the model that it learned, and not from what it told."""
    release, message, learned = ClippedNoise.release, Node.message, []

    def noting(self, rows, *, generator=None):
        learned[:] = [self.clipped(rows)[0]]
        return release(self, rows, generator=generator)

    def remembering(self, step):
        kept = self.__dict__.setdefault("kept", torch.zeros_like(self.state))
        found = message(self, step) - kept
        kept.add_(learned[0])
        return found

    patch.setattr(ClippedNoise, "release", noting)
    patch.setattr(Node, "message", remembering)


# --- late replies -----------------------------------------------------------------------------------------

SLOW = 12  # the node that answers too late


def late_replies(seed: int) -> bool:
    """Let a node answer the first round late, and compare the second round, in which it is not asked."""
    from sfumato.federated.flower.grid_clients import GridClients
    from tests.federated.flower.local_grid import Clock, LocalGrid, moved

    def release(update: float, _generator: Generator) -> Any:
        clock = Clock()

        def slow(message: Any) -> Any:
            return None if all(number == 1 for number, _ in grid.asked) else moved(update)(message)

        grid = LocalGrid({10: moved(0.25), 11: moved(0.5), SLOW: slow})
        clients = GridClients(grid, [10, 11, SLOW], timeout=5.0, clock=clock, sleep=clock.sleep)
        model = nn.Linear(2, 1)
        clients.contributions(model, (torch.arange(3),), step=0)
        later = clients.contributions(model, (torch.arange(2),), step=1)
        return torch.cat([value.flatten(1) for value in later.values()], 1).double().numpy()

    return leaks(
        lambda: check_sensitivity(release, float(seed + 1), 0.0, sensitivity=1e-3, generator=seeded(seed))
    )


def count_late_replies_too(patch: pytest.MonkeyPatch) -> None:
    from sfumato.federated.flower.grid_clients import GridClients

    original, open_ids = GridClients._replies, list[str]()

    def replies(self: Any, messages: Sequence[Any]) -> Any:
        answered, late = [], list(open_ids)
        for node, reply in original(self, messages):
            answered.append(reply.metadata.reply_to_message_id)
            yield node, reply
        open_ids[:] = [m.metadata.message_id for m in messages if m.metadata.message_id not in answered]
        for message_id in late:  # of the round before: "nothing should be lost"
            _, reply = self._reply_to(message_id)
            if reply is not None:
                place = messages[0].metadata.dst_node_id
                reply.metadata.__dict__["_src_node_id"] = place
                yield place, reply

    def updates(self: Any, nodes: Any, sent: Any, given: Any, step: int) -> Any:
        found: dict[int, dict[str, Tensor]] = {}
        for place, update in _usable(self, nodes, sent, given, step):
            before = found.get(place, {name: torch.zeros_like(v) for name, v in update.items()})
            found[place] = {name: before[name] + value for name, value in update.items()}
        return found.items()

    _usable = GridClients._updates
    patch.setattr(GridClients, "_replies", replies)
    patch.setattr(GridClients, "_updates", updates)


BUGS = (
    Planted(
        name="field-too-small",
        bug="the modulus of a secure sum has room for one client, and sums of many wrap around",
        found_by="canaries",
        plant=room_for_one_client,
        audit=sums,
    ),
    Planted(
        name="noise-of-clients-that-dropped-out",
        bug="shares of noise are made for all invited clients, and not for those that may be left",
        found_by="canaries",
        plant=noise_of_all_invited,
        audit=sums,
    ),
    Planted(
        name="rounded-away-from-zero",
        bug="an update is rounded away from zero, and its integers are longer than the noise is made for",
        found_by="replay on neighbors",
        plant=round_away_from_zero,
        audit=rounded_update,
    ),
    Planted(
        name="local-noise-from-one-seed",
        bug="all clients draw their noise from one seed: a server subtracts one message from another",
        found_by="canaries",
        plant=one_seed_for_all_clients,
        audit=local_messages,
    ),
    Planted(
        name="local-noise-tensor-by-tensor",
        bug="a client clips each tensor of its update at the whole clip norm before it adds noise",
        found_by="replay on neighbors",
        plant=noise_for_one_of_the_tensors,
        audit=two_tensors,
    ),
    Planted(
        name="fresh-noise-for-each-neighbor",
        bug="a node of a graph sends each neighbor its update with other noise, and counts one message",
        found_by="canaries",
        plant=a_message_for_each_neighbor,
        audit=gossip_messages,
    ),
    Planted(
        name="node-keeps-its-own-model",
        bug="a node goes on from the model that it learned, without noise, and so tells each update again",
        found_by="canaries",
        plant=keep_the_model_without_noise,
        audit=gossip_messages,
    ),
    Planted(
        name="late-reply-counts-later",
        bug="a reply that comes too late counts in the next round, to which its client was not asked",
        found_by="replay on neighbors",
        plant=count_late_replies_too,
        audit=late_replies,
    ),
)
