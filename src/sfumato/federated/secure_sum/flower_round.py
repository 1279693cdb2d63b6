# SPDX-License-Identifier: Apache-2.0
"""The server's side of a secure sum over Flower's `Grid`: four exchanges with the invited clients.

Guarantee  The server learns the sum of the vectors of all clients that sent one, or nothing. It is decoded if
           at least `least_survivors` of them did, whose noise is what `SecureSum.event` prices.
Edge cases Clients that do not answer in time, answer with an error, twice, or nonsense count as dropped out
           from that stage on (of two answers the first counts). A client that drops out after its vector
           arrived is in the sum. Fewer clients than `least_survivors` at any stage skip the round.
Failure    A skipped round has no sum. It must be charged like any other: clients answered before it was
           skipped.

The amount of noise must not tell who contributes. So the number of invited clients is fixed, and clients that
are not among the `contributors` are asked for noise alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.encoding import decode
from sfumato.federated.secure_sum.flower_mod import RECORD, mechanism_text
from sfumato.federated.secure_sum.masks import unpacked
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.federated.secure_sum.unmasking_server import UnmaskingServer

__all__ = ["SecureRound", "secure_round"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecureRound:
    """What a round gave.

    Attributes:
        total: The noisy sum of updates; None if the round was skipped.
        survivors: How many clients' vectors were received. They are in the sum, if there is one.
    """

    total: npt.NDArray[np.float64] | None
    survivors: int

    @property
    def skipped(self) -> bool:
        """Whether the round has no sum."""
        return self.total is None


def secure_round(
    grid: Grid,
    clients: Sequence[int],
    mechanism: SecureSum,
    *,
    content: RecordDict,
    seed: int,
    contributors: Collection[int] | None = None,
    parameters: Sequence[str] = (),
    neighbors: int | None = None,
    timeout: float | None = None,
) -> SecureRound:
    """Ask clients for the sum of their updates.

    Args:
        grid: Flower's grid.
        clients: The node numbers of the invited clients, all different, at most `mechanism.cohort`.
        mechanism: The mechanism of the round.
        content: What the app of each client gets: the model in an array record, and settings. It is sent
            with the third message.
        seed: The public seed of the round, which must be new in each round.
        contributors: The clients whose updates are wanted; the others add noise alone. None: all of them.
        parameters: The names of the arrays that are trained, in the order of the sum's coordinates; empty:
            all arrays of the record.
        neighbors: How many other clients each client shares masks with; None: all. Clients must accept it.
        timeout: How many seconds each of the four exchanges waits; None: until all answered.

    Returns:
        The decoded sum, or a skipped round.

    Raises:
        InvalidParameterError: If more clients are invited than the mechanism has room for, or one twice.
    """
    if len(clients) > mechanism.cohort or len(set(clients)) != len(clients):
        raise InvalidParameterError(
            f"at most cohort={mechanism.cohort} different clients may be invited to a round."
        )
    server = UnmaskingServer(
        size=mechanism.size,
        bits=mechanism.bits,
        least_survivors=mechanism.least_survivors,
        neighbors=neighbors,
    )
    exchange = _Exchange(grid, server.session, str(seed), timeout)
    wanted = set(clients if contributors is None else contributors)
    shared = {"seed": seed, "parameters": list(parameters)}
    asked = {number: {**shared, "contributes": number in wanted} for number in clients}
    total = _sum(exchange, server, asked, mechanism, content)
    decoded = None if total is None else decode(total, mechanism, seed=seed)
    return SecureRound(total=decoded, survivors=server.survivors)


def _sum(
    exchange: "_Exchange",
    server: UnmaskingServer,
    asked: Mapping[int, Mapping[str, Any]],
    mechanism: SecureSum,
    content: RecordDict,
) -> Integers | None:
    """Run the four stages; return the sum modulo m, or None if the round is skipped."""
    text = mechanism_text(mechanism)
    answers = exchange.ask("keys", {number: {"mechanism": text} for number in asked})
    near = server.meet({number: keys for number, a in answers.items() if (keys := _bytes_list(a, "keys", 2))})
    questions = {number: _key_question(server, number, keys) for number, keys in near.items()}
    sealed, commitments = _sealed(exchange.ask("shares", questions))
    forwarded = server.forward(sealed, commitments)
    questions = {n: {**asked[n], **_columns("sealed", shares)} for n, shares in forwarded.items()}
    vectors = exchange.ask("vector", questions, content=content)
    if not server.add_up(_vectors(vectors, mechanism)):
        return None
    questions = {n: {"active": on, "dropped": off} for n, (on, off) in server.questions().items()}
    revealed = {number: _pairs(a, "shares") for number, a in exchange.ask("reveal", questions).items()}
    return server.unmasked(revealed)


class _Exchange:
    """Questions to clients and their answers, stage by stage."""

    def __init__(self, grid: Grid, session: bytes, group: str, timeout: float | None) -> None:
        self._grid, self._session, self._group, self._timeout = grid, session, group, timeout

    def ask(
        self, stage: str, questions: Mapping[int, Mapping[str, Any]], *, content: RecordDict | None = None
    ) -> dict[int, ConfigRecord]:
        """Send each client its question, and return the answers of those that answered."""
        if not questions:
            return {}
        messages = [self._message(stage, number, asked, content) for number, asked in questions.items()]
        answers: dict[int, ConfigRecord] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            number = reply.metadata.src_node_id
            if reply.has_error() or number not in questions or number in answers:
                continue
            if RECORD in reply.content.config_records:
                answers[number] = reply.content.config_records[RECORD]
        return answers

    def _message(
        self, stage: str, number: int, asked: Mapping[str, Any], content: RecordDict | None
    ) -> Message:
        record = ConfigRecord({"stage": stage, "session": self._session, **asked})
        records = RecordDict({RECORD: record} if content is None else {**content, RECORD: record})
        return Message(
            content=records, dst_node_id=number, message_type=MessageType.TRAIN, group_id=self._group
        )


def _key_question(server: UnmaskingServer, number: int, keys: Mapping[int, list[bytes]]) -> dict[str, Any]:
    flat = [key for pair in keys.values() for key in pair]
    return {"numbers": list(keys), "keys": flat, "threshold": server.threshold(number)}


def _columns(name: str, shares: Mapping[int, bytes]) -> dict[str, Any]:
    return {"numbers": list(shares), name: list(shares.values())}


def _bytes_list(answer: ConfigRecord, name: str, count: int | None = None) -> list[bytes]:
    """Return a list of bytes of an answer, or an empty one if there is none of that length."""
    found = answer.get(name)
    right = isinstance(found, list) and all(isinstance(item, bytes) for item in found)
    return (
        cast(list[bytes], found)
        if right and (count is None or len(cast(list[bytes], found)) == count)
        else []
    )


def _pairs(answer: ConfigRecord, name: str) -> dict[int, bytes]:
    """Return what an answer says about other clients, by number."""
    numbers = answer.get("numbers")
    values = _bytes_list(answer, name)
    if not isinstance(numbers, list) or len(numbers) != len(values):
        return {}
    if not all(isinstance(number, int) for number in numbers):
        return {}
    return dict(zip(cast(list[int], numbers), values, strict=True))


def _sealed(answers: Mapping[int, ConfigRecord]) -> tuple[dict[int, dict[int, bytes]], dict[int, bytes]]:
    commitments = {n: c for n, a in answers.items() if isinstance(c := a.get("commitment"), bytes)}
    return {number: _pairs(answers[number], "sealed") for number in commitments}, commitments


def _vectors(answers: Mapping[int, ConfigRecord], mechanism: SecureSum) -> Iterable[tuple[int, Integers]]:
    """Yield the masked vectors of the right length; a client with another one counts as dropped out."""
    for number, answer in answers.items():
        given = answer.get("vector")
        vector = (
            unpacked(given, count=mechanism.size, bits=mechanism.bits) if isinstance(given, bytes) else None
        )
        if vector is not None:
            yield number, vector
