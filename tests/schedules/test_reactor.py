"""`Reactor` under every schedule: waits, readiness, cancels, closing at once; each wait has one end, and nothing is left."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, InvalidOperation, ShuttingDown, Unavailable
from zlink_nogil.scheduler import StandBy
from zlink_nogil.scheduler.reactor import READABLE, WRITABLE, Reactor

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .harness.descriptors import Descriptor

MODULES = ["zlink_nogil.scheduler.reactor", "zlink_nogil.scheduler.readiness"]


class Waits:
    """A reactor, and how each wait ended."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.standby = StandBy()
        self.reactor = Reactor(self.standby)
        self.ends: list[str] = []

    def wait(self, descriptor: Descriptor, direction: int = READABLE, cancel: bool = False) -> None:
        """Wait, or cancel at once, and note the end."""
        try:
            wait = self.reactor.wait(descriptor, direction)
        except InvalidOperation:
            self.ends.append("refused")
            return
        except ShuttingDown:
            self.ends.append("closed")
            return
        cancelled = cancel and wait.cancel()
        try:
            wait.result()
        except Cancelled:
            self.s.expect(cancelled, "nobody else cancelled it")
            self.ends.append("cancelled")
        except Unavailable:
            self.ends.append("unavailable")
        except ShuttingDown:
            self.ends.append("closed")
        else:
            self.s.expect(not cancelled, "it was cancelled")
            self.s.expect(descriptor.state & direction, "it is ready")
            self.ends.append("ready")

    def check(self, *ends: tuple[str, ...]) -> None:
        """In the end every wait ended in one of these ways (sorted), and the reactor goes without a trace."""
        self.s.check(f"the waits end as one of {ends}", lambda: tuple(sorted(self.ends)) in ends)
        self.s.check("nothing waits", lambda: self.reactor.waiting() == 0)
        self.s.check("nothing is armed", lambda: not any(i.mask for i in self.reactor._epoll._interests.values()))  # type: ignore[attr-defined]


def two_directions(s: Scenario) -> None:
    """Two waits for one descriptor; it is ready for one after it has been for the other."""
    waits, descriptor = Waits(s), s.descriptor()

    def read() -> None:
        waits.wait(descriptor, READABLE)
        descriptor.raise_(select.EPOLLOUT)

    s.thread("reader", read)
    s.thread("writer", waits.wait, descriptor, WRITABLE)
    s.thread("peer", descriptor.raise_, select.EPOLLIN)
    waits.check(("ready", "ready"))


def test_two_directions() -> None:
    run_random(two_directions)
    run_exhaustive(two_directions, preemptions=1, switches=0)
    run_lines(two_directions, MODULES)


def ready_or_cancelled(s: Scenario) -> None:
    """One direction is given up while both become ready: the other is not lost."""
    waits, descriptor = Waits(s), s.descriptor()
    s.thread("reader", waits.wait, descriptor, READABLE)
    s.thread("writer", waits.wait, descriptor, WRITABLE, True)
    s.thread("peer", descriptor.raise_, select.EPOLLIN | select.EPOLLOUT)
    waits.check(("cancelled", "ready"), ("ready", "ready"))


def test_ready_or_cancelled() -> None:
    run_random(ready_or_cancelled)
    run_exhaustive(ready_or_cancelled, preemptions=1, switches=0)
    run_lines(ready_or_cancelled, MODULES)


def events_do_not_outlive_their_wait(s: Scenario) -> None:
    """What was reported for a wait that was given up does not end the next one."""
    waits, descriptor = Waits(s), s.descriptor()
    waiting_again = _sync.Event()

    def read() -> None:
        first = waits.reactor.wait(descriptor, READABLE)
        descriptor.raise_()
        s.step()
        waits.ends.append("cancelled" if first.cancel() else "ready")
        descriptor.lower()
        second = waits.reactor.wait(descriptor, READABLE)
        s.step()
        s.expect(not second.done(), "it is not ready")
        waiting_again.set()
        second.result()
        s.expect(descriptor.state, "it is ready")

    def make_ready() -> None:
        waiting_again.wait()
        descriptor.raise_()

    s.thread("reader", read)
    s.thread("peer", make_ready)
    waits.check(("cancelled",), ("ready",))


def test_events_do_not_outlive_their_wait() -> None:
    run_random(events_do_not_outlive_their_wait)
    run_exhaustive(events_do_not_outlive_their_wait, preemptions=1, switches=1)
    run_lines(events_do_not_outlive_their_wait, MODULES)


def announced_as_closing(s: Scenario) -> None:
    """Readiness, cancel and the announcement at once; who comes later than the close begins anew."""
    waits, descriptor = Waits(s), s.descriptor()
    s.thread("reader", waits.wait, descriptor, READABLE)
    s.thread("writer", waits.wait, descriptor, WRITABLE, True)

    def close() -> None:
        waits.reactor.notify_closing(descriptor)
        descriptor.raise_()

    s.thread("closer", close)
    waits.check(
        ("cancelled", "ready"), ("cancelled", "unavailable"), ("ready", "unavailable"), ("unavailable", "unavailable")
    )


