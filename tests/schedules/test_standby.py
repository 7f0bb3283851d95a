"""`StandBy` under every schedule: add, wake, rotate, remove; the last one ends its thread, the next one starts it again."""

from __future__ import annotations

from collections.abc import Collection

from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import StandBy

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .mailbox import Mailbox, rest

MODULES = ["zlink_nogil.scheduler.standby"]


def threads(s: Scenario) -> list[bool]:
    """Of each thread the stand-by has had: has it ended?"""
    return [strand.ended for strand in s.world.strands if "standby" in strand.name]


def lives(s: Scenario) -> None:
    """Mail is read and removed drivers are left alone, whoever else comes and goes; in the end no thread is left."""
    standby = StandBy()
    s.thread("a", Mailbox(s, "a").lead, standby)
    s.thread("b", Mailbox(s, "b").lead, standby)
    s.check("its thread has ended", lambda: all(threads(s)))


def test_lives() -> None:
    run_random(lives)
    run_exhaustive(lives, preemptions=1, switches=0)
    run_lines(lives, MODULES)


def one_comes_as_the_last_one_goes(s: Scenario) -> None:
    """The thread decides to end, or it sees who comes: not both."""
    standby = StandBy()

    def come_and_go() -> None:
        role = Mailbox(s, "x")
        standby.add(role)
        standby.remove(role)
        role.removed = True

    s.thread("a", come_and_go)
    s.thread("b", come_and_go)
    s.check("its thread has ended", lambda: all(threads(s)))


def test_one_comes_as_the_last_one_goes() -> None:
    run_random(one_comes_as_the_last_one_goes)
    run_exhaustive(one_comes_as_the_last_one_goes, preemptions=1, switches=0)


def again_and_again(s: Scenario) -> None:
    """The last one ends the thread before its `remove` returns; the next one starts another."""
    standby = StandBy()

    def lead() -> None:
        for name in ("first", "second"):
            Mailbox(s, name).lead(standby)
            s.expect(all(threads(s)), "the thread ends with its last driver")

    s.thread("a", lead)
    s.check("a thread for each", lambda: len(threads(s)) == 2)


def test_again_and_again() -> None:
    run_random(again_and_again)
    run_exhaustive(again_and_again, preemptions=1, switches=1)
    run_lines(again_and_again, MODULES)


def mail_for_one_who_is_being_removed(s: Scenario) -> None:
    """Others write while a driver comes and goes; who stays is read."""
    standby = StandBy()
    stays, goes = Mailbox(s, "stays"), Mailbox(s, "goes")

    def come_and_go() -> None:
        standby.add(goes)
        standby.remove(goes)
        goes.removed = True

    def stay() -> None:
        standby.add(stays)
        stays.read.wait()
        standby.remove(stays)
        stays.removed = True

    def write() -> None:
        goes.post()
        stays.post()

    s.thread("goer", come_and_go)
    s.thread("stayer", stay)
    s.thread("writer", write)
    s.check("its thread has ended", lambda: all(threads(s)))


def test_mail_for_one_who_is_being_removed() -> None:
    run_random(mail_for_one_who_is_being_removed)
    run_exhaustive(mail_for_one_who_is_being_removed, preemptions=1, switches=0)
    run_lines(mail_for_one_who_is_being_removed, MODULES)


def deadlines(s: Scenario) -> None:
    """A driver is called at its deadline and not before, whatever the others do; without one it is left to sleep."""
    standby = StandBy()
    clock, other = Mailbox(s, "clock"), Mailbox(s, "other")
    clock.due = s.now + 5.0
    times: list[float] = []
    rotate = clock.rotate

    def tick(ready: Collection[int] | None) -> float | None:
        times.append(s.now)
        if s.now >= 1005.0:
            clock.due = None
            clock.read.set()
        return rotate(ready)

    clock.rotate = tick  # type: ignore[method-assign]

    def wait() -> None:
        standby.add(clock)
        clock.read.wait()
        s.expect(s.now < 1005.1, "in time")
        rest(s, 1.0)
        standby.remove(clock)

    s.thread("a", wait)
    s.thread("b", other.lead, standby)
    s.check("once when it was added, once when it was due", lambda: len(times) == 2)


def test_deadlines() -> None:
    run_random(deadlines)
    run_exhaustive(deadlines, preemptions=1, switches=0)


class Unwatchable(Mailbox):
    def descriptors(self) -> Collection[int]:
        return (*super().descriptors(), 999)


def one_that_cannot_be_watched(s: Scenario) -> None:
    """It is refused, nothing of it stays behind, and the others go on."""
    standby = StandBy()

    def add_bad() -> None:
        bad = Unwatchable(s, "bad")
        try:
            standby.add(bad)
        except OSError:
            bad.removed = True
            bad.wake()
        else:
            s.expect(False, "it was refused")

    s.thread("a", Mailbox(s, "a").lead, standby)
    s.thread("b", add_bad)
    s.check("its thread has ended", lambda: all(threads(s)))


def test_one_that_cannot_be_watched() -> None:
    run_random(one_that_cannot_be_watched)
    run_exhaustive(one_that_cannot_be_watched, preemptions=1, switches=1)


def one_adds_another(s: Scenario) -> None:
    """In its rotation, on the thread itself: who is added soon is led; what would wait for the thread is refused."""
    standby = StandBy()
    host, guest = Mailbox(s, "host"), Mailbox(s, "guest")
    rotate = host.rotate
    refused: list[type[Exception]] = []

    def invite(ready: Collection[int] | None) -> float | None:
        host.rotate = rotate  # type: ignore[method-assign]
        standby.add_soon(guest)
        standby.add_soon(guest)
        for use in (standby.add, standby.remove):
            try:
                use(guest)
            except InvalidOperation as error:
                refused.append(type(error))
        return rotate(ready)

    def lead() -> None:
        host.lead(standby)
        guest.post()
        guest.read.wait()
        standby.remove(guest)

    host.rotate = invite  # type: ignore[method-assign]
    guest.due = s.now + 10.0
    s.thread("a", lead)
    s.check("each for its reason", lambda: refused == [InvalidOperation, InvalidOperation])
    s.check("its thread has ended", lambda: all(threads(s)))


def test_one_adds_another() -> None:
    run_random(one_adds_another, 30)
    run_exhaustive(one_adds_another, preemptions=1, switches=0)
