"""Who ends a pending operation, under every schedule: one of all who may, whenever its peer becomes known."""

from __future__ import annotations

from zlink_nogil.errors import Unavailable
from zlink_nogil.messaging.operation import Operation

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .pending import MODULES, PEER, Watched

ENDS = {"reply", "Cancelled", "DeadlineExceeded", "Unavailable", "ShuttingDown"}


def everybody_at_once(s: Scenario) -> None:
    """The reply, a cancel, the deadline, the loss of the peer, the close: one of them, and everybody who asks sees it."""
    watched = Watched(s)
    operation = watched.request(timeout=1.0)
    assert operation is not None
    seen: list[str] = []

    def ask() -> None:
        error = operation.exception()
        seen.append("reply" if error is None else type(error).__name__)

    def answer() -> None:
        s.sleep(1.0)
        watched.answer(1)

    def at_the_deadline(end: object, *of_end: object) -> None:
        s.sleep(1.0)
        end(*of_end)  # type: ignore[operator]

    s.thread("asker", ask)
    s.thread("another", ask)
    s.thread("peer", answer)
    s.thread("leader", watched.expire, s.now + 1.1)
    s.thread("canceller", at_the_deadline, operation.cancel)
    s.thread("topology", at_the_deadline, watched.table.peer_lost, PEER)
    s.thread("closer", at_the_deadline, watched.table.close)
    s.check("both saw the same", lambda: len(seen) == 2 and seen[0] == seen[1] and seen[0] in ENDS)
    s.check("late ones are counted", lambda: watched.table.counts()["late"] == (1 if seen[0] == "reply" else 2))


def test_everybody_at_once() -> None:
    run_random(everybody_at_once)
    run_exhaustive(everybody_at_once, preemptions=1, switches=0)
    run_lines(everybody_at_once, MODULES)


def a_reply_and_a_cancel(s: Scenario) -> None:
    """Exactly one takes it; a reply that does not is late."""
    watched = Watched(s)
    operation = watched.request()
    assert operation is not None
    s.thread("peer", watched.table.reply, operation.reply_route, b"reply")
    s.thread("canceller", operation.cancel)
    s.check("late if it was cancelled", lambda: watched.table.counts()["late"] == operation.cancelled())


def test_a_reply_and_a_cancel() -> None:
    run_random(a_reply_and_a_cancel, 50)
    run_exhaustive(a_reply_and_a_cancel, preemptions=2, lines=["zlink_nogil.messaging.operations"])


class LinedUp(Watched):
    """An operation whose peer is not known when it begins."""

    def __init__(self, s: Scenario, is_request: bool = True) -> None:
        super().__init__(s)
        self.is_request = is_request
        self.operation = self.table.new(Operation, 5.0, None, bytes.decode if is_request else None)
        self.started.append(self.operation)
        ends = self.ends[self.operation.reply_route] = []
        self.operation.add_waker(lambda _: ends.append("ended"))
        self.table.submit(self.operation, lambda _: False)

    def dispatch(self) -> None:
        """Its peer is known now. What was not accepted is taken back here, as nobody looks for another."""
        record = self.operation.reply_route.to_bytes(8)
        try:
            self.table.resubmit(
                self.operation, PEER, lambda started: self.table.send(self.alias, record, self.is_request, started)
            )
        except Unavailable as error:
            self.s.expect(self.operation.done() or self.operation.peer is None, "it is not there")
            self.s.step("finds the peer gone")
            self.table.error(self.operation.reply_route, error)

    def lose(self) -> None:
        """As a topology does: nothing can be sent there any more, then what was sent ends."""
        self.table.lane.run(self.out.disconnect, self.alias)
        self.table.peer_lost(PEER)

    def sent(self) -> int:
        count = 0
        while self.peer.receive() is not None:
            count += 1
        return count


def lost_while_it_is_dispatched(s: Scenario) -> None:
    """It is refused, or its peer's loss ends it: nobody waits for the deadline."""
    lined_up = LinedUp(s)
    s.thread("sender", lined_up.dispatch)
    s.thread("topology", lined_up.lose)
    s.thread("asker", lambda: s.expect(isinstance(lined_up.operation.exception(), Unavailable), "the peer is gone"))


def test_lost_while_it_is_dispatched() -> None:
    run_random(lost_while_it_is_dispatched)
    run_exhaustive(lost_while_it_is_dispatched, preemptions=1)
    run_lines(lost_while_it_is_dispatched, MODULES)


def cancelled_before_its_peer_is_known(s: Scenario) -> None:
    """What has ended is not sent."""
    lined_up = LinedUp(s, is_request=False)
    cancelled: list[bool] = []

    def dispatch() -> None:
        over = lined_up.operation.done()
        lined_up.dispatch()
        s.expect(not over or not lined_up.sent(), "ended before, so not sent")

    s.thread("sender", dispatch)
    s.thread("canceller", lambda: cancelled.append(lined_up.operation.cancel()))
    s.check("cancelled or sent", lambda: cancelled == [lined_up.operation.cancelled()])


def test_cancelled_before_its_peer_is_known() -> None:
    run_random(cancelled_before_its_peer_is_known)
    run_exhaustive(cancelled_before_its_peer_is_known, preemptions=2)
