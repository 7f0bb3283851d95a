"""`Replies` under every schedule: an answer goes out, or is counted as one that had nobody to go to."""

from __future__ import annotations

from zlink_nogil.binding import OutSocket
from zlink_nogil.messaging.peers import Link, Source
from zlink_nogil.messaging.replies import Replies
from zlink_nogil.state import StateLane

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .harness.sockets import Network

MODULES = ["zlink_nogil.messaging.replies"]
RECORD = 1 << 20


class Answering:
    """A node that answers another, which has room for one answer and reads none."""

    def __init__(self, s: Scenario, answers: int) -> None:
        self.s = s
        network = Network(room=1)
        asking = network.router(RECORD)
        asking.bind("b")
        self.lane = StateLane("replies")
        self.out = OutSocket(network, self.lane, b"node", RECORD, lambda: None)  # type: ignore[arg-type]
        self.replies = Replies(self.out)
        self.link = Link("b", static=True)
        self.link.completion_alias = self.lane.run(self.out.connect, "b")
        self.source = Source("b", 1, RECORD, self.link)
        s.check("sent, or counted", lambda: network.routers[1].taken + self.replies.dropped() == answers)

    def answer(self, *records: bytes) -> None:
        answer = self.replies.to(self.source)
        for record in records:
            answer.send(record)

    def lose(self) -> None:
        """As a topology does."""
        alias = self.link.completion_alias
        assert alias is not None
        self.out.run(self.out.disconnect, alias)
        self.s.step("forgets the connection")
        self.link.completion_alias = None

    def close(self) -> None:
        self.out.run(self.out.close, 0.0)


def the_node_that_asked_goes_away(s: Scenario) -> None:
    node = Answering(s, answers=4)
    s.thread("a", node.answer, b"1", b"2")
    s.thread("b", node.answer, b"3", b"4")
    s.thread("topology", node.lose)


def the_node_that_answers_closes(s: Scenario) -> None:
    """A handler may outlive its node."""
    node = Answering(s, answers=3)
    s.thread("a", node.answer, b"1", b"2")
    s.thread("b", node.answer, b"3")
    s.thread("closer", node.close)


def test_the_node_that_asked_goes_away() -> None:
    run_random(the_node_that_asked_goes_away)
    run_exhaustive(the_node_that_asked_goes_away, preemptions=1, switches=1)
    run_lines(the_node_that_asked_goes_away, MODULES, 100)


def test_the_node_that_answers_closes() -> None:
    run_random(the_node_that_answers_closes)
    run_exhaustive(the_node_that_answers_closes, preemptions=1, switches=1)
