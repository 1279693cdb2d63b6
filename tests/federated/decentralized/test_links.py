# SPDX-License-Identifier: Apache-2.0
import math
import socket
import struct
import threading

import pytest
import torch

from sfumato.federated.decentralized.links import LOOPBACK, Links

TOKEN = bytes(range(32))
PATIENT = 20.0


@pytest.fixture
def opened():
    """Collect what a test opens, and close it: links all at once, as they wait for each other."""
    things = []
    yield things
    for connection in (thing for thing in things if isinstance(thing, socket.socket)):
        connection.close()
    closing = [threading.Thread(target=thing.close) for thing in things if isinstance(thing, Links)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()


@pytest.fixture
def link_of(opened):
    def made(number=0, neighbors=(1,), *, size=3, timeout=PATIENT):
        opened.append(Links(number, neighbors, size=size, token=TOKEN, timeout=timeout))
        return opened[-1]

    return made


@pytest.fixture
def stranger(opened):
    def made(port, token=TOKEN, number=1):
        opened.append(socket.create_connection((LOOPBACK, port), timeout=PATIENT))
        opened[-1].sendall(struct.pack(">32sQ", token, number))
        return opened[-1]

    return made


@pytest.fixture
def pair(link_of):
    def made(size=3):
        links = [link_of(n, [1 - n], size=size) for n in range(2)]
        for link in links:
            link.connect({n: other.port for n, other in enumerate(links)})
        return links

    return made


def frame(step, values, *, count=None):
    payload = struct.pack(f"<{len(values)}f", *values)
    return struct.pack(">QQ", step, len(payload) if count is None else count) + payload


def test_messages_arrive_bit_by_bit_whatever_their_size(pair):
    links = pair(size=400_000)  # larger than the buffers of a socket
    sent = [torch.randn(400_000) for _ in links]
    for link, message in zip(links, sent, strict=True):
        link.send(0, message)
    assert torch.equal(links[0].receive(0)[1], sent[1]) and torch.equal(links[1].receive(0)[0], sent[0])


def test_a_message_that_came_early_is_used_in_its_round(pair):
    first, second = pair()
    for step in range(3):
        second.send(step, torch.full((3,), float(step)))
    assert [first.receive(step)[1].tolist() for step in range(3)] == [[float(step)] * 3 for step in range(3)]


def test_a_neighbor_that_was_never_there_is_not_waited_for(link_of):
    alone = link_of(0, [1, 2])
    alone.connect({0: alone.port})
    assert alone.receive(0) == {}


def test_a_neighbor_that_closes_is_left_out_after_its_last_message(link_of, stranger):
    link = link_of()
    link.connect({0: link.port, 1: 1})
    peer = stranger(link.port)
    peer.sendall(frame(0, [1.0, 2.0, 3.0]))
    peer.close()
    assert link.receive(0)[1].tolist() == [1.0, 2.0, 3.0]
    assert link.receive(1) == {}


def test_a_silent_neighbor_is_left_out_for_good(link_of, stranger):
    link = link_of(timeout=0.05)
    link.connect({0: link.port, 1: 1})
    peer = stranger(link.port)
    assert link.receive(0) == {}
    peer.sendall(frame(0, [9.0, 9.0, 9.0]))  # late
    assert link.receive(1) == {}  # without waiting


def test_frames_of_another_length_are_no_messages_and_the_next_one_counts(link_of, stranger):
    link = link_of()
    link.connect({0: link.port, 1: 1})
    peer = stranger(link.port)
    peer.sendall(frame(0, [1.0] * 7) + frame(1, []) + frame(2, [1.0, math.nan, 2.0]))
    assert link.receive(0) == {} and link.receive(1) == {}
    assert link.receive(2)[1].isnan().tolist() == [False, True, False]  # a node drops it


@pytest.mark.parametrize(
    ("token", "number"), [(bytes(32), 1), (TOKEN, 7), (TOKEN, 0)], ids=["token", "node", "self"]
)
def test_strangers_are_disconnected(link_of, stranger, token, number):
    link = link_of()
    assert stranger(link.port, token, number).recv(1) == b""


def test_a_second_connection_of_a_neighbor_is_refused(link_of, stranger):
    link = link_of()
    first = stranger(link.port)
    first.sendall(frame(0, [1.0, 2.0, 3.0]))
    link.receive(0)
    assert stranger(link.port).recv(1) == b""
