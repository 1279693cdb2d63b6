# SPDX-License-Identifier: Apache-2.0
"""A mod for a Flower `ClientApp`: its updates leave the client only inside a secure sum.

The mod wraps the app's own `train` function (or the `fit` of an older client). That function gets the model
and answers with a trained one. The mod takes the difference, clips it, adds noise and masks it.

Guarantee  What the server receives from a client in a round are public keys, encrypted shares, one masked
           vector, and shares of masks. Metrics, counts of examples and arrays of the app's reply are dropped.
           The noise is drawn here, by the client, before anything is sent: that of the mechanism in the
           client's own code, or more. The server cannot ask for less.
Edge cases An app that fails, or answers with NaN, other shapes or nothing, sends zeros with noise, like a
           client with nothing to say: a row must not decide who drops out. Its log tells the kind of error.
           A client that is asked for noise alone does not call its app.
Failure    If the server states another mechanism than the client was given, or asks for more rounds or for
           fewer neighbors, the client does not take part. Messages other than training are refused, whose
           replies have neither noise nor masks.
Not here   Who else is in the sum. A client cannot tell the others from nodes that the server made up: then
           its own share of noise is all that protects it (`SecureSum.against_server(helpers=...)`).
"""

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.federated.messages.planned_rounds import AccountOf, PlannedRounds
from sfumato.federated.secure_sum.encoding import client_generator, encode
from sfumato.federated.secure_sum.masking_client import MaskingClient, ProtocolError
from sfumato.federated.secure_sum.masks import packed
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.mechanisms.random import Generator

__all__ = ["RECORD", "mechanism_from_text", "mechanism_text", "secure_sum_mod"]

RECORD = "sfumato.secure_sum"
_STATE = "sfumato.secure_sum.state"

Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]
Floats = npt.NDArray[np.float64]

_log = logging.getLogger(__name__)


def secure_sum_mod(
    mechanism: SecureSum,
    *,
    rounds: int,
    neighbors: int | None = None,
    account_of: AccountOf | None = None,
    purpose: str = "updates in secure sums",
    generator: Generator | None = None,
) -> Mod:
    """Return a mod that sends the updates of an app through secure sums that the client has agreed to.

    Args:
        mechanism: What the client takes part in: this clip norm, cohort, least number of survivors and law,
            with this noise or more. A server that states anything else is refused. It is written in the
            client's own code: settings of a run of Flower come from those who start the run.
        rounds: The most vectors that the client sends: in a run of Flower, or with `account_of` in all.
        neighbors: Among how many other clients, at least, the secrets of this one are split; None: as many
            as the mechanism needs survivors. Only then, or with all others of the cohort, does the client
            itself see that enough clients are in the sum. Else the server is trusted to skip rounds that have
            too few.
        account_of: Returns the account of the client, a zero-out one, from Flower's context. It is charged
            for all rounds before the first, and keeps the count. Without it the count ends with the run of
            Flower: whoever starts another run gets as many rounds again.
        purpose: What the account keeps with the charge. Another purpose is another charge.
        generator: Source of noise. None uses the secure generator; any other kind is for study only.

    Returns:
        The mod, for `ClientApp(mods=[...])`.

    Raises:
        InvalidParameterError: If a number is below 1: without neighbors no mask would hide a vector.

    >>> from flwr.clientapp import ClientApp
    >>> agreed = SecureSum(dimension=650, clip_norm=1, noise_multiplier=1, cohort=100, least_survivors=90)
    >>> app = ClientApp(mods=[secure_sum_mod(agreed, rounds=10)])
    """
    if not isinstance(mechanism, SecureSum):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            "pass the mechanism that the client takes part in, a SecureSum. Without one the server would "
            "choose how little noise protects the client."
        )
    if neighbors is not None:
        _check.count(neighbors=neighbors)
    planned = PlannedRounds(
        _AllRounds(mechanism, rounds),
        rounds=rounds,
        purpose=purpose,
        account_of=account_of,
        generator=generator,
    )
    terms = _Terms(mechanism, neighbors, planned, generator)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        kind = message.metadata.message_type.partition(".")[0]  # "train.default" calls the same function
        if kind != MessageType.TRAIN:
            raise ProtocolError("this client answers messages of training only: no noise protects others.")
        if RECORD not in message.content.config_records:
            raise ProtocolError("this client trains in secure sums only; the message is not part of one.")
        client = _Session(message, context, message.content.config_records[RECORD], terms)
        answer = client.answer(call_next)
        return Message(RecordDict({RECORD: ConfigRecord(answer)}), reply_to=message)

    return mod


