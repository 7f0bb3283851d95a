"""`Direct` under every schedule: learn a route, be refused and look again, lose nodes, expire, close."""

from __future__ import annotations

from collections.abc import Callable

from zlink_nogil import _sync
from zlink_nogil.messaging import direct as direct_module
from zlink_nogil.messaging.operation import Operation
from zlink_nogil.messaging.outbox import Routed
from zlink_nogil.messaging.peers import Peer
from zlink_nogil.messaging.wire import NotHere

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .nodes import KEEPER, Calling, Played

MODULES = [direct_module.__name__]


def calls_before_the_route_is_known(s: Scenario) -> None:
    """They line up, and each caller's go out in its order, also the first by the route."""
    node = Calling(s)
    keeper, b = Played(node, KEEPER), Played(node, "b", "r")
    node.place("r", b)
    s.thread("a", node.tell, "r1", "r2", "r3")
    s.thread("b", node.tell, "rx")
    s.check("in order", lambda: [value for value in b.ran if value != "rx"] == ["r1", "r2", "r3"])
    s.check("all of them, once", lambda: len(b.ran) == 4)
    s.check("the route is known", lambda: node.route("r") == "b")
    s.check("not a question for each", lambda: len(keeper.asked) < 4)


def test_calls_before_the_route_is_known() -> None:
    run_random(calls_before_the_route_is_known, 60)
    run_lines(calls_before_the_route_is_known, MODULES)


def after_the_first_dispatch(node: Calling, then: Callable[[], None]) -> None:
    """Do that on the worker, in between."""
    dispatch, done = node.outbox.dispatch, []

    def dispatch_and_then(operation: Routed, target: Peer | None) -> None:
        dispatch(operation, target)
        if not done:
            done.append(True)
            then()

    node.outbox.dispatch = dispatch_and_then  # type: ignore[method-assign]


def one_comes_as_the_line_ends(s: Scenario) -> None:
    """It is sent, by who ends the line or by the next."""
    node = Calling(s)
    Played(node, KEEPER)
    b = Played(node, "b", "r")
    node.place("r", b)

    def come_late() -> None:
        s.sleep(1.0)
        node.tell("r2")

    after_the_first_dispatch(node, lambda: s.sleep(1.0))
    s.thread("late", come_late)
    s.thread("a", node.tell, "r1")
    s.check("both, once", lambda: sorted(b.ran) == ["r1", "r2"])


def two_come_when_the_line_has_ended(s: Scenario) -> None:
    """In the order in which they come, whether the route is known by then, or only in between, or not."""
    node = Calling(s)
    keeper, b = Played(node, KEEPER), Played(node, "b", "r")
    node.place("r", b)

    def come_late() -> None:
        begin.wait()
        second = node.start("r2", is_request=False)
        s.sleep(0.1)
        third = node.start("r3", is_request=False)
        keeper.deaf.set()
        node.wait("r2", second)
        node.wait("r3", third)

    def let_them_come() -> None:
        keeper.deaf.clear()
        begin.set()

    begin = _sync.Event()
    after_the_first_dispatch(node, let_them_come)
    s.thread("late", come_late)
    s.thread("a", node.tell, "r1")
    s.check("in order", lambda: b.ran == ["r1", "r2", "r3"])


def test_who_comes_at_the_end_of_the_line() -> None:
    for scenario in (one_comes_as_the_line_ends, two_come_when_the_line_has_ended):
        run_random(scenario, 10)
        run_exhaustive(scenario, preemptions=1, switches=0)


def it_moves(s: Scenario) -> None:
    """A call runs once, where it is; the route to where it was is forgotten."""
    node = Calling(s)
    Played(node, KEEPER)
    b, c = Played(node, "b", "r"), Played(node, "c")
    node.place("r", b)
    node.learn("r", b)

    def move() -> None:
        node.move("r", b, c)
        node.ask("r3")
        s.expect(node.route("r") != "b", "the route there is forgotten")

    s.thread("a", node.ask, "r1", "r2")
    s.thread("mover", move)
    s.check("each ran once", lambda: sorted(b.ran + c.ran) == ["r1", "r2", "r3"])
    s.check("answered from there", lambda: all(node.ends[value] == f"{value} at c" for value in c.ran))


def test_it_moves() -> None:
    run_random(it_moves, 60)


