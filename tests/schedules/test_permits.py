"""`Permits` under every schedule: take, wait, return, borrow, give up."""

from __future__ import annotations

from contextlib import suppress

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.scheduler import interrupts

from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.messaging.permits"]
LONG = 1000.0


class Jobs:
    """Permits and the jobs that hold them; at most `most` at a time, but for what is borrowed."""

    def __init__(self, s: Scenario, most: int) -> None:
        self.s = s
        self.permits = Permits(most)
        self.most = most
        self.held = 0
        self.borrowed = 0
        self.served: list[str] = []
        self.done: list[str] = []
        s.check("every permit is back", lambda: self.permits.free() == most)

    def hold(self, name: str, count: int = 1) -> None:
        self.served.append(name)
        self.held += count
        self.s.expect(self.held <= self.most + self.borrowed, "no more jobs than permits")
        self.s.step("holds a permit")
        self.held -= count
        self.permits.give_back(count)

    def run(self, name: str, timeout: float = LONG) -> None:
        began = self.s.now
        try:
            self.permits.acquire(timeout)
        except DeadlineExceeded:
            self.done.append(f"{name} gave up")
            return
        self.s.expect(self.s.now - began < LONG, "woken by who returned the permit, not by the time-out")
        self.hold(name)
        self.done.append(name)

    def run_borrowed(self) -> None:
        self.borrowed += 1
        self.permits.borrow()
        self.s.step("holds a borrowed permit")
        self.permits.give_back()
        self.borrowed -= 1

    def lead(self, records: int) -> None:
        """A socket's leader: takes permits for what is there, sleeps while there are none."""
        wake = _sync.EventFd()
        epoll = _sync.Epoll()
        epoll.register(wake.fileno())
        taken = 0
        while taken < records:
            got = self.permits.take(records - taken, wake.set)
            self.s.expect(got <= records - taken, "no more than wanted")
            if not got:
                epoll.poll()
                wake.clear()
            taken += got
            if got:
                self.hold("leader", got)
        self.permits.forget(wake.set)
        self.done.append("leader")


def threads_wait_and_return(s: Scenario) -> None:
    jobs = Jobs(s, most=1)
    for name in "abc":
        s.thread(name, jobs.run, name)
    s.check("everybody had a turn", lambda: sorted(jobs.done) == ["a", "b", "c"])


def test_threads_wait_and_return() -> None:
    run_random(threads_wait_and_return)
    run_exhaustive(threads_wait_and_return, preemptions=1)
    run_lines(threads_wait_and_return, MODULES)


def giving_up_at_the_moment_of_the_grant(s: Scenario) -> None:
    """A waiter gets a permit or gives up, never half of each; what it gave up goes to the next."""
    jobs = Jobs(s, most=1)
    s.timeouts_race()
    s.thread("a", jobs.run, "a")
    s.thread("hasty", jobs.run, "hasty", 1.0)
    s.thread("patient", jobs.run, "patient")
    s.check("the patient one had a turn", lambda: "patient" in jobs.done and len(jobs.done) == 3)


def returned_at_the_time_out(s: Scenario) -> None:
    """The permit is the waiter's, or free again."""
    jobs = Jobs(s, most=1)
    jobs.permits.acquire(LONG)

    def give_back() -> None:
        s.sleep(1.0)
        jobs.permits.give_back()

    s.thread("hasty", jobs.run, "hasty", 1.0)
    s.thread("holder", give_back)


def test_giving_up_at_the_moment_of_the_grant() -> None:
    run_random(giving_up_at_the_moment_of_the_grant)
    run_exhaustive(giving_up_at_the_moment_of_the_grant, preemptions=1)
    run_lines(returned_at_the_time_out, MODULES)


def interrupted_while_it_waits(s: Scenario) -> None:
    """Ctrl-C comes at any time: a permit that was granted goes to the next, one that was not is nobody's."""
    jobs = Jobs(s, most=1)

    def hold() -> None:
        jobs.permits.acquire(LONG)
        jobs.held += 1
        s.sleep(1.0)
        jobs.held -= 1
        jobs.permits.give_back()

    def main() -> None:
        me = _sync.current_thread()
        _sync.main_thread = lambda: me  # put back after the run
        with suppress(KeyboardInterrupt):
            jobs.run("main")

    def press() -> None:
        interrupts._pending = True

    s.thread("holder", hold)
    s.thread("a", jobs.run, "a")
    s.thread("main", main)
    s.thread("ctrl-c", press)
    s.check("the other had a turn", lambda: "a" in jobs.done)


def test_interrupted_while_it_waits() -> None:
    run_random(interrupted_while_it_waits, 100)


def a_socket_and_threads(s: Scenario) -> None:
    jobs = Jobs(s, most=2)
    s.thread("leader", jobs.lead, 3)
    s.thread("a", jobs.run, "a")
    s.thread("borrower", jobs.run_borrowed)
    s.check("everybody had a turn", lambda: sorted(jobs.done) == ["a", "leader"])


