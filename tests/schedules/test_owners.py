"""`Owners` under every schedule: admit, sweep idle queues away, meet a retired one, close."""

from __future__ import annotations

from typing import Any, Final

import pytest

from zlink_nogil import _sync
from zlink_nogil.errors import ShuttingDown
from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue, Turn
from zlink_nogil.messaging import owners as owners_module
from zlink_nogil.messaging.owners import Owners
from zlink_nogil.scheduler import WorkerPool

from .harness import Scenario, run_exhaustive, run_kept, run_lines, run_random

MODULES = ["zlink_nogil.messaging.owners"]


class Note(Turn):
    """A message to an owner; `then` is what its handler does."""

    def __init__(self, watched: Watched, key: str, name: str, then: Any = None) -> None:
        super().__init__()
        self.watched = watched
        self.key = key
        self.name = name
        self.then = then

    def begin(self) -> None:
        with self.watched.s.alone(self.watched.inside.setdefault(self.key, set()), "one turn of an owner at a time"):
            self.watched.s.expect(not self.watched.over, "nothing runs once close has returned")
            self.watched.look_at(self)
            if self.then is not None:
                self.then()

    def succeed(self, value: Any) -> None:  # noqa: ARG002 - the interface
        self.watched.ends.append((self.name, "ran"))

    def fail(self, error: BaseException) -> None:
        self.watched.ends.append((self.name, type(error).__name__))


class Watched:
    """Owners that are swept as soon as there is more than one, and what became of each message."""

    def __init__(self, s: Scenario) -> None:
        owners_module.FIRST_SWEEP = 1  # type: ignore[misc] # put back after the run, as every global
        self.s = s
        self.pool = WorkerPool(2)
        self.owners = Owners(self.pool, ExecutionLanePolicy(), 10)
        self.inside: dict[str, set[int]] = {}
        self.ends: list[tuple[str, str]] = []
        self.sent: list[str] = []
        self.over = False
        self.queues: dict[str, list[SerialExecutionQueue]] = {}
        s.check("an end for each, once", lambda: sorted(name for name, _ in self.ends) == sorted(self.sent))

    def admit(self, key: str, *names: str, then: Any = None) -> None:
        for name in names:
            self.sent.append(name)
            for turn, error in self.owners.admit(("channel", key), [Note(self, key, name, then)]):
                turn.fail(error)

    def look_at(self, note: Note) -> None:
        self.s.expect(not note.queue.retired, "a queue that is retired has nothing to run")
        known = self.queues.setdefault(note.key, [])
        if note.queue not in known:
            known.append(note.queue)
        self.s.expect(all(queue.retired for queue in known if queue is not note.queue), "one open queue per owner")

    def ran(self, *names: str) -> list[str]:
        return [name for name, how in self.ends if how == "ran" and (not names or name in names)]

    def close(self) -> None:
        self.owners.close(100.0)
        self.over = True


def admit_and_sweep(s: Scenario) -> None:
    """Whoever meets a queue that was swept away takes the next one; one owner never has two that are open."""
    watched = Watched(s)
    s.thread("1", watched.admit, "a", "a1", "a2")
    s.thread("2", watched.admit, "b", "b1")
    s.thread("3", watched.admit, "a", "a3")
    s.check("all of them ran", lambda: len(watched.ran()) == 4)
    s.check("in order", lambda: watched.ran("a1", "a2") == ["a1", "a2"])


def test_admit_and_sweep() -> None:
    run_random(admit_and_sweep)
    run_exhaustive(admit_and_sweep, preemptions=1, switches=0)
    run_lines(admit_and_sweep, MODULES)


def a_million_keys(s: Scenario) -> None:
    """Idle queues do not pile up."""
    watched = Watched(s)

    def visit() -> None:
        for key in "abcdefgh":
            watched.admit(key, key)
            s.sleep(1.0)
            s.expect(len(watched.owners) <= 2, "idle owners are dropped")

    s.thread("visitor", visit)