def test_announced_as_closing() -> None:
    run_random(announced_as_closing)
    run_exhaustive(announced_as_closing, preemptions=1, switches=0)
    run_lines(announced_as_closing, MODULES)


def announced_while_the_reactor_closes(s: Scenario) -> None:
    """The announcement ends the wait before it returns, or finds a reactor that ends all of them."""
    waits, descriptor = Waits(s), s.descriptor()
    wait = waits.reactor.wait(descriptor, READABLE)
    closing = False

    def announce() -> None:
        waits.reactor.notify_closing(descriptor)
        s.expect(wait.done() or closing, "it is over when the announcement returns")

    def close() -> None:
        nonlocal closing
        closing = True
        waits.reactor.close()

    s.thread("announcer", announce)
    s.thread("closer", close)
    s.check("it has ended", lambda: isinstance(wait.exception(), Unavailable | ShuttingDown))


def test_announced_while_the_reactor_closes() -> None:
    run_random(announced_while_the_reactor_closes)
    run_exhaustive(announced_while_the_reactor_closes, preemptions=1, switches=1)
    run_lines(announced_while_the_reactor_closes, MODULES)


def the_same_direction_twice(s: Scenario) -> None:
    """One waits and the other is refused, or one after the other."""
    waits, descriptor = Waits(s), s.descriptor()

    def wait() -> None:
        waits.wait(descriptor)

    s.thread("first", wait)
    s.thread("second", wait)

    def make_ready() -> None:
        s.expect(waits.reactor.waiting() <= 1, "one at a time")
        descriptor.raise_()

    s.thread("peer", make_ready)
    waits.check(("ready", "refused"), ("ready", "ready"))


def test_the_same_direction_twice() -> None:
    run_random(the_same_direction_twice)
    run_exhaustive(the_same_direction_twice, preemptions=1, switches=0)
    run_lines(the_same_direction_twice, MODULES)


def a_number_is_used_again(s: Scenario) -> None:
    """Nobody says that a descriptor is closed; who waits for the next one of that number ends what waits for it."""
    waits, former = Waits(s), s.descriptor()
    reader = waits.reactor.wait(former, READABLE)
    writer = waits.reactor.wait(former, WRITABLE)

    def use_again() -> None:
        former.close()
        heir = s.descriptor(former.fileno())
        heir.raise_()
        waits.wait(heir)

    def give_up() -> None:
        waits.ends.append("given up" if writer.cancel() else "too late")

    s.thread("a", use_again)
    s.thread("b", give_up)
    s.check("the reader's is lost", lambda: isinstance(reader.exception(), Unavailable))
    s.check("the writer's has one end", lambda: writer.cancelled() == ("given up" in waits.ends))
    waits.check(("given up", "ready"), ("ready", "too late"))


def test_a_number_is_used_again() -> None:
    run_random(a_number_is_used_again)
    run_exhaustive(a_number_is_used_again, preemptions=1, switches=1)
    run_lines(a_number_is_used_again, MODULES)


def the_reactor_closes(s: Scenario) -> None:
    """Every wait ends, whenever it began; the stand-by lets go."""
    waits, descriptor = Waits(s), s.descriptor()
    s.thread("reader", waits.wait, descriptor)
    s.thread("peer", descriptor.raise_)
    s.thread("closer", waits.reactor.close)
    s.check("one end", lambda: waits.ends in (["ready"], ["closed"]))
    s.check("nothing waits", lambda: waits.reactor.waiting() == 0)
    s.check("its thread has ended", lambda: all(strand.ended for strand in s.world.strands if "standby" in strand.name))


def test_the_reactor_closes() -> None:
    run_random(the_reactor_closes)
    run_exhaustive(the_reactor_closes, preemptions=1, switches=0)
    run_lines(the_reactor_closes, MODULES)


def counted_while_they_change(s: Scenario) -> None:
    """Counting looks at all of them at one moment."""

    class Slow(dict[Any, Any]):
        def values(self) -> Iterator[Any]:  # type: ignore[override]
            for value in super().values():
                s.step("counts")
                yield value

    reactor, descriptors = Waits(s).reactor, [s.descriptor() for _ in range(2)]
    reactor._waits = Slow()
    reactor.wait(descriptors[0], READABLE)
    s.thread("counts", lambda: s.expect(reactor.waiting() in (1, 2), "one was there, the other may be"))
    s.thread("comes", reactor.wait, descriptors[1], READABLE)
    s.check("both are there", lambda: reactor.waiting() == 2)


def test_counted_while_they_change() -> None:
    run_exhaustive(counted_while_they_change, preemptions=1, switches=0)
