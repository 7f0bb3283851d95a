"""`ClientNode` and `Servers` under every schedule: servers come, are lost, leave, while calls wait or are pending."""

from __future__ import annotations

from zlink_nogil.messaging import waiting_line

from .clients import Client, Played
from .harness import Scenario, run_exhaustive, run_random


def a_server_comes(s: Scenario) -> None:
    """Calls that wait go out when the first is ready, each caller's in its order."""
    client = Client(s, "b")
    b = Played(client, "b")

    def call() -> None:
        client.connect()
        client.tell("1", "2", "3")

    s.thread("a", call)
    s.thread("watcher", client.wait_ready, 1)
    s.check("in order", lambda: b.ran == ["1", "2", "3"])


def test_a_server_comes() -> None:
    run_random(a_server_comes)


def a_server_is_lost(s: Scenario) -> None:
    """What was pending there ends; what comes afterwards waits for its next life, and nothing else gets there."""
    client = Client(s, "b")
    b = Played(client, "b")
    client.connect()
    client.wait_ready(1)
    b.mute = True
    lives = [b]

    def restart() -> None:
        b.die()
        lives.append(Played(client, "b", generation=2))
        s.sleep(0.01)  # until its loss is known
        client.wait_ready(1)
        client.ask("2")

    s.thread("a", client.ask, "1")
    s.thread("restarter", restart)
    s.check("ended when it was lost", lambda: client.ends["1"] in ("b", "Unavailable", "never accepted"))
    s.check("lost is lost", lambda: client.ends["1"] == "b" or "1" not in lives[1].ran)
    s.check("if never accepted, never read", lambda: client.ends["1"] != "never accepted" or "1" not in b.ran)
    s.check("if answered, by the next life", lambda: client.ends["1"] != "b" or "1" in lives[1].ran)
    s.check("the second is answered", lambda: client.ends["2"] == "b")
    s.check("each reached one life", lambda: len(set(b.ran + lives[1].ran)) == len(b.ran + lives[1].ran))


def test_a_server_is_lost() -> None:
    run_random(a_server_is_lost, 60)


def one_calls_as_it_is_lost(s: Scenario) -> None:
    """The call is sent and ends with the rest, or finds nobody."""
    client = Client(s, "b")
    b = Played(client, "b")
    client.connect()
    client.wait_ready(1)
    b.mute = True
    s.thread("killer", b.die)
    s.thread("a", client.ask, "1")
    s.check("nobody waits for its deadline", lambda: client.ends["1"] in ("Unavailable", "never accepted"))


def test_one_calls_as_it_is_lost() -> None:
    run_random(one_calls_as_it_is_lost, 30)
    run_exhaustive(one_calls_as_it_is_lost, preemptions=1, switches=0)


def it_dies_when_it_has_answered(s: Scenario) -> None:
    """The answer counts."""
    client = Client(s, "b")
    b = Played(client, "b")
    client.connect()
    client.wait_ready(1)
    b.mute = True
    call = client.start("1")
    s.sleep(1.0)
    s.expect(b.ran == ["1"], "it is there")
    s.thread("somebody", client.node.wake)  # so that the leader may be looking already
    s.thread("a", client.wait, "1", call)
    s.thread("killer", lambda: b.die(answer_first=True))
    s.check("answered", lambda: client.ends == {"1": "b"})


def test_it_dies_when_it_has_answered() -> None:
    run_random(it_dies_when_it_has_answered, 30)
    run_exhaustive(it_dies_when_it_has_answered, preemptions=1, switches=0)


def the_last_one_leaves(s: Scenario) -> None:
    """It answers what it has got; what comes then waits for another."""
    client = Client(s, "b", "c")
    b = Played(client, "b")
    client.connect()
    client.wait_ready(1)
    others: list[Played] = []

    def leave() -> None:
        b.leave()
        s.sleep(1.0)
        call = client.start("2")
        others.append(Played(client, "c"))
        client.wait("2", call)

    s.thread("a", client.ask, "1")
    s.thread("b leaves", leave)
    s.check("answered by either", lambda: client.ends["1"] == ("b" if "1" in b.ran else "c"))
    s.check("answered by the other", lambda: client.ends["2"] == "c" and "2" in others[0].ran)


def test_the_last_one_leaves() -> None:
    run_random(the_last_one_leaves, 50)


def nobody_comes(s: Scenario) -> None:
    """A call waits so long, or until its deadline; then it was never accepted."""
    client = Client(s, "b")
    client.connect()

    def ask(value: str, timeout: float, seconds: float) -> None:
        began = s.now
        client.ask(value, timeout=timeout)
        s.expect(seconds <= s.now - began <= seconds + 0.1, "so long and no longer")

    s.thread("a", ask, "1", 1000.0, waiting_line.MOST_WAIT)
    s.thread("b", ask, "2", 1.0, 1.0)
    s.check("told", lambda: client.ends == {"1": "never accepted", "2": "DeadlineExceeded"})


def test_nobody_comes() -> None:
    run_random(nobody_comes)


def it_closes(s: Scenario) -> None:
    """Whether a call waits for a server, is pending there, or just begins: it ends."""
    client = Client(s, "b")
    b = Played(client, "b")
    client.connect()

    def ask() -> None:
        client.ask("1", "2")

    s.thread("a", ask)
    s.thread("closer", client.node.close, 1.0)
    s.check("answered or closed", lambda: set(client.ends.values()) <= {"b", "ShuttingDown"})
    s.check("what was answered ran", lambda: all(value in b.ran for value, end in client.ends.items() if end == "b"))


def test_it_closes() -> None:
    run_random(it_closes)


def a_silent_server(s: Scenario) -> None:
    """It is asked, once at a time, and given up; what was pending ends, and it is back when it speaks again."""
    client = Client(s, "b", liveness=(1.0, 4.0))
    b = Played(client, "b")
    client.connect()
    client.wait_ready(1)
    b.mute = True

    def ask() -> None:
        client.ask("1")
        s.expect(b.probes == 1, "asked once")
        client.ask("2")

    def speak_again() -> None:
        s.sleep(4.5)
        b.speak()

    s.thread("a", ask)
    s.thread("b speaks", speak_again)
    s.check("only who is there is watched", lambda: len(client.node.servers._liveness._watched) == 1)
    s.check("lost, then back", lambda: client.ends == {"1": "Unavailable", "2": "b"})


def test_a_silent_server() -> None:
    run_random(a_silent_server, 30)


def it_leaves_and_comes_back(s: Scenario) -> None:
    """Its next life is chosen again."""
    client = Client(s, "b")
    b = Played(client, "b")
    client.connect()
    client.wait_ready(1)

    def leave_and_come_back() -> None:
        b.leave()
        b.die()
        Played(client, "b", generation=2)
        s.sleep(1.0)
        client.ask("1")

    s.thread("restarter", leave_and_come_back)
    s.check("answered", lambda: client.ends == {"1": "b"})


def test_it_leaves_and_comes_back() -> None:
    run_random(it_leaves_and_comes_back, 30)