@dataclasses.dataclass(frozen=True)
class _AllRounds:
    """What all rounds together cost the client, with the least noise that it accepts."""

    mechanism: SecureSum
    rounds: int

    @property
    def relation(self) -> Relation:
        return Relation.ZERO_OUT

    def event(self) -> DpEvent:
        return dp.SelfComposedDpEvent(self.mechanism.event(), self.rounds)


@dataclasses.dataclass(frozen=True)
class _Terms:
    """What a client takes part in."""

    mechanism: SecureSum
    neighbors: int | None
    rounds: PlannedRounds
    generator: Generator | None

    def require(self, stated: SecureSum) -> None:
        """Raise unless the stated mechanism is the accepted one, with as much noise or more."""
        accepted = self.mechanism
        noise = max(stated.noise_multiplier, accepted.noise_multiplier)
        wanted = dataclasses.replace(accepted, noise_multiplier=noise)
        names = [field.name for field in dataclasses.fields(SecureSum)]
        others = [name for name in names if getattr(stated, name) != getattr(wanted, name)]
        if others:
            raise ProtocolError(
                f"the server states another {', '.join(others)} than this client accepts. Both must have the "
                "same SecureSum; the server may add noise, and not take any away."
            )

    def least_holders(self) -> int:
        """Return among how many clients, this one included, secrets must be split at least."""
        others = self.mechanism.least_survivors - 1  # a round with fewer is skipped
        return 1 + (others if self.neighbors is None else min(self.neighbors, others))

    def least_active(self) -> int:
        """Return how many clients must be in a sum; 0 where this client is told of a part of them."""
        everybody = self.neighbors is None or self.neighbors >= self.mechanism.cohort - 1
        return self.mechanism.least_survivors if everybody else 0


