# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.federated.secure_sum.masking_client import MaskingClient
from sfumato.federated.secure_sum.unmasking_server import UnmaskingServer

SIZE, BITS = 16, 16


def run(count, *, least=3, neighbors=None, lost_shares=(), lost_vectors=(), lost_answers=(), spoil=None):
    """Run a session of `count` clients; return the server, the sum it found and the vectors."""
    server = UnmaskingServer(size=SIZE, bits=BITS, least_survivors=least, neighbors=neighbors)
    made = {
        n: MaskingClient(number=n, session=server.session.hex(), least_active=0)
        for n in range(10, 10 + count)
    }
    near = server.meet({n: client.public_keys() for n, client in made.items()})
    sent = {
        n: made[n].shares(k, threshold=server.threshold(n)) for n, k in near.items() if n not in lost_shares
    }
    inbox = server.forward({n: s for n, (s, _) in sent.items()}, {n: c for n, (_, c) in sent.items()})
    vectors = {n: np.random.default_rng(n).integers(0, 2**BITS, SIZE) for n in inbox}
    masked = [(n, made[n].masked(vectors[n], inbox[n], bits=BITS)) for n in inbox if n not in lost_vectors]
    if not server.add_up(masked):
        return server, None, vectors
    answers = {n: made[n].reveal(*ask) for n, ask in server.questions().items() if n not in lost_answers}
    if spoil is not None:
        spoil(answers)
    return server, server.unmasked(answers), vectors


@pytest.mark.parametrize("neighbors", [None, 4])
@pytest.mark.parametrize(
    ("lost_shares", "lost_vectors", "lost_answers"),
    [((), (), ()), ((10,), (), ()), ((), (11, 12), ()), ((), (), (13,)), ((10,), (11,), (12,))],
)
def test_the_sum_is_exact_whoever_drops_out(neighbors, lost_shares, lost_vectors, lost_answers):
    server, total, vectors = run(
        8, neighbors=neighbors, lost_shares=lost_shares, lost_vectors=lost_vectors, lost_answers=lost_answers
    )
    left = [n for n in vectors if n not in lost_vectors]
    assert server.survivors == len(left)
    if total is None:  # with few neighbors, drop-outs may leave too few shares: the round is skipped
        assert neighbors is not None and (lost_vectors or lost_shares)
        return
    assert (total == sum(vectors[n] for n in left) % 2**BITS).all()


def test_too_few_vectors_skip_the_round():
    server, total, _ = run(5, least=4, lost_vectors=(10, 11))
    assert total is None and server.survivors == 3


def test_too_few_keys_or_shares_skip_the_round():
    server = UnmaskingServer(size=SIZE, bits=BITS, least_survivors=3)
    assert server.meet({}) == {} and server.meet({1: [b"a", b"b"], 2: [b"c", b"d"]}) == {}
    assert run(4, least=4, lost_shares=(10,))[1] is None


def test_too_few_answers_skip_the_round():
    assert run(6, lost_answers=(10, 11, 12))[1] is None


def test_wrong_shares_are_noticed():
    def spoil(answers):
        for shares in answers.values():
            shares[10] = bytes(66)

    assert run(5, spoil=spoil)[1] is None
    assert run(5, lost_vectors=(10,), spoil=spoil)[1] is None


def test_a_client_that_leaves_out_a_neighbor_does_not_take_part():
    server = UnmaskingServer(size=SIZE, bits=BITS, least_survivors=2)
    made = {n: MaskingClient(number=n, session=server.session.hex(), least_active=0) for n in (1, 2, 3, 4)}
    near = server.meet({n: client.public_keys() for n, client in made.items()})
    sent = {n: made[n].shares(k, threshold=server.threshold(n)) for n, k in near.items()}
    sealed = {n: dict(s) for n, (s, _) in sent.items()}
    del sealed[1][2]
    inbox = server.forward(sealed, {n: c for n, (_, c) in sent.items()})
    assert set(inbox) == {2, 3, 4} and all(1 not in shares for shares in inbox.values())


def test_each_client_has_about_as_many_neighbors_as_asked_for():
    server = UnmaskingServer(size=SIZE, bits=BITS, least_survivors=2, neighbors=4)
    near = server.meet({n: [bytes([n]), bytes([n, 1])] for n in range(20)})
    assert {len(keys) for keys in near.values()} == {5}
    assert all(n in near[m] for n, keys in near.items() for m in keys)  # both ways
    assert server.threshold(0) == 3
