"""Sockets that are read and written: who looks again when a send may have taken the news of a record that came."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import pytest

from zlink_nogil.binding import ServerSocket
from zlink_nogil.errors import Unavailable
from zlink_nogil.state import StateLane


class Raw:
    """In place of a ROUTER: `room` for each client, and what has come."""

    def __init__(self) -> None:
        self.room: dict[bytes, int] = {}
        self.sent: list[tuple[bytes, bytes]] = []
        self.come: deque[tuple[bytes, bytes]] = deque()

    def router(self, most: int) -> Raw:  # noqa: ARG002 - the real signature; the context is this, too
        return self

    def bind(self, endpoint: str) -> str:
        return endpoint

    def descriptors(self) -> tuple[int, int]:
        return 1, 2

    def connection_events(self) -> list[Any]:
        return []

    def try_send(self, alias: bytes, record: bytes) -> bool:
        if alias not in self.room:
            raise LookupError(alias)
        if not self.room[alias]:
            return False
        self.room[alias] -= 1
        self.sent.append((alias, record))
        return True

    def receive(self) -> tuple[bytes, bytes] | None:
        return self.come.popleft() if self.come else None

    def readable(self) -> bool:
        return bool(self.come)


class World:
    def __init__(self, **room: int) -> None:
        self.raw = Raw()
        self.raw.room = {name.encode(): count for name, count in room.items()}
        self.wakes = 0
        self.ended: list[Any] = []
        lane = StateLane("server")
        self.socket = ServerSocket(self.raw, lane, "tcp://x:1", 1000, self.wake, self.wake)  # type: ignore[arg-type]
        for name in self.raw.room:
            self.socket.run(self.socket.let_in, name)

    def wake(self) -> None:
        self.wakes += 1

    def send(self, alias: bytes, record: bytes) -> None:
        self.socket.run(self.socket.send, alias, record, self.ended.append)

    def woken(self) -> int:
        wakes, self.wakes = self.wakes, 0
        return wakes


def test_a_send_wakes_the_leader_only_when_there_is_something_to_read():
    world = World(a=2)
    world.send(b"a", b"1")
    assert world.woken() == 0
    world.raw.come.append((b"a", b"x"))
    world.send(b"a", b"2")
    assert world.woken() == 1
    assert world.socket.claim(10, 1000, 1e9, itertools.count().__next__) == ([(b"a", b"x")], False)


def test_the_leader_looks_again_once_after_it_has_sent_the_last_that_waited():
    world = World(a=0)
    world.send(b"a", b"1")
    world.send(b"a", b"2")
    assert world.socket.next_look(5.0) == pytest.approx(5.01)  # something waits: the leader comes back by itself
    world.raw.room[b"a"] = 1
    world.woken()
    world.socket.run(world.socket.service)
    assert (world.woken(), world.socket.next_look(5.0)) == (0, pytest.approx(5.01))
    world.raw.room[b"a"] = 1
    world.socket.run(world.socket.service)  # any of its sends may have taken the descriptor's edge
    assert (world.woken(), world.socket.next_look(5.0)) == (1, None)
    world.socket.run(world.socket.service)
    assert world.woken() == 0  # once: the leader does not spin, whatever there is to read and may not be claimed
    assert world.raw.sent == [(b"a", b"1"), (b"a", b"2")]
    assert world.ended == [None, None]


def test_a_full_client_holds_up_nobody_else_and_its_end_ends_what_waits_for_it():
    world = World(a=0, b=2)
    world.send(b"a", b"1")
    world.send(b"b", b"2")
    assert world.raw.sent == [(b"b", b"2")]
    del world.raw.room[b"a"]
    world.socket.run(world.socket.service)
    assert [type(error) for error in world.ended] == [Unavailable]
    with pytest.raises(Unavailable):
        world.send(b"a", b"3")
    world.send(b"b", b"4")
    assert world.raw.sent == [(b"b", b"2"), (b"b", b"4")]
    assert world.socket.run(world.socket.backlog) == 0
