"""Who is silent is asked, who is dead is given up, and weights and draining change at run time."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from children import COMMAND, Child
from support import PATIENCE, eventually, new_place, outcome

from zlink_nogil import Host, Mesh, NotFound, Unavailable
from zlink_nogil.messaging.liveness import Liveness

# -- the book-keeping ---------------------------------------------------------------------------------------------------


def test_a_silent_one_is_asked_once_and_then_given_up():
    book: Liveness[str] = Liveness(5.0, 15.0)
    book.watch("a", 0.0)
    assert book.look(4.9) == ([], [])
    assert book.next() == 5.0
    assert book.look(5.0) == (["a"], [])
    assert book.look(10.0) == ([], []), "one question is outstanding"
    assert book.look(15.0) == ([], ["a"])


def test_anything_heard_keeps_it_alive_and_a_new_silence_is_a_new_question():
    book: Liveness[str] = Liveness(5.0, 15.0)
    book.watch("a", 0.0)
    assert book.look(5.0) == (["a"], [])
    book.heard(["a", "somebody else"], 9.0)
    assert book.look(10.0) == ([], [])
    assert book.look(15.0) == (["a"], [])
    book.forget("a")
    assert book.look(100.0) == ([], [])
    assert book.next() is None


def test_a_question_that_finds_no_room_is_asked_again():
    book: Liveness[str] = Liveness(5.0, 15.0)
    book.watch("a", 0.0)
    assert book.look(5.0) == (["a"], [])
    book.not_asked("a")
    assert book.look(10.0) == (["a"], [])


def test_a_look_that_comes_late_judges_nobody():
    book: Liveness[str] = Liveness(5.0, 15.0)
    book.watch("a", 0.0)
    assert book.look(60.0) == (["a"], []), "this process stood still: what came meanwhile is still unread"
    assert book.look(65.0) == ([], ["a"])


@pytest.mark.parametrize("times", [(0, 1), (1, 1.9), (float("inf"), float("inf")), (-1, 5)])
def test_times_that_make_no_sense_are_refused(times):
    with pytest.raises(ValueError, match="two probe_intervals"):
        Host().mesh("m", probe_interval=times[0], dead_after=times[1])


# -- a process that stands still ----------------------------------------------------------------------------------------

NODE = """
import os
from zlink_nogil import Context, Host

host = Host(workers=1)
mesh = host.mesh("lively", node_id="b", peers=[os.environ["TEST_PEER"]], probe_interval=0.1, dead_after=0.4)
ran = []

@mesh.handler
def echo(message: int, ctx: Context) -> list[int]:
    ran.append(message)
    return ran
