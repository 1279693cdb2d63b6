# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from scipy.stats import chisquare

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.flower_mod import RECORD
from sfumato.federated.secure_sum.flower_round import secure_round
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.federated.secure_sum.simulated import simulated_sum
from sfumato.testing import seeded

ALPHA = 1e-6
SIZE = 16


def mechanism(**options):
    facts = {"dimension": SIZE, "clip_norm": 1.0, "noise_multiplier": 0.5, "cohort": 6, "least_survivors": 3}
    return SecureSum(**{**facts, **options})


def updates(count=6):
    rows = np.random.default_rng(0).normal(size=(count, SIZE)) / 4
    return {2**40 + n: row for n, row in enumerate(rows)}  # node ids are large


@pytest.mark.parametrize("noise", list(IntegerNoise))
@pytest.mark.parametrize("neighbors", [None, 4])
@pytest.mark.parametrize(
    "lost",
    [{}, {"keys": [0]}, {"shares": [1]}, {"vector": [2, 3]}, {"reveal": [4]}, {"keys": [0], "vector": [5]}],
)
def test_the_sum_is_bit_by_bit_the_simulated_one_whoever_drops_out(grid, model, noise, neighbors, lost):
    given, found = updates(), mechanism(noise=noise)
    nodes = list(given)
    lost = {stage: [nodes[i] for i in gone] for stage, gone in lost.items()}
    gone = {n for stage, several in lost.items() if stage != "reveal" for n in several}
    result = secure_round(
        grid(given, lost=lost, neighbors=neighbors, mechanism=found),
        nodes,
        found,
        content=model(SIZE),
        seed=8,
        neighbors=neighbors,
    )
    left = {
        n: 1.0 - (1.0 - row) for n, row in given.items() if n not in gone
    }  # as float64 subtraction rounds
    assert result.survivors == len(left)
    if result.skipped:  # a ring of four neighbors does not survive every two drop-outs
        assert neighbors == 4 and len(gone) == 2
        return
    expected = simulated_sum(
        np.stack(list(left.values())), found, seed=8, generator=seeded(11), numbers=list(left)
    )
    assert (result.total == expected).all()


def test_a_round_with_too_few_survivors_is_skipped_and_nothing_is_revealed(grid, model):
    given = updates()
    nodes = grid(given, lost={"vector": list(given)[:4]}, mechanism=mechanism())
    result = secure_round(nodes, list(given), mechanism(), content=model(SIZE), seed=8)
    assert result.skipped and result.survivors == 2
    assert not any("shares" in message.content[RECORD] for message in nodes.received)


def test_the_server_cannot_tell_a_masked_vector_from_uniform_residues(grid, model):
    size = 2**13
    rows = {n: np.full(size, 1.0) for n in range(1, 5)}
    found = mechanism(dimension=size, cohort=4)
    nodes = grid(rows, generator=None, mechanism=found)
    secure_round(nodes, list(rows), found, content=model(size), seed=1)
    vectors = [m.content[RECORD]["vector"] for m in nodes.received if "vector" in m.content[RECORD]]
    residues = [np.frombuffer(vector, "<u2") for vector in vectors]
    assert len(residues) == 4
    for residue in residues:
        assert len(residue) == size
        for byte in (residue >> 8, residue & 255):
            assert chisquare(np.bincount(byte, minlength=256)).pvalue > ALPHA
    together = np.corrcoef(np.stack(residues).astype(float))
    assert np.abs(together - np.eye(4)).max() < 6 / np.sqrt(size)


def test_without_masks_the_vectors_are_told_apart_at_once(grid, model, monkeypatch):
    """Negative control of the test above."""
    from sfumato.federated.secure_sum import masking_client

    monkeypatch.setattr(masking_client, "mask", lambda seed, *, count, **facts: np.zeros(count, np.int64))
    size = 2**13
    found = mechanism(dimension=size, cohort=4)
    nodes = grid({n: np.full(size, 1.0) for n in range(1, 5)}, generator=None, mechanism=found)
    secure_round(nodes, [1, 2, 3, 4], found, content=model(size), seed=1)
    (first, *_) = [m.content[RECORD]["vector"] for m in nodes.received if "vector" in m.content[RECORD]]
    assert chisquare(np.bincount(np.frombuffer(first, "<u2") >> 8, minlength=256)).pvalue < ALPHA


@pytest.mark.parametrize("stage", ["keys", "shares", "vector", "reveal"])
@pytest.mark.parametrize("what", ["empty", "nonsense", "words", "twice"])
def test_answers_that_are_nonsense_or_come_twice_do_not_stop_a_round(grid, model, stage, what):
    given = updates()
    bad = next(iter(given))

    def change(now, replies):
        (reply,) = replies
        if now != stage or reply.metadata.src_node_id != bad:
            return replies
        if what == "twice":
            return [reply, reply]
        nonsense = {"keys": ["a", "b"], "numbers": [1.5], "sealed": [b""], "commitment": 3, "vector": b"x"}
        nonsense["numbers"] = ["one"] if what == "words" else [1.5]
        nonsense["shares"], nonsense["commitment"] = [b""], b"x" if what == "words" else 3
        content = RecordDict({} if what == "empty" else {RECORD: ConfigRecord(nonsense)})
        changed = Message(content, reply_to=reply)
        changed.metadata.__dict__["_src_node_id"] = bad
        return [changed]

    nodes = grid(given, change=change, mechanism=mechanism())
    result = secure_round(nodes, list(given), mechanism(), content=model(SIZE), seed=8)
    stays = what == "twice" or stage == "reveal"
    assert not result.skipped and result.survivors == (6 if stays else 5)


def test_more_clients_than_the_cohort_or_one_twice_are_refused(grid, model):
    for clients in (list(range(7)), [1, 1]):
        with pytest.raises(InvalidParameterError, match="cohort=6"):
            secure_round(grid({}), clients, mechanism(), content=model(SIZE), seed=0)


def test_nobody_invited_is_a_skipped_round(grid, model):
    result = secure_round(grid({}), [], mechanism(), content=model(SIZE), seed=0)
    assert result.skipped and result.survivors == 0