def test_a_socket_and_threads() -> None:
    run_random(a_socket_and_threads)
    run_exhaustive(a_socket_and_threads, preemptions=2, switches=0)
    run_lines(a_socket_and_threads, MODULES)


def a_socket_that_closes_while_it_waits(s: Scenario) -> None:
    """A permit that was granted to a closing socket goes to the next in line."""
    jobs = Jobs(s, most=1)
    jobs.permits.acquire(1.0)
    wakes: list[int] = []

    def lead() -> None:
        if jobs.permits.take(1, wake):
            jobs.permits.give_back()
        s.step("closes")
        jobs.permits.forget(wake)

    def wake() -> None:
        wakes.append(1)

    s.thread("leader", lead)
    s.thread("a", jobs.run, "a")
    s.thread("holder", jobs.permits.give_back)
    s.check("the thread had its turn", lambda: jobs.done == ["a"])
    s.check("woken at most once", lambda: len(wakes) <= 1)


def test_a_socket_that_closes_while_it_waits() -> None:
    run_random(a_socket_that_closes_while_it_waits)
    run_exhaustive(a_socket_that_closes_while_it_waits, preemptions=1)
    run_lines(a_socket_that_closes_while_it_waits, MODULES)


def a_socket_that_looks_again(s: Scenario) -> None:
    """A leader looks whenever it is woken, for whatever reason: it is in the line once all the same."""
    jobs = Jobs(s, most=1)
    jobs.permits.acquire(1.0)

    def wake() -> None:
        s.step("is woken")

    def look() -> None:
        if jobs.permits.take(1, wake) or jobs.permits.take(1, wake):
            jobs.permits.give_back()
        jobs.permits.forget(wake)

    s.thread("leader", look)
    s.thread("a", jobs.run, "a")
    s.thread("holder", jobs.permits.give_back)


def test_a_socket_that_looks_again() -> None:
    run_random(a_socket_that_looks_again)
    run_exhaustive(a_socket_that_looks_again, preemptions=1)


def two_that_come_back_at_once(s: Scenario) -> None:
    """Each goes to one who waits: nobody sleeps beside a free permit."""
    jobs = Jobs(s, most=2)
    for _ in range(2):
        jobs.permits.acquire(LONG)
    both = [_sync.Event(), _sync.Event()]

    def meet(mine: int) -> None:
        jobs.permits.acquire(LONG)
        both[mine].set()
        both[1 - mine].wait()
        jobs.permits.give_back()

    s.thread("a", meet, 0)
    s.thread("b", meet, 1)
    s.thread("holder", jobs.permits.give_back, 2)


def test_two_that_come_back_at_once() -> None:
    run_random(two_that_come_back_at_once, 100)


def who_came_first(s: Scenario) -> None:
    """Threads and sockets are served in the order in which they came; who comes with the permit goes to the end."""
    jobs = Jobs(s, most=1)
    jobs.permits.acquire(LONG)

    def lead() -> None:
        s.sleep(2.0)
        jobs.lead(1)

    def run(name: str, after: float) -> None:
        s.sleep(after)
        jobs.run(name)

    def give_back() -> None:
        s.sleep(4.0)
        jobs.permits.give_back()

    s.thread("holder", give_back)
    s.thread("a", run, "a", 1.0)
    s.thread("socket", lead)
    s.thread("b", run, "b", 3.0)
    s.thread("late", run, "late", 4.0)
    s.check("in the order in which they came", lambda: jobs.served == ["a", "leader", "b", "late"])


def test_who_came_first() -> None:
    run_random(who_came_first)
    run_exhaustive(who_came_first, preemptions=1, switches=0)


def what_turns_have_borrowed(s: Scenario) -> None:
    """Whoever waits is served when all that was borrowed beyond the permits is back, and not before."""
    permits = Permits(1)
    for _ in range(3):
        permits.borrow()
    back: list[int] = []
    served: list[str] = []
    wake = _sync.EventFd()

    def pay(count: int) -> None:
        for number in range(count):
            back.append(number)
            permits.give_back()

    def serve(name: str) -> None:
        s.expect(len(back) == 3, "not while turns have more than there are")
        served.append(name)
        permits.give_back()

    def run() -> None:
        permits.acquire(LONG)
        serve("thread")

    def lead() -> None:
        epoll = _sync.Epoll()
        epoll.register(wake.fileno())
        while not (taken := permits.take(2, wake.set)):
            epoll.poll()
            wake.clear()
        s.expect(taken == 1, "there is one")
        serve("socket")

    s.thread("thread", run)
    s.thread("socket", lead)
    s.thread("turn", pay, 2)
    s.thread("another turn", pay, 1)
    s.check("both were served", lambda: sorted(served) == ["socket", "thread"])
    s.check("every permit is back", lambda: permits.free() == 1)


def test_what_turns_have_borrowed() -> None:
    run_random(what_turns_have_borrowed)
    run_exhaustive(what_turns_have_borrowed, preemptions=1, switches=0)
    run_lines(what_turns_have_borrowed, MODULES)