class _Session:
    """One message of a session, and the state that the client keeps between messages."""

    def __init__(self, message: Message, context: Context, given: ConfigRecord, terms: _Terms) -> None:
        self._message, self._context, self._given, self._terms = message, context, given, terms

    def answer(self, call_next: Call) -> dict[str, Any]:
        stage = self._given["stage"]
        if stage == "keys":
            return self._keys()
        mechanism, client = self._stored()
        if stage == "shares":
            found = self._shares(client)
        elif stage == "vector":
            found = self._vector(client, mechanism, call_next)
        elif stage == "reveal":
            active, dropped = (cast(list[int], self._given[name]) for name in ("active", "dropped"))
            found = _listed("shares", client.reveal(active, dropped))
        else:
            raise ProtocolError("the stage of the message is unknown.")
        self._store(mechanism, client)
        return found

    def _keys(self) -> dict[str, Any]:
        mechanism = mechanism_from_text(cast(str, self._given["mechanism"]))
        self._terms.require(mechanism)
        client = MaskingClient(
            number=self._message.metadata.dst_node_id,
            session=cast(bytes, self._given["session"]).hex(),
            least_active=self._terms.least_active(),
        )
        keys = client.public_keys()
        self._store(mechanism, client)
        return {"keys": keys}

    def _shares(self, client: MaskingClient) -> dict[str, Any]:
        numbers, keys = cast(list[int], self._given["numbers"]), cast(list[bytes], self._given["keys"])
        if len(set(numbers)) < self._terms.least_holders():
            raise ProtocolError("the server chose fewer neighbors than this client accepts.")
        public = {number: keys[2 * i : 2 * i + 2] for i, number in enumerate(numbers)}
        sealed, commitment = client.shares(public, threshold=cast(int, self._given["threshold"]))
        return {**_listed("sealed", sealed), "commitment": commitment}

    def _vector(self, client: MaskingClient, mechanism: SecureSum, call_next: Call) -> dict[str, Any]:
        numbers, sealed = cast(list[int], self._given["numbers"]), cast(list[bytes], self._given["sealed"])
        self._count()
        seed = cast(int, self._given["seed"])
        contributes = cast(bool, self._given["contributes"])
        update = self._update(mechanism, call_next) if contributes else np.zeros(mechanism.dimension)
        own = client_generator(self._terms.generator, client.number, seed)
        vector = encode(update, mechanism, seed=seed, generator=own)
        masked = client.masked(vector, dict(zip(numbers, sealed, strict=True)), bits=mechanism.bits)
        return {"vector": packed(masked, bits=mechanism.bits)}

    def _count(self) -> None:
        """Count a vector before it is sent, in memory that outlives sessions."""
        if not self._terms.rounds.take(self._context):
            raise ProtocolError("this client has taken part in as many rounds as it agreed to.")

    def _update(self, mechanism: SecureSum, call_next: Call) -> Floats:
        """Return the model of the server minus that of the app, or zeros."""
        names = cast(list[str], self._given["parameters"]) or None
        before = _flat(self._message.content, names)
        del self._message.content[RECORD]
        try:
            answer = ordinary(lambda: call_next(self._message, self._context))
            after = _flat(answer.content, names)
        except Exception as failure:  # a client whose rows make its app fail must not drop out: zeros instead
            _log.warning("the app failed with %s; this client adds zeros.", type(failure).__name__)
            return np.zeros(mechanism.dimension)
        if before.shape != (mechanism.dimension,) or after.shape != before.shape:
            _log.warning("the app's arrays have other shapes than the model; this client adds zeros.")
            return np.zeros(mechanism.dimension)
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is clipped to zeros
            return before - after

    def _stored(self) -> tuple[SecureSum, MaskingClient]:
        if _STATE not in self._context.state.config_records:
            raise ProtocolError("this client is in no session.")
        state = self._context.state.config_records[_STATE]
        client = MaskingClient.from_json(cast(str, state["client"]))
        if client.session != cast(bytes, self._given["session"]).hex():
            raise ProtocolError("the message belongs to another session.")
        return mechanism_from_text(cast(str, state["mechanism"])), client

    def _store(self, mechanism: SecureSum, client: MaskingClient) -> None:
        state = ConfigRecord({"mechanism": mechanism_text(mechanism), "client": client.to_json()})
        self._context.state.config_records[_STATE] = state


def mechanism_text(mechanism: SecureSum) -> str:
    """Return a mechanism as JSON.

    Args:
        mechanism: The mechanism.

    Returns:
        The text.
    """
    return json.dumps({**dataclasses.asdict(mechanism), "noise": mechanism.noise.value}, sort_keys=True)


def mechanism_from_text(text: str) -> SecureSum:
    """Return the mechanism that `mechanism_text` wrote.

    Args:
        text: What `mechanism_text` returned.

    Returns:
        The mechanism.

    Raises:
        ProtocolError: If the text is not that of a mechanism.

    >>> mechanism = SecureSum(dimension=2, clip_norm=1.0, noise_multiplier=1.0, cohort=3, least_survivors=2)
    >>> mechanism_from_text(mechanism_text(mechanism)) == mechanism
    True
    """
    try:
        facts: dict[str, Any] = json.loads(text)
        return SecureSum(**facts)
    except (ValueError, TypeError, KeyError, SfumatoError):
        raise ProtocolError("the text does not describe a mechanism of secure sums.") from None


def _listed(name: str, found: dict[int, bytes]) -> dict[str, Any]:
    return {"numbers": list(found), name: list(found.values())}


def _flat(content: RecordDict, names: list[str] | None) -> Floats:
    """Return the arrays of a message one after the other: those of these names, or all of them."""
    (record,) = content.array_records.values()
    arrays = [record[name].numpy() for name in (record if names is None else names)]
    return np.concatenate([np.zeros(0), *(np.ravel(array).astype(np.float64) for array in arrays)])
