"""Calls that wait for the first server, under every schedule: all go out, once, each caller's in order."""

from __future__ import annotations

from zlink_nogil import _sync
from zlink_nogil.errors import Unavailable
from zlink_nogil.messaging import waiting_line
from zlink_nogil.messaging.waiting_line import WaitingLine

from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = [waiting_line.__name__]


class _Operation:
    def __init__(self, name: str) -> None:
        self.name = name
        self.over = False

    def done(self) -> bool:
        return self.over


class Client:
    """A line, its callers, and servers that come and go."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.ready = False
        self.refuse = 0
        self.sent: list[str] = []
        self.asked: list[_Operation] = []
        self.sending: set[int] = set()
        self.line = WaitingLine(self._choose, self._dispatch, lambda: None)  # type: ignore[arg-type]
        s.check("nobody is left in the line", lambda: self.line.empty and not self.line._line)
        s.check("all went out, once", lambda: sorted(self.sent) == sorted(o.name for o in self.asked if not o.over))

    def _choose(self) -> object | None:
        return self if self.ready else None

    def _dispatch(self, operation: _Operation, _: object) -> None:
        with self.s.alone(self.sending, "one sends at a time"):
            if self.refuse:
                self.refuse -= 1
                raise Unavailable("it has just gone")
            self.sent.append(operation.name)

    def call(self, *names: str) -> None:
        for name in names:
            operation = _Operation(name)
            self.asked.append(operation)
            self.line.enter(operation)  # type: ignore[arg-type]
            self.line.flush()

    def come(self) -> None:
        self.ready = True
        self.line.flush()

    def in_order(self, *names: str) -> bool:
        return [name for name in self.sent if name in names] == list(names)


def calls_and_a_server_that_comes(s: Scenario) -> None:
    client = Client(s)
    s.thread("caller", client.call, "a", "b")
    s.thread("other", client.call, "x")
    s.thread("server", client.come)
    s.check("each caller's in order", lambda: client.in_order("a", "b"))


def test_calls_and_a_server_that_comes() -> None:
    run_random(calls_and_a_server_that_comes)
    run_exhaustive(calls_and_a_server_that_comes, preemptions=1, switches=0)
    run_lines(calls_and_a_server_that_comes, MODULES)


def a_server_that_goes_again(s: Scenario) -> None:
    """What it did not accept goes to the next; who has ended is not sent."""
    client = Client(s)
    client.refuse = 1
    client.call("a", "b", "c")
    client.asked[1].over = True
    s.thread("server", lambda: (client.come(), client.come()))
    s.thread("caller", lambda: (client.call("x"), client.come()))
    s.check("in order", lambda: client.in_order("a", "c"))


def test_a_server_that_goes_again() -> None:
    run_random(a_server_that_goes_again)
    run_exhaustive(a_server_that_goes_again, preemptions=1, switches=0)


def time_is_over(s: Scenario) -> None:
    """Who has waited too long is taken out, or goes out; never both."""
    client = Client(s)
    client.call("a")
    ended: list[str] = []

    def expire() -> None:
        over, again = client.line.expire(_sync.monotonic() + waiting_line.MOST_WAIT)
        for operation in over:
            operation.over = True  # type: ignore[attr-defined]
            ended.append(operation.name)  # type: ignore[attr-defined]
        s.expect(bool(over) or again is not None or client.sent == ["a"], "it is looked at again")

    s.thread("server", client.come)  # first: one preemption is enough to be in the middle of it
    s.thread("clock", expire)
    s.check("one end", lambda: len(ended) + len(client.sent) == 1)


def test_time_is_over() -> None:
    run_random(time_is_over)
    run_exhaustive(time_is_over, preemptions=1, switches=0)
    run_lines(time_is_over, MODULES)