def refused_while_it_is_sent(s: Scenario, *calls: str) -> None:
    """Nobody refuses a call twice who was asked about once: also not one that refuses before it is known to be sent."""
    node = Calling(s)
    Played(node, KEEPER)
    b, c = Played(node, "b"), Played(node, "c", "r")
    node.place("r", b)
    refused, told = node.operations.refused, []

    def move_first(operation: Operation | None, error: NotHere) -> bool:
        assert operation is not None
        if not told:
            node.move("r", b, c)
        told.append(operation.reply_route)
        return refused(operation, error)

    node.operations.refused = move_first
    for call in calls or ("r1",):
        s.thread(call, node.ask, call)
    s.check("each at most once", lambda: len(set(told)) == len(told) > 0)
    s.check("the others know", lambda: sorted(c.ran) == sorted(node.begun))


def two_refused_while_they_are_sent(s: Scenario) -> None:
    refused_while_it_is_sent(s, "r1", "r2")


def test_refused_while_it_is_sent() -> None:
    run_random(two_refused_while_they_are_sent, 40)
    run_exhaustive(refused_while_it_is_sent, preemptions=1, switches=0)


def a_send_to_where_it_was(s: Scenario) -> None:
    """It ends as sent, though that node may refuse it before; the route there is forgotten."""
    node = Calling(s)
    b = Played(node, "b")
    node.learn("r", b)
    s.thread("a", node.tell, "r1")
    s.check("sent", lambda: node.ends == {"r1": "None"})
    s.check("forgotten", lambda: node.route("r") is None)


def test_a_send_to_where_it_was() -> None:
    run_random(a_send_to_where_it_was, 40)
    run_exhaustive(a_send_to_where_it_was, preemptions=1, switches=1)


def refused_when_nobody_waits(s: Scenario) -> None:
    """The route is forgotten all the same."""
    node = Calling(s)
    b = Played(node, "b")
    node.learn("r", b)
    b.deaf.clear()
    call = node.start("r1")
    assert call is not None

    def cancel() -> None:
        call.cancel()
        b.deaf.set()
        node.wait("r1", call)

    s.thread("canceller", cancel)
    s.check("forgotten", lambda: node.route("r") is None)


def refused_after_a_later_one_has_lined_up(s: Scenario) -> None:
    """They go out in the order of their calls."""
    node = Calling(s)
    keeper, b, c = Played(node, KEEPER), Played(node, "b"), Played(node, "c", "r")
    node.place("r", c)
    node.learn("r", b)
    keeper.deaf.clear()
    b.deaf.clear()

    def ask() -> None:
        first = node.start("r1")
        s.sleep(direct_module.GOOD_FOR + 1.0)
        second = node.start("r2")
        b.deaf.set()
        s.sleep(1.0)
        keeper.deaf.set()
        node.wait("r1", first)
        node.wait("r2", second)

    s.thread("a", ask)
    s.check("in order", lambda: c.ran == ["r1", "r2"])


def test_refused_late() -> None:
    run_random(refused_when_nobody_waits, 20)
    run_random(refused_after_a_later_one_has_lined_up, 20)


def who_refused_it_is_lost(s: Scenario) -> None:
    """A call that was refused does not end with who refused it."""
    node = Calling(s)
    Played(node, KEEPER)
    b, c = Played(node, "b"), Played(node, "c", "r")
    node.place("r", c)
    node.learn("r", b)
    told = _sync.Event()
    refused = node.operations.refused

    def then_tell(operation: Operation | None, error: NotHere) -> bool:
        goes_on = refused(operation, error)
        told.set()
        return goes_on

    def lose() -> None:
        told.wait()
        b.go()

    node.operations.refused = then_tell
    s.thread("a", node.ask, "r1")
    s.thread("topology", lose)
    s.check("answered by the other", lambda: node.ends == {"r1": "r1 at c"})


def test_who_refused_it_is_lost() -> None:
    run_random(who_refused_it_is_lost, 60)


def the_route_grows_old(s: Scenario) -> None:
    """Then the keeper is asked again."""
    node = Calling(s)
    keeper, b = Played(node, KEEPER), Played(node, "b", "r")
    node.place("r", b)

    def ask() -> None:
        node.ask("r1")
        s.sleep(direct_module.GOOD_FOR - 1.0)
        node.ask("r2")
        s.expect(len(keeper.asked) == 1, "it is good so long")
        s.sleep(2.0)
        node.ask("r3")

    s.thread("a", ask)
    s.check("asked twice", lambda: len(keeper.asked) == 2)
    s.check("all ran", lambda: b.ran == ["r1", "r2", "r3"])


def test_the_route_grows_old() -> None:
    run_random(the_route_grows_old, 20)


def the_keeper_goes_and_comes(s: Scenario) -> None:
    """Who waits for its word is still answered."""
    node = Calling(s)
    keeper, b = Played(node, KEEPER), Played(node, "b", "r")
    node.place("r", b)

    def go_and_come() -> None:
        keeper.go()
        s.step("is away")
        keeper.come()

    s.thread("a", node.ask, "r1")
    s.thread("topology", go_and_come)
    s.check("answered", lambda: node.ends == {"r1": "r1 at b"})


