"""`Liveness` in a `Topology` under every schedule: what is heard, what is asked, and who is given up, from three threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.topology import LIFE_BYTES, Topology
from zlink_nogil.messaging.wire import Kind, unpack

from .harness import Scenario, run_exhaustive, run_random

RECORD = 1 << 20
INTERVAL = 1.0
DEAD_AFTER = 4.0
FROM_B = b"b" + bytes(LIFE_BYTES)


class _Out:
    """In place of an `OutSocket`."""

    def __init__(self, said: Callable[[Kind, bytes, bytes], None]) -> None:
        self.said = said
        self.aliases = itertools.count(1)
        self.full = False

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def connect(self, endpoint: str, key: str | None) -> bytes:  # noqa: ARG002 - the real signature
        return f"{endpoint} {next(self.aliases)}".encode()

    def disconnect(self, alias: bytes) -> None: ...

    def is_full(self, alias: bytes) -> bool:  # noqa: ARG002
        return self.full

    def send(self, alias: bytes, record: bytes, done: object) -> None:  # noqa: ARG002
        header = unpack(record)
        self.said(header.kind, alias, record[header.payload_at :])


class Watching:
    """A node that knows one other, which welcomes it at once, and whoever leads its sockets."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.wake = _sync.EventFd()
        self.data, completions = _Out(self._said), _Out(self._said)
        self.lost: list[bytes] = []
        operations: Any = SimpleNamespace(out=self.data, wake=self.wake.set, peer_lost=self.lost.append)
        me = Introduction("m", "a", 1, "tcp://a:1", "tcp://a:2", {}, RECORD)
        self.topology = Topology(me, operations, completions, Identity(None), INTERVAL, DEAD_AFTER)  # type: ignore[arg-type]
        self.aliases: list[bytes] = []
        self.tokens: list[int] = []
        self.asked: list[float] = []
        self.outstanding = False
        self.topology.connect({"tcp://b:1": None})
        self.welcome()
        s.check("a welcome for each connection", lambda: len(self.aliases) <= len(self.tokens))

    def _said(self, kind: Kind, alias: bytes, said: bytes) -> None:
        if kind is Kind.HELLO:
            self.aliases.append(alias)
            self.tokens.append(Introduction.unpack(said).token)
        elif kind is Kind.PROBE:
            self.s.expect(alias == self.aliases[-1], "over the present connection")
            self.s.expect(not self.outstanding, "one question at a time")
            self.outstanding = True
            self.asked.append(self.s.now)

    def welcome(self) -> None:
        """The other node answers the last hello."""
        them = Introduction("m", "b", 1, "tcp://b:1", "tcp://b:2", {}, RECORD, answers=self.tokens[-1])
        self.topology.on_welcome(FROM_B, them)
        self.outstanding = False

    def hear(self) -> None:
        self.topology.heard([FROM_B])
        self.outstanding = False

    def hear_at(self, *times: float) -> None:
        """Seconds from the beginning."""
        for time in times:
            self.s.sleep(1000.0 + time - self.s.now)
            self.hear()

    def lead(self, until: float) -> None:
        """Whoever leads the data sockets, so many seconds."""
        epoll = _sync.Epoll()
        epoll.register(self.wake.fileno(), 1)
        while (now := _sync.monotonic()) < 1000.0 + until:
            again = self.topology.manage()
            epoll.poll(min(1000.0 + until, 1e9 if again is None else again) - now)
            self.wake.clear()

    def ready(self) -> bool:
        return "b" in self.topology.candidates.ready


def traffic_and_questions(s: Scenario) -> None:
    """Whatever is heard counts, over whichever connection; an answer that takes its time is waited for."""
    watching = Watching(s)
    s.thread("data", watching.lead, 8.5)
    s.thread("completions", watching.hear_at, 1.0, 2.0, 5.5)
    s.thread("traffic", watching.hear_at, 1.0, 6.0)
    s.check("it lives", lambda: not watching.lost and watching.ready())
    s.check("asked when it was silent", lambda: len(watching.asked) >= 2)


def test_traffic_and_questions() -> None:
    run_random(traffic_and_questions)
    run_exhaustive(traffic_and_questions, preemptions=1, switches=1)


def silent_and_lost(s: Scenario) -> None:
    """Given up for dead, or seen to be lost at that very moment: it goes once, and comes back as it has come."""
    watching = Watching(s)
    first = watching.aliases[0]

    def lose() -> None:
        s.sleep(DEAD_AFTER)
        watching.topology.lost(first)
        watching.topology.lost(first)

    s.thread("monitor", lose)
    s.thread("data", watching.lead, 4.5)
    s.check("asked once", lambda: len(watching.asked) == 1)
    s.check("lost once", lambda: watching.lost == [first])
    s.check("connected again", lambda: len(watching.aliases) == 2 and not watching.ready())


def silent_and_back(s: Scenario) -> None:
    """Whoever is back is watched as before; what is still heard of its last connection, or of its end, hurts nobody."""
    watching = Watching(s)
    first = watching.aliases[0]

    def come_back() -> None:
        s.sleep(DEAD_AFTER + 0.5)
        s.expect(not watching.ready(), "given up")
        watching.welcome()
        watching.topology.lost(first)
        s.expect(watching.ready(), "back")

    s.thread("data", watching.lead, 9.0)
    s.thread("completions", come_back)
    s.thread("traffic", watching.hear_at, DEAD_AFTER + 0.5)
    s.check("lost twice, once each", lambda: watching.lost == watching.aliases[:2])
    s.check("and connected again", lambda: len(watching.aliases) == 3)
    s.check("asked once each", lambda: len(watching.asked) == 2)


def test_silent() -> None:
    run_random(silent_and_lost)
    run_exhaustive(silent_and_lost, preemptions=1, switches=1)
    run_random(silent_and_back)
    run_exhaustive(silent_and_back, preemptions=1, switches=1)


def heard_at_the_last_moment(s: Scenario) -> None:
    """It lives, or has been given up before; never both."""
    watching = Watching(s)
    s.thread("data", watching.lead, 4.5)
    s.thread("completions", watching.hear_at, DEAD_AFTER)
    s.check("either", lambda: watching.ready() == (not watching.lost) == (len(watching.aliases) == 1))


def no_room_for_a_question(s: Scenario) -> None:
    """It is asked as soon as there is room, at the next look."""
    watching = Watching(s)
    watching.data.full = True

    def make_room() -> None:
        s.sleep(1.5)
        watching.data.full = False

    s.thread("data", watching.lead, 2.5)
    s.thread("room", make_room)
    s.check("asked once", lambda: [round(time - 1000.0) for time in watching.asked] == [2])


def held_up(s: Scenario) -> None:
    """Who looks late has not read what came: nobody is dead for that."""
    watching = Watching(s)

    def lead_late() -> None:
        s.sleep(6.0)
        watching.lead(8.5)

    s.thread("data", lead_late)
    s.thread("completions", watching.hear_at, 6.0, 8.5)
    s.check("it lives", lambda: not watching.lost and watching.ready())


def test_the_rest_of_what_can_be_late() -> None:
    for scenario in (heard_at_the_last_moment, no_room_for_a_question, held_up):
        run_random(scenario, 50)
        run_exhaustive(scenario, preemptions=1, switches=1)
