"""The microscope itself, on toys: it finds what is wrong, passes what is right, replays exactly, and never hangs.

Each toy is a class with one flaw and, beside it, the mended form; a scenario is made from either.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable

import pytest

from zlink_nogil import _sync

from .harness import (
    Finding,
    Scenario,
    ScenarioFunction,
    ScheduleFailure,
    TooManySchedules,
    find_exhaustive,
    find_random,
    replay,
    run_exhaustive,
    run_lines,
    run_random,
)

SEEDS = 200


def found(scenario: ScenarioFunction, kind: str) -> Finding:
    """Both ways of searching must see the flaw; returns what the random one found."""
    thorough = find_exhaustive(scenario)
    assert thorough is not None
    assert thorough.failure.kind == kind, str(thorough)
    finding = find_random(scenario, SEEDS)
    assert finding is not None
    assert finding.failure.kind == kind, str(finding)
    assert finding.reproducible
    return finding


def passes(scenario: ScenarioFunction) -> None:
    run_random(scenario, SEEDS)
    assert run_exhaustive(scenario).schedules > 1


# -- a lost update --------------------------------------------------------------------------------------------------


class Counter:
    """Reads under the lock, adds, and writes under the lock again; mended: all in one turn."""

    def __init__(self, mended: bool) -> None:
        self.lock = _sync.Lock()
        self.mended = mended
        self.value = 0

    def add(self) -> None:
        if self.mended:
            with self.lock:
                self.value += 1
            return
        with self.lock:
            seen = self.value
        with self.lock:
            self.value = seen + 1


def counting(mended: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        counter = Counter(mended)
        s.thread("a", counter.add)
        s.thread("b", counter.add)
        s.thread("c", counter.add)
        s.check("every update counts", lambda: counter.value == 3)

    return scenario


def test_lost_update() -> None:
    finding = found(counting(False), "check")
    assert finding.failure.message == "every update counts"
    passes(counting(True))


# -- a lost wake-up: check, then park, without a second look ---------------------------------------------------------


class Box:
    """Announces that it waits after it has looked; mended: looks again after that."""

    def __init__(self, mended: bool) -> None:
        self.items: deque[str] = deque()
        self.waiting: _sync.Parker | None = None
        self.mended = mended

    def put(self, item: str) -> None:
        self.items.append(item)
        parker, self.waiting = self.waiting, None
        if parker is not None:
            parker.unpark()

    def take(self, s: Scenario) -> str:
        parker = _sync.Parker()
        while not self.items:
            s.step("is about to announce itself")
            self.waiting = parker
            if self.mended and self.items:
                break
            parker.park()
        return self.items.popleft()


def boxing(mended: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        box = Box(mended)
        taken: list[str] = []
        s.thread("taker", lambda: taken.append(box.take(s)))
        s.thread("putter", lambda: box.put("x"))
        s.check("the item arrives", lambda: taken == ["x"])

    return scenario


def test_lost_wake_up() -> None:
    finding = found(boxing(False), "lost wake-up")
    assert "taker waits for acquire Parker 1" in finding.failure.message
    stacks = {thread.name: thread.stack for thread in finding.failure.threads}
    assert "parker.park()" in stacks["taker"][-1]
    passes(boxing(True))


# -- a deadlock -----------------------------------------------------------------------------------------------------


def crossing(mended: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        locks = [_sync.Lock(), _sync.Lock()]

        def take(first: int, second: int) -> None:
            with locks[first], locks[second]:
                s.step()

        s.thread("a", take, 0, 1)
        s.thread("b", take, *((0, 1) if mended else (1, 0)))

    return scenario


def test_deadlock() -> None:
    finding = found(crossing(False), "deadlock")
    assert "(last taken by a)" in finding.failure.message
    assert "(last taken by b)" in finding.failure.message
    passes(crossing(True))


def test_a_lock_is_not_re_entrant() -> None:
    def scenario(s: Scenario) -> None:
        lock = _sync.Lock()

        def twice() -> None:
            with lock, lock:
                s.step("never")

        s.thread("a", twice)

    finding = found(scenario, "lost wake-up")
    assert "a waits for acquire Lock" in finding.failure.message


# -- a double release -----------------------------------------------------------------------------------------------


class Lease:
    """Two who may end it, each having seen that it is there; mended: whoever takes it out of the table ends it."""

    def __init__(self, mended: bool) -> None:
        self.guard = _sync.Lock()
        self.lock = _sync.Lock()
        self.lock.acquire()
        self.mended = mended
        self.held = True

    def end(self) -> None:
        if self.mended:
            with self.guard:
                held, self.held = self.held, False
        else:
            with self.guard:
                held = self.held
        if held:
            self.lock.release()
            with self.guard:
                self.held = False


def ending(mended: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        lease = Lease(mended)
        s.thread("owner", lease.end)
        s.thread("expiry", lease.end)
        s.check("the lease has ended", lambda: not lease.held and not lease.lock.locked())

    return scenario


def test_double_release() -> None:
    finding = found(ending(False), "exception")
    assert isinstance(finding.failure.error, RuntimeError)
    assert "release unlocked lock" in str(finding)
    passes(ending(True))


# -- notify before the state change ---------------------------------------------------------------------------------


class Gate:
    """Opens in two steps, each under the lock, the notification first; mended: the state first."""

    def __init__(self, mended: bool) -> None:
        self.changed = _sync.Condition()
        self.mended = mended
        self.open = False

    def unlock(self) -> None:
        for step in ("state", "notify") if self.mended else ("notify", "state"):
            with self.changed:
                if step == "state":
                    self.open = True
                else:
                    self.changed.notify_all()

    def enter(self) -> None:
        with self.changed:
            while not self.open:
                self.changed.wait()


def entering(mended: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        gate = Gate(mended)
        s.thread("guest", gate.enter)
        s.thread("porter", gate.unlock)

    return scenario


def test_notify_before_the_state_change() -> None:
    finding = found(entering(False), "lost wake-up")
    assert "guest waits for wait on Condition 1" in finding.failure.message
    passes(entering(True))


# -- a notification eaten by a waiter whose time has run out ---------------------------------------------------------


def eating(notify_all: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        changed = _sync.Condition(_sync.Lock())
        ready: list[int] = []

        def impatient() -> None:
            with changed:
                if not ready:
                    changed.wait(1.0)

        def patient() -> None:
            with changed:
                while not ready:
                    changed.wait()

        def tell() -> None:
            s.sleep(1.0)
            with changed:
                ready.append(1)
                if notify_all:
                    changed.notify_all()
                else:
                    changed.notify()

        s.thread("impatient", impatient)
        s.thread("patient", patient)
        s.thread("teller", tell)

    return scenario


def test_a_timed_out_waiter_can_eat_a_notification() -> None:
    finding = found(eating(notify_all=False), "lost wake-up")
    assert "patient waits for wait on Condition" in finding.failure.message
    passes(eating(notify_all=True))


# -- inside a line --------------------------------------------------------------------------------------------------


class Tally:
    def __init__(self, mended: bool) -> None:
        self.lock = _sync.Lock() if mended else None
        self.value = 0

    def add(self) -> None:
        if self.lock is None:
            self.value += 1
        else:
            with self.lock:
                self.value += 1


def tallying(mended: bool) -> ScenarioFunction:
    def scenario(s: Scenario) -> None:
        tally = Tally(mended)
        s.thread("a", tally.add)
        s.thread("b", tally.add)
        s.check("every update counts", lambda: tally.value == 2)

    return scenario


def test_lines_see_inside_a_statement() -> None:
    run_exhaustive(tallying(False))  # between operations of the seam there is nothing to see
    finding = find_random(tallying(False), SEEDS, lines=[__name__])
    assert finding is not None
    assert finding.failure.kind == "check"
    assert "self.value += 1" in _source_lines(finding)
    run_lines(tallying(True), [__name__], SEEDS)


def _source_lines(finding: Finding) -> str:
    """The lines at which the baton was taken away."""
    journal = finding.shortest.journal
    assert journal is not None
    with open(__file__) as file:
        source = file.read().splitlines()
    places = [entry.where for entry in journal.entries if "preempted" in entry.then]
    return "\n".join(source[int(place.split(":")[1].split()[0]) - 1] for place in places)


# -- time -----------------------------------------------------------------------------------------------------------


def test_time_jumps_when_everybody_waits() -> None:
    seen: list[float] = []

    def scenario(s: Scenario) -> None:
        lock = _sync.Lock()
        lock.acquire()
        began = _sync.monotonic()

        def wait(seconds: float) -> None:
            assert not lock.acquire(timeout=seconds)
            seen.append(_sync.monotonic() - began)

        s.thread("long", wait, 1000.0)
        s.thread("short", wait, 10.0)

    began = time.monotonic()
    outcome = replay(scenario, [])
    assert outcome.failure is None
    assert seen == [pytest.approx(10.0), pytest.approx(1000.0)]
    assert min(seen) > 10.0, "a timed wait never ends before its deadline"
    assert time.monotonic() - began < 5.0


def test_a_deadline_is_no_deadlock() -> None:
    def scenario(s: Scenario) -> None:
        event = _sync.Event()
        s.thread("a", lambda: s.expect(not event.wait(5.0), "nobody sets it"))
        s.thread("b", lambda: s.expect(not _sync.Parker().park(5.0), "nobody unparks it"))
        s.check("time has passed", lambda: s.now >= 1005.0)

    passes(scenario)


def racing(early: bool) -> ScenarioFunction:
    """Assumes that a reply that is on its way comes in time."""

    def scenario(s: Scenario) -> None:
        replied = _sync.Event()
        if early:
            s.timeouts_race()
        s.thread("caller", lambda: s.expect(replied.wait(1.0), "the reply comes in time"))
        s.thread("peer", replied.set)

    return scenario


def test_timeouts_race_only_where_a_scenario_says_so() -> None:
    passes(racing(early=False))
    assert found(racing(early=True), "invariant").failure.message == "the reply comes in time"


# -- epoll and eventfd ----------------------------------------------------------------------------------------------


def sleeping(mended: bool) -> ScenarioFunction:
    """A thread that clears its eventfd after it has looked for work; mended: before."""

    def scenario(s: Scenario) -> None:
        wake = _sync.EventFd()
        epoll = _sync.Epoll()
        epoll.register(wake.fileno(), select.EPOLLIN)
        work: deque[int] = deque()
        done: list[int] = []

        def look() -> None:
            while work:
                done.append(work.popleft())

        def lead() -> None:
            while len(done) < 2:
                assert epoll.poll() == [(wake.fileno(), select.EPOLLIN)]
                for step in (wake.clear, look) if mended else (look, wake.clear):
                    step()

        def post() -> None:
            for item in (1, 2):
                work.append(item)
                wake.set()

        s.thread("leader", lead)
        s.thread("poster", post)
        s.check("all work is done", lambda: done == [1, 2])

    return scenario


def test_epoll_and_eventfd() -> None:
    finding = found(sleeping(False), "lost wake-up")
    assert "leader waits for poll Epoll 1" in finding.failure.message
    passes(sleeping(True))


def test_epoll_has_the_semantics_of_the_real_one() -> None:
    def scenario(s: Scenario) -> None:
        epoll = _sync.Epoll()
        descriptor = s.descriptor()
        fd = descriptor.fileno()
        epoll.register(fd, select.EPOLLIN | select.EPOLLET)
        with pytest.raises(FileExistsError):
            epoll.register(fd, select.EPOLLIN)
        with pytest.raises(OSError, match="Bad file descriptor"):
            epoll.register(5, select.EPOLLIN)
        assert epoll.poll(0) == []
        descriptor.raise_()
        assert epoll.poll(0) == [(fd, select.EPOLLIN)]
        assert epoll.poll(1.0) == [], "an edge is reported once"
        epoll.modify(fd, select.EPOLLIN)
        assert epoll.poll(0) == epoll.poll(0) == [(fd, select.EPOLLIN)], "a level stays"
        epoll.unregister(fd)
        with pytest.raises(FileNotFoundError):
            epoll.modify(fd, select.EPOLLIN)
        epoll.register(fd)
        descriptor.close()
        assert epoll.poll(0) == [], "a closed descriptor leaves every set"
        heir = s.descriptor(fd)
        heir.raise_()
        with pytest.raises(FileNotFoundError):
            epoll.modify(fd, select.EPOLLIN)
        epoll.register(fd, select.EPOLLIN)
        assert epoll.poll(0) == [(fd, select.EPOLLIN)], "its number is another one's"
        epoll.close()
        with pytest.raises(ValueError, match="closed epoll"):
            epoll.poll()

    assert replay(scenario, []).failure is None


def test_an_epoll_set_can_be_watched() -> None:
    """It is readable while something in it is ready."""

    def scenario(s: Scenario) -> None:
        outer, inner = _sync.Epoll(), _sync.Epoll()
        descriptor = s.descriptor()
        outer.register(inner.fileno(), select.EPOLLIN)
        inner.register(descriptor.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        with pytest.raises(NotImplementedError):
            _sync.Epoll().register(inner.fileno(), select.EPOLLIN | select.EPOLLET)
        assert outer.poll(0) == []
        descriptor.raise_()
        assert outer.poll() == outer.poll() == [(inner.fileno(), select.EPOLLIN)], "a level"
        assert inner.poll(0) == [(descriptor.fileno(), select.EPOLLIN)]
        assert outer.poll(0) == [], "it was reported"
        inner.modify(descriptor.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        assert outer.poll(0) == [(inner.fileno(), select.EPOLLIN)]
        inner.close()
        assert outer.poll(0) == []

    assert replay(scenario, []).failure is None


# -- locks, events and threads mean what the real ones mean ----------------------------------------------------------


def _exercise() -> list[object]:
    """The answers of the stand-ins, to be compared with those of the real classes."""
    lock = _sync.Lock()
    answers = [_answer(lock.acquire), _answer(lock.locked), _answer(lock.acquire, False)]
    answers += [_answer(lock.acquire, timeout=0), _answer(lock.acquire, timeout=0.001)]
    answers += [_answer(lock.acquire, False, 1), _answer(lock.acquire, True, -2)]
    thread = _sync.Thread(target=lock.release)
    answers += [_answer(thread.join), _answer(thread.is_alive), _answer(thread.start), _answer(thread.join)]
    answers += [_answer(thread.is_alive), _answer(thread.start), _answer(lock.locked), _answer(lock.release)]
    with lock:
        answers.append(lock.locked())
    changed = _sync.Condition()
    answers += [_answer(changed.wait), _answer(changed.notify)]
    with changed, changed:
        answers += [changed.wait(0.001), changed.wait_for(lambda: False, 0.001), changed.wait_for(lambda: 7)]
    event = _sync.Event()
    answers += [_answer(event.is_set), _answer(event.wait, 0.001), _answer(event.set), _answer(event.is_set)]
    answers += [_answer(event.wait), _answer(event.clear), _answer(event.is_set)]
    parker = _sync.Parker()
    answers += [_answer(parker.park, 0), _answer(parker.unpark), _answer(parker.unpark), _answer(parker.park)]
    answers += [_answer(parker.park, 0.001), _sync.current_thread() is _sync.main_thread()]
    return answers


def _answer(call: Callable[..., object], *args: object, **kwargs: object) -> object:
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


def test_stand_ins_answer_as_the_real_classes_do() -> None:
    scripted: list[object] = []
    outcome = replay(lambda _: scripted.extend(_exercise()), [])
    assert outcome.failure is None, str(outcome.failure)
    assert scripted[:-1] == _exercise()[:-1]
    assert scripted[-1] is False, "no scripted thread handles signals"


def test_any_waiter_may_get_a_lock() -> None:
    orders: set[str] = set()

    def scenario(s: Scenario) -> None:
        lock = _sync.Lock()
        order: list[str] = []

        def take(name: str) -> None:
            with lock:
                order.append(name)

        for name in "abc":
            s.thread(name, take, name)

        def note() -> bool:
            orders.add("".join(order))
            return True

        s.check("the order is noted", note)

    run_exhaustive(scenario, preemptions=1)
    assert len(orders) == 6


def test_thread_local_values_and_globals_of_a_run_are_its_own() -> None:
    real = _sync.Lock

    def scenario(s: Scenario) -> None:
        local = _sync.local()

        def use(value: int) -> None:
            s.expect(not hasattr(local, "value"), "a new thread has no value")
            local.value = value
            s.step()
            s.expect(local.value == value, "a thread sees its own value")

        s.thread("a", use, 1)
        s.thread("b", use, 2)

    passes(scenario)
    assert _sync.Lock is real


# -- reports --------------------------------------------------------------------------------------------------------


def test_a_seed_gives_exactly_the_same_schedule() -> None:
    scenario = counting(False)
    first, second = find_random(scenario, SEEDS), find_random(scenario, SEEDS)
    assert first is not None
    assert second is not None
    assert str(first) == str(second)
    assert first.seed == second.seed
    outcome = replay(scenario, first.outcome.choices)
    assert outcome.journal is not None
    assert first.outcome.journal is not None
    assert outcome.journal.entries == first.outcome.journal.entries


def test_the_shortest_prefix_fails_too() -> None:
    finding = find_random(counting(False), SEEDS)
    assert finding is not None
    prefix = finding.shortest.choices
    assert sum(map(bool, prefix)) <= sum(map(bool, finding.outcome.choices))
    outcome = replay(counting(False), prefix)
    assert outcome.failure is not None
    assert outcome.failure.message == "every update counts"


def test_a_report_tells_the_whole_story() -> None:
    with pytest.raises(ScheduleFailure) as caught:
        run_random(crossing(False), SEEDS)
    report = str(caught.value)
    assert "deadlock: everybody waits and no deadline is left" in report
    assert f"--seed {caught.value.finding.seed}" in report
    assert "shortest prefix that fails: [" in report
    assert "with locks[first], locks[second]:" in report, "stacks"
    assert "(preempted)" in report, "where the baton was taken away"
    assert "test_harness.py:" in report, "source lines of the schedule"


def test_a_foreign_schedule_is_refused() -> None:
    outcome = replay(counting(True), [7])
    assert outcome.failure is not None
    assert outcome.failure.kind == "not deterministic"


def test_a_scenario_that_is_not_deterministic_is_reported() -> None:
    runs: list[int] = []

    def scenario(s: Scenario) -> None:
        runs.append(1)
        for name in "abc"[: 1 + len(runs) % 3]:
            s.thread(name, s.step)

    finding = find_exhaustive(scenario)
    assert finding is not None
    assert finding.failure.kind == "not deterministic"


def test_an_exhaustive_search_has_a_limit() -> None:
    with pytest.raises(TooManySchedules):
        run_exhaustive(counting(True), preemptions=3, most=10)


def test_more_preemptions_are_more_schedules() -> None:
    counts = [run_exhaustive(counting(True), preemptions=bound).schedules for bound in (0, 1, 2)]
    assert counts[0] == 6, "three threads, one after the other, in any order"
    assert counts == sorted(set(counts))


# -- it never hangs -------------------------------------------------------------------------------------------------


def test_a_thread_that_never_ends_is_reported() -> None:
    def scenario(s: Scenario) -> None:
        def spin() -> None:
            while True:
                s.step("turn")

        s.thread("spinner", spin)
        s.thread("other", s.step)

    finding = find_random(scenario, 1, limit=2000)
    assert finding is not None
    assert finding.failure.kind == "never ends"
    assert "spinner" in finding.failure.message


def test_a_thread_that_waits_by_spinning_lets_others_run() -> None:
    def scenario(s: Scenario) -> None:
        flag: list[int] = []

        def spin() -> None:
            while not flag:
                s.step("turn")

        s.thread("spinner", spin)

        def other() -> None:
            s.sleep(1.0)
            flag.append(1)

        s.thread("other", other)

    run_random(scenario, 5)


def test_a_stubborn_thread_is_given_up_and_reported() -> None:
    def scenario(s: Scenario) -> None:
        lock = _sync.Lock()
        lock.acquire()

        def stubborn() -> None:
            while True:
                try:
                    lock.acquire()
                except BaseException:
                    continue

        s.thread("stubborn", stubborn)

    outcome = replay(scenario, [])
    assert outcome.failure is not None
    assert outcome.failure.kind == "lost wake-up"
    assert outcome.stuck == 1


def test_a_thread_that_blocks_outside_the_seam_is_reported() -> None:
    released = threading.Event()

    def scenario(s: Scenario) -> None:
        s.thread("outsider", released.wait)
        s.thread("b", s.step)

    finding = find_random(scenario, 1, patience=0.2)
    released.set()
    assert finding is not None
    assert finding.failure.kind == "outside the seam"
    assert "outsider" in finding.failure.message


def test_a_loop_without_operations_is_ended() -> None:
    def scenario(s: Scenario) -> None:
        def loop() -> None:
            while True:
                pass

        s.thread("looper", loop)

    finding = find_random(scenario, 1, patience=0.2)
    assert finding is not None
    assert finding.failure.kind == "outside the seam"
    assert finding.outcome.stuck == 0, "the loop was ended"


def test_clean_up_code_of_stuck_threads_runs() -> None:
    left: list[str] = []

    def scenario(s: Scenario) -> None:
        lock = _sync.Lock()
        changed = _sync.Condition()
        forever = _sync.Event()

        def stuck() -> None:
            try:
                with changed:
                    changed.wait()
            finally:
                with lock:  # cannot be taken any more; what is above must still be left in order
                    left.append("never")

        def holder() -> None:
            try:
                with lock:
                    forever.wait()
            finally:
                left.append("holder")

        s.thread("a", stuck)
        s.thread("holder", holder)

    outcome = replay(scenario, [])
    assert outcome.failure is not None
    assert outcome.stuck == 0
    assert left == ["holder"]


def test_a_daemon_may_be_left_waiting() -> None:
    def scenario(s: Scenario) -> None:
        box = Box(mended=True)
        taken: list[str] = []

        def serve() -> None:
            while True:
                taken.append(box.take(s))

        _sync.Thread(target=serve, daemon=True).start()
        s.thread("putter", box.put, "x")
        s.check("daemons come to rest before the checks", lambda: taken == ["x"])

    passes(scenario)


def test_an_invariant_ends_the_run_even_where_exceptions_are_swallowed() -> None:
    def scenario(s: Scenario) -> None:
        inside: set[int] = set()

        def enter() -> None:
            try:
                with s.alone(inside, "one at a time"):
                    pass
            except BaseException:
                return

        s.thread("a", enter)
        s.thread("b", enter)

    assert "one at a time" in found(scenario, "invariant").failure.message


def test_what_the_runtime_logs_as_an_error_is_a_failure() -> None:
    def scenario(s: Scenario) -> None:
        def report() -> None:
            try:
                raise KeyError("lost")
            except KeyError:
                logging.getLogger("zlink_nogil.scheduler").critical("a runnable raised", exc_info=True)

        s.thread("worker", report)

    assert "a runnable raised: KeyError('lost')" in found(scenario, "logged error").failure.message


# -- interrupts, and every line once ----------------------------------------------------------------------------------


def interrupted(s: Scenario) -> None:
    """The wait raises unless it has what it waits for; never both."""
    event, told = _sync.Event(), []

    def wait() -> None:
        try:
            told.append(event.wait())
        except KeyboardInterrupt:
            told.append("interrupted")

    s.thread("waiter", wait)
    s.thread("setter", event.set)
    s.thread("signal", lambda: told.append(s.interrupt("waiter")))
    s.check("one of the two", lambda: len(told) == 2 and ("interrupted" in told) <= (False not in told))


def test_interrupts() -> None:
    passes(interrupted)


def test_every_line_once() -> None:
    """One preemption, at the one line where it matters, is found without luck."""
    with pytest.raises(ScheduleFailure, match="tallying"):
        run_exhaustive(tallying(False), preemptions=1, lines=[__name__])
    assert run_exhaustive(tallying(True), preemptions=1, lines=[__name__]).schedules > 1