def test_the_keeper_goes_and_comes() -> None:
    run_random(the_keeper_goes_and_comes, 50)


def the_owners_node_goes_and_comes(s: Scenario) -> None:
    """Nobody waits for ever, nothing runs twice, and what was accepted is not sent again."""
    node = Calling(s)
    Played(node, KEEPER)
    b = Played(node, "b", "r")
    node.place("r", b)
    node.learn("r", b)

    def go_and_come() -> None:
        b.go()
        s.step("is away")
        b.come()

    s.thread("a", node.ask, "r1", "r2")
    s.thread("topology", go_and_come)
    s.check("at most once", lambda: len(set(b.ran)) == len(b.ran))
    s.check("answered, or lost", lambda: all(end in (f"{value} at b", "Unavailable") for value, end in node.ends.items()))


def test_the_owners_node_goes_and_comes() -> None:
    run_random(the_owners_node_goes_and_comes, 40)
    run_exhaustive(the_owners_node_goes_and_comes, preemptions=1, switches=0)


def the_deadline_covers_it_all(s: Scenario) -> None:
    """Also while the keeper says nothing, and while nodes refuse again and again, at an ever slower pace."""
    node = Calling(s)
    node.lead()
    keeper, b = Played(node, KEEPER), Played(node, "b")
    node.place("r", b)

    def ask() -> None:
        began = s.now
        node.ask("r1", timeout=0.5)
        s.expect(0.5 <= s.now - began <= 0.52, "at its deadline")
        s.expect(2 <= len(keeper.asked) <= 8, "again and again, but not all the time")
        keeper.deaf.clear()
        began = s.now
        node.ask("r2", timeout=0.5)
        s.expect(0.5 <= s.now - began <= 0.52, "at its deadline")
        s.sleep(0.3)

    s.thread("a", ask)
    s.check("late", lambda: set(node.ends.values()) == {"DeadlineExceeded"})


def test_the_deadline_covers_it_all() -> None:
    run_random(the_deadline_covers_it_all, 20)


def nobody_has_it(s: Scenario) -> None:
    """All who wait are told so, and who comes then asks again."""
    node = Calling(s)
    Played(node, KEEPER)
    s.thread("a", node.ask, "r1", "r3")
    s.thread("b", node.ask, "r2")
    s.check("told", lambda: list(node.ends.values()) == ["NotFound"] * 3)


def test_nobody_has_it() -> None:
    run_random(nobody_has_it, 40)


def one_in_the_line_is_cancelled(s: Scenario) -> None:
    """It is not sent when the location is known; the others are."""
    node = Calling(s)
    keeper, b = Played(node, KEEPER), Played(node, "b", "r")
    node.place("r", b)
    keeper.deaf.clear()
    first, second = node.start("r1"), node.start("r2")
    assert first is not None

    def cancel() -> None:
        first.cancel()
        keeper.deaf.set()

    s.thread("canceller", cancel)
    s.thread("a", node.wait, "r1", first)
    s.thread("b", node.wait, "r2", second)
    s.check("the other one", lambda: (b.ran, node.ends["r1"]) == (["r2"], "Cancelled"))


def test_one_in_the_line_is_cancelled() -> None:
    run_random(one_in_the_line_is_cancelled, 40)


def closed_while_the_keeper_is_asked(s: Scenario) -> None:
    """The call ends, and so does the task that asks; nothing is left of either."""
    node = Calling(s)
    keeper, b = Played(node, KEEPER), Played(node, "b", "r")
    node.place("r", b)
    keeper.deaf.clear()
    s.thread("a", node.ask, "r1", "r2")
    s.thread("closer", node.operations.close)
    s.check("ended by the close", lambda: set(node.ends.values()) == {"ShuttingDown"})


def closed_while_it_is_refused(s: Scenario) -> None:
    node = Calling(s)
    Played(node, KEEPER)
    b, c = Played(node, "b"), Played(node, "c", "r")
    node.place("r", c)
    node.learn("r", b)

    def close() -> None:
        node.operations.close()
        s.sleep(1.0)  # until whoever pauses has looked

    s.thread("a", node.ask, "r1")
    s.thread("closer", close)
    s.check("ended by the close, or answered", lambda: node.ends["r1"] in ("ShuttingDown", "r1 at c"))


def test_closed_while_the_keeper_is_asked() -> None:
    run_random(closed_while_the_keeper_is_asked, 40)
    run_exhaustive(closed_while_the_keeper_is_asked, preemptions=1, switches=0)
    run_random(closed_while_it_is_refused, 40)
    run_exhaustive(closed_while_it_is_refused, preemptions=1, switches=0)