"""


def test_a_frozen_process_is_given_up_and_comes_back(tmp_path: Path):
    (tmp_path / "lively_node.py").write_text(NODE)
    host = Host(workers=1)
    mesh = host.mesh("lively", node_id="a", probe_interval=0.1, dead_after=0.4)
    with host, Child(COMMAND, "serve", "lively_node:host", cwd=tmp_path, TEST_PEER=mesh.endpoint) as child:
        eventually(lambda: mesh.nodes() == ["b"])
        assert mesh.node("b").request(1).result(PATIENCE) == [1]
        threading.Event().wait(1.0)  # silent, and alive: several looks
        assert mesh.nodes() == ["b"]
        child.signal(signal.SIGSTOP)
        pending = mesh.node("b").request(2, timeout=60.0).submit()
        assert isinstance(outcome_of(pending), Unavailable)
        eventually(lambda: mesh.nodes() == [])
        with pytest.raises(NotFound):
            mesh.node("b").request(3).result(PATIENCE)
        child.signal(signal.SIGCONT)
        eventually(lambda: mesh.nodes() == ["b"])
        seen = mesh.node("b").request(4, reply=list[int]).result(PATIENCE)
        assert [number for number in seen if number != 2] == [1, 4]
        eventually(lambda: mesh.statistics()["pending"] == 0)


def test_what_is_late_for_a_frozen_process_is_not_run_there(tmp_path: Path):
    (tmp_path / "lively_node.py").write_text(NODE.replace("0.4", "60.0"))
    host = Host(workers=1)
    mesh = host.mesh("lively", node_id="a", probe_interval=0.1, dead_after=60.0)
    with host, Child(COMMAND, "serve", "lively_node:host", cwd=tmp_path, TEST_PEER=mesh.endpoint) as child:
        eventually(lambda: mesh.nodes() == ["b"])
        child.signal(signal.SIGSTOP)
        late = mesh.node("b").request(1, timeout=0.3, key="x").submit()
        eventually(late.done)
        child.signal(signal.SIGCONT)
        # it reads the record now: the time left when it was sent begins to run there, and the answer finds nobody
        assert mesh.node("b").request(2, reply=list[int], key="x").result(PATIENCE)[-1] == 2
        eventually(lambda: mesh.statistics()["late"] <= 1)
        assert mesh.statistics()["pending"] == 0


def outcome_of(completion: Any) -> Any:
    eventually(completion.done)
    return outcome(completion)


# -- weights and draining -----------------------------------------------------------------------------------------------


class World:
    def __init__(self, *names: str) -> None:
        self.hosts: dict[str, Host] = {}
        self.meshes: dict[str, Mesh] = {}
        places: list[str] = []
        for name in names:
            host = self.hosts[name] = Host(workers=1)
            place = new_place()
            mesh = self.meshes[name] = host.mesh("m", node_id=name, bind=place, peers=list(places))
            places.append(place)
            if name != "caller":
                mesh.channel("who").handler(named(name))
        for host in self.hosts.values():
            host.start()
        for host in self.hosts.values():
            host.wait_ready(PATIENCE)
        self.channel = self.meshes["caller"].channel("who")
        self.channel.wait_ready(len(names) - 1, PATIENCE)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for host in self.hosts.values():
            host.close()

    def ask(self, count: int) -> list[str]:
        return [self.channel.request("who", reply=str).result(PATIENCE) for _ in range(count)]


def named(name: str) -> Any:
    def who(message: str, ctx: Any) -> str:  # noqa: ARG001
        return name

    return who


def test_weights_change_at_run_time_and_lose_nothing():
    with World("caller", "A", "B") as world:
        assert sorted(world.ask(2)) == ["A", "B"]
        world.meshes["B"].channel("who").set_weight(300)
        eventually(lambda: Counter(world.ask(4)) == {"A": 1, "B": 3})
        world.meshes["A"].channel("who").set_weight(0)
        eventually(lambda: set(world.ask(4)) == {"B"})
        world.meshes["B"].channel("who").set_weight(0)
        eventually(lambda: _none(world))
        world.meshes["A"].channel("who").set_weight(1)
        eventually(lambda: not _none(world))
        assert world.ask(3) == ["A"] * 3


def _none(world: World) -> bool:
    try:
        world.ask(1)
    except NotFound:
        return True
    return False


def test_a_draining_node_is_left_out_until_it_is_taken_back():
    with World("caller", "A", "B") as world:
        world.meshes["A"].set_draining(True)
        eventually(lambda: set(world.ask(4)) == {"B"})
        assert world.meshes["caller"].node("A").node == "A"
        assert world.meshes["caller"].nodes() == ["A", "B"]
        world.meshes["A"].set_draining(False)
        eventually(lambda: set(world.ask(4)) == {"A", "B"})


def test_calls_while_weights_change_all_arrive():
    with World("caller", "A", "B") as world:
        calls = []
        for number in range(200):
            world.meshes["A"].channel("who").set_weight(number % 3 * 100)
            calls.append(world.channel.request("who", reply=str).submit())
        assert {call.result(PATIENCE) for call in calls} <= {"A", "B"}


def test_choosing_scans_nothing_while_the_list_stays(monkeypatch: pytest.MonkeyPatch):
    with World("caller", "A", "B") as world:
        selector = world.meshes["caller"].selector("who")
        steps: list[Any] = []
        for method in ("_step", "_prepare"):
            monkeypatch.setattr(type(selector), method, lambda *args: steps.append(args))
        assert len(world.ask(20)) == 20
        assert steps == []