def test_a_million_keys() -> None:
    run_random(a_million_keys, 50)


def closing(s: Scenario) -> None:
    """What was accepted has ended when `close` returns, also what owners give each other; the rest is refused."""
    watched = Watched(s)
    s.thread("1", lambda: watched.admit("a", "a1", then=lambda: watched.admit("b", "b1")))
    s.thread("2", watched.admit, "c", "c1")
    s.thread("closer", watched.close)
    s.check("run or refused", lambda: {how for _, how in watched.ends} <= {"ran", ShuttingDown.__name__})


def test_closing() -> None:
    run_random(closing)
    run_exhaustive(closing, preemptions=1, switches=0)
    run_lines(closing, MODULES)


def closing_while_an_owner_comes(s: Scenario) -> None:
    """An owner that is made while the node closes is closed as well, or never made."""
    watched = Watched(s)
    s.thread("closer", watched.close)
    s.thread("1", watched.admit, "a", "a1")


def test_closing_while_an_owner_comes() -> None:
    run_random(closing_while_an_owner_comes)
    run_exhaustive(closing_while_an_owner_comes, preemptions=2, switches=0)


def work_for_each_other(s: Scenario) -> None:
    """Owners that are waited for get the time to finish what they give each other."""
    watched = Watched(s)

    def give() -> None:
        s.sleep(1.0)
        watched.admit("b", "b1", then=lambda: s.sleep(1.0))

    def drain() -> None:
        s.sleep(0.5)
        watched.owners.drain(s.now + 100.0)
        s.expect(watched.ran() == ["a1", "b1"], "all of it has run")

    s.thread("sender", lambda: watched.admit("a", "a1", then=give))
    s.thread("drainer", drain)


def test_work_for_each_other() -> None:
    run_random(work_for_each_other, 100)
    run_exhaustive(work_for_each_other, preemptions=1, switches=0)


def work_given_while_closing(s: Scenario) -> None:
    """What an owner gives another while the node drains is finished, not ended as `ShuttingDown` by the close after it."""
    watched = Watched(s)
    watched.admit("b", "b0")
    watched.admit("a", "a1", then=lambda: watched.admit("b", "b1"))

    def drain_and_close() -> None:  # as a node does
        watched.owners.drain(s.now + 100.0)
        s.expect(len(watched.ran()) == 3, "drained means that all of it has run")
        watched.close()

    s.thread("closer", drain_and_close)
    s.check("all of it has run", lambda: sorted(watched.ran("b0", "a1", "b1")) == ["a1", "b0", "b1"])


def test_work_given_while_closing() -> None:
    run_exhaustive(work_given_while_closing, preemptions=1, switches=0)
    run_random(work_given_while_closing)


def work_moves_on_behind_the_look(s: Scenario) -> None:
    """An owner that was seen idle is given work by one that has not been looked at yet."""
    watched = Watched(s)
    began = _sync.Event()

    def give() -> None:
        began.wait()
        watched.admit("b", "b1", then=lambda: s.sleep(1.0))

    def drain() -> None:
        began.set()
        watched.owners.drain(s.now + 100.0)
        s.expect(watched.ran("a1", "b1") == ["a1", "b1"], "drained means that all of it has run")

    watched.admit("b", "b0")
    watched.admit("a", "a1", then=give)
    s.thread("drainer", drain)


def test_work_moves_on_behind_the_look() -> None:
    run_exhaustive(work_moves_on_behind_the_look, preemptions=1, switches=0)


KEPT: Final[dict[str, tuple[Any, ...]]] = {
    "drained while work moves on": (work_given_while_closing, 81),
}
"""Bugs that were there, and the scenario and seed that show each."""


@pytest.mark.parametrize("bug", KEPT)
def test_kept(bug: str) -> None:
    run_kept(*KEPT[bug])
