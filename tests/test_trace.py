"""The trace (design 4.8): what it says of the three APIs, and that it can be had and got rid of at any time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from background import Background
from support import PATIENCE, Net, echo, eventually, new_place
from traces import TOOL, report

from zlink_nogil import Completion, Host, InvalidOperation, Spot, handler
from zlink_nogil.messaging.codecs import JsonCodec
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler.role import LED
from zlink_nogil.state import StateLane


@dataclass
class Say:
    text: str


class Room(Spot):
    @handler
    def say(self, message: Say, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return message.text


@dataclass
class Pair:
    """Two hosts, one of which asks the other."""

    api: str
    here: Host
    there: Host
    request: Callable[[str], Completion[Any]]
    send: Callable[[str], Completion[Any]]
    settled: Callable[[], bool] = lambda: True
    """Does nobody look for the owner any more?"""

    def ask(self) -> None:
        assert self.request("x").result(PATIENCE) == "x"

    def ask_one_at_rest(self) -> None:
        """When its workers sleep again, so that its owner is empty."""
        role = self.there._ingress._role
        eventually(lambda: role.state == LED and not role.by_standby, "a worker waits in the sockets")
        self.ask()


def say(message: str, ctx: Any) -> str:  # noqa: ARG001
    if message == "no":
        raise ValueError(message)
    return message


def started(stack: ExitStack, host: Host) -> Host:
    stack.enter_context(host)
    return host


def mesh(stack: ExitStack) -> Pair:
    hosts = Host(workers=2), Host(workers=2)
    there = hosts[1].mesh("m", bind=new_place(), node_id="there")
    there.channel("work").handler(say)
    started(stack, hosts[1])
    here = hosts[0].mesh("m", bind=new_place(), node_id="here", peers=[there.endpoint])
    started(stack, hosts[0]).wait_ready(PATIENCE)
    work = here.channel("work")
    return Pair("mesh", *hosts, lambda text: work.request(text, reply=str).submit(), lambda text: work.send(text).submit())


def client_server(stack: ExitStack) -> Pair:
    hosts, place = (Host(workers=2), Host(workers=2)), new_place()
    hosts[1].server("work", bind=place).handler(say)
    client = hosts[0].client("work", servers=[place])
    for host in reversed(hosts):
        started(stack, host)
    hosts[0].wait_ready(PATIENCE)
    return Pair(
        "client-server",
        *hosts,
        lambda text: client.request(text, reply=str).submit(),
        lambda text: client.send(text).submit(),
    )


def spot(stack: ExitStack) -> Pair:
    hosts = Host(workers=2), Host(workers=2)
    meshes = []
    for host, name in zip(reversed(hosts), ("there", "here"), strict=True):
        peers = [each.endpoint for each in meshes]
        meshes.append(host.mesh("m", bind=new_place(), node_id=name, peers=peers, locations="there"))
        host.spots.register(Room)
        started(stack, host)
    hosts[0].wait_ready(PATIENCE)
    hosts[1].spots.create("Room", "r").result(PATIENCE)
    spots = hosts[0].spots
    return Pair(
        "spot",
        *hosts,
        lambda text: spots.request("r", Say(text), reply=str).submit(),
        lambda text: spots.send("r", Say(text)).submit(),
        lambda: not meshes[1].direct._lines,
    )


@pytest.fixture(params=[mesh, client_server, spot])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = request.param(stack)
        pair.ask()  # from here on the selector, the owner's queue and the route to the Spot are there
        eventually(pair.settled, "the route is kept")
        yield pair


def traced(pair: Pair, folder: Path, work: Callable[[], object]) -> list[Any]:
    """The messages of `work`, as both sides saw them."""
    files = [folder / "here.jsonl", folder / "there.jsonl"]
    with pair.here.trace(files[0]), pair.there.trace(files[1]):
        work()
        eventually(lambda: pair.there._permits.free() == pair.there._permits.most, "everything has run")
        pair.ask()  # who has answered the last one has noted all the others' ends
    (messages,) = [messages for api, messages in report.read(files).items() if api == pair.api]
    return list(messages)[:-1]


def counts(messages: list[Any], what: str) -> set[int]:
    return set(report.counted(messages, report.COUNTS[what]))


def test_a_request_passes_every_stage_once_and_in_order(pair: Pair, tmp_path: Path) -> None:
    (message,) = traced(pair, tmp_path, pair.ask)
    assert set(message) == {*["E1", "E2", "E3", "E4", "E5", "R", "I0", "I1", "I2", "I3", "I4", "W1", "W2", "W3", "W4", "W5"]}
    for side in ("E1 E2 E3 E4 R", "E1 E2 E3 E5 R", "I0 I1 I2 I3 I4", "I3 W1 W2 W3 W4 W5"):
        times = [message[stage]["at"] for stage in side.split()]
        assert times == sorted(times), side
    assert message["I3"]["at"] > message["E3"]["at"]
    assert message["E5"]["at"] > message["W3"]["at"]


def test_from_the_call_to_the_socket_there_is_no_hand_over_and_two_lanes_at_most(pair: Pair, tmp_path: Path) -> None:
    messages = traced(pair, tmp_path, lambda: [pair.ask() for _ in range(5)])
    assert len(messages) == 5
    assert counts(messages, "hand-overs from the call to the socket") == {0}
    assert counts(messages, "lanes entered up to the socket") == ({1} if pair.api == "spot" else {2})
    assert counts(messages, "tasks, completions, threads made when sending") == {1}, "what the caller gets"


def test_an_answer_goes_to_who_waits_with_one_hand_over_or_none(pair: Pair, tmp_path: Path) -> None:
    messages = traced(pair, tmp_path, lambda: [pair.ask() for _ in range(5)])
    assert counts(messages, "hand-overs from the end to who waits") <= {0, 1}
    assert counts(messages, "hand-overs from the handler to the answer") == {0}


def test_a_payload_is_written_once_on_each_way_and_cut_out_once(pair: Pair, tmp_path: Path) -> None:
    messages = traced(pair, tmp_path, lambda: [pair.ask() for _ in range(3)])
    for what in ("sending", "receiving", "answering", "reading the answer"):
        assert counts(messages, f"copies when {what}") == {1}, what


def test_a_payload_is_encoded_once_and_decoded_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count(name: str) -> None:
        real = getattr(JsonCodec, name)

        def counted(*args: Any) -> Any:
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(JsonCodec, name, counted)

    count("encode")
    count("decode")
    pair.ask()
    assert sorted(calls) == ["decode", "decode", "encode", "encode"], "the message and the answer"


def test_a_record_gets_no_task_and_no_hand_over_but_the_worker_that_is_woken(pair: Pair, tmp_path: Path) -> None:
    messages = traced(pair, tmp_path, lambda: [pair.ask_one_at_rest() for _ in range(5)])
    for where in ("when receiving", "around the handler"):
        assert counts(messages, f"tasks, completions, threads made {where}") == {0}
    assert counts(messages, "the same from the claim to the end, on one thread") == {0}, "the worker that led ran it"
    assert counts(messages, "hand-overs from the claim to the handler") <= {0, 1}
    assert counts(messages, "runnables given to workers by a commit") == {1}


def test_sends_are_over_in_the_socket_and_are_not_answered(pair: Pair, tmp_path: Path) -> None:
    messages = traced(pair, tmp_path, lambda: [pair.send("x").result(PATIENCE) for _ in range(3)])
    assert len(messages) == 3
    for message in messages:
        assert set(message) == {*["E1", "E2", "E3", "E4", "E5", "I0", "I1", "I2", "I3", "I4", "W1", "W2", "W3", "W5"]}
        assert message["E5"]["thread"] == message["E1"]["thread"]


def test_an_owner_with_work_is_not_woken_again(tmp_path: Path) -> None:
    with Net() as net:
        held = net.hold()
        client, server = net.pair(held.answer)
        files = [tmp_path / "here.jsonl", tmp_path / "there.jsonl"]
        with client.host.trace(files[0]), server.host.trace(files[1]):
            asking = [client.work.request(b"%d" % n, reply=bytes).submit() for n in range(20)]
            held.wait_begun()
            eventually(lambda: server.host._permits.free() == server.host._permits.most - 19, "all are committed")
            held.gate.set()
            assert [each.result(PATIENCE) for each in asking] == [b"%d" % n for n in range(20)]
    messages = report.read(files)["mesh"]
    woke = [message for message in messages if message["I4"]["given"] > message["I3"]["given"]]
    assert len(messages) == 20
    assert len({(message["I4"]["thread"], message["I4"]["given"]) for message in woke}) == 1, "one commit, once"


# -- having it, and getting rid of it -------------------------------------------------------------------------------


def test_every_nth_message_is_traced_on_both_sides(tmp_path: Path) -> None:
    with Net() as net:
        client, server = net.pair(echo)
        files = [tmp_path / "here.jsonl", tmp_path / "there.jsonl"]
        with client.host.trace(files[0], sample=3), server.host.trace(files[1]):
            for _ in range(7):
                client.work.request(b"x", reply=bytes).result(PATIENCE)
            eventually(lambda: len(server.host._tracer.recorder._events) >= 3 * 10, "the last one has ended there, too")
        messages = report.read(files)["mesh"]
    assert len(messages) == 3
    assert all("W5" in message and "R" in message for message in messages)


def test_a_failing_handler_and_a_call_that_waits_for_its_server_are_traced_to_their_ends(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = mesh(stack)
        (message,) = traced(pair, tmp_path, lambda: pair.request("no").exception(PATIENCE))
        assert {"W1", "W2", "W3", "W4", "W5", "E5"} <= set(message)
    with ExitStack() as stack:
        place, file = new_place(), tmp_path / "waiting.jsonl"
        asking, serving = Host(workers=2), Host(workers=2)
        client = asking.client("work", servers=[place])
        serving.server("work", bind=place).handler(say)
        started(stack, asking)
        with asking.trace(file):
            call = client.request("x", reply=str).submit()
            started(stack, serving)
            assert call.result(PATIENCE) == "x"
        (waited,) = report.read([file])["client-server"]
        assert [*["E1", "E3", "E2", "E4", "E5", "R"]] == sorted(waited, key=lambda stage: waited[stage]["at"])


def test_one_side_alone_is_traced_too(tmp_path: Path) -> None:
    with Net() as net:
        client, server = net.pair(echo)
        with client.host.trace(tmp_path / "here.jsonl"):
            client.work.request(b"x", reply=bytes).result(PATIENCE)
        with server.host.trace(tmp_path / "there.jsonl"):
            client.work.request(b"x", reply=bytes).result(PATIENCE)
    (message,) = report.read([tmp_path / "here.jsonl"])["mesh"]
    assert set(message) == {"E1", "E2", "E3", "E4", "E5", "R"}
    assert (tmp_path / "there.jsonl").read_text() == "", "its sender has not sampled it"


def test_a_host_is_traced_once_at_a_time_and_nothing_is_left_behind(tmp_path: Path) -> None:
    methods = (StateLane.run, WorkerPool.submit, Completion.__init__)
    host, other = Host(workers=1), Host(workers=1)
    first = host.trace(tmp_path / "a")
    with pytest.raises(InvalidOperation, match="already"):
        host.trace(tmp_path / "b")
    with other.trace(tmp_path / "c"):
        first.close()
        first.close()
        assert StateLane.run is not methods[0], "the other one still counts"
    assert (StateLane.run, WorkerPool.submit, Completion.__init__) == methods
    host.trace(tmp_path / "d")
    host.close()
    assert (StateLane.run, WorkerPool.submit, Completion.__init__) == methods, "a host's end is its trace's end"
    with pytest.raises(ValueError, match="manieth"):
        other.trace(tmp_path / "e", sample=0)
    with pytest.raises(OSError, match="No such file"):
        other.trace(tmp_path / "no" / "e")
    other.close()


def test_a_message_that_outlives_its_trace_is_only_not_written(tmp_path: Path) -> None:
    with Net() as net:
        held = net.hold()
        client, server = net.pair(held.answer)
        file = tmp_path / "there.jsonl"
        with client.host.trace(tmp_path / "here.jsonl"), server.host.trace(file):
            asking = client.work.request(b"x", reply=bytes).submit()
            held.wait_begun()
        held.gate.set()
        assert asking.result(PATIENCE) == b"x"
        with server.host.trace(tmp_path / "again.jsonl"):
            assert client.work.request(b"x", reply=bytes).result(PATIENCE) == b"x"
    seen = {json.loads(line)["stage"] for line in file.read_text().splitlines()}
    assert seen - {"I4"} == {"I0", "I1", "I2", "I3", "W1", "W2", "W3"}, "who committed it may still have been at it"


def test_a_long_trace_is_written_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zlink_nogil.messaging.tracing.MOST_BUFFERED", 40)
    with Net() as net:
        client, server = net.pair(echo)
        file = tmp_path / "there.jsonl"
        with client.host.trace(tmp_path / "here.jsonl"), server.host.trace(file):

            def ask() -> None:
                for _ in range(50):
                    client.work.request(b"x", key=str(threading.get_ident()), reply=bytes).result(PATIENCE)

            for asking in [Background(ask) for _ in range(2)]:
                asking.result()
            recorder = server.host._tracer.recorder
            assert recorder is not None
            assert len(recorder._events) < 100 * 10 - 40
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    written = Counter((line["id"], line["stage"]) for line in lines)
    assert set(written.values()) == {1}
    stages = Counter(line["stage"] for line in lines)
    assert {stages[stage] for stage in stages.keys() - {"I4", "W5"}} == {100}
    assert min(stages["I4"], stages["W5"]) >= 98, "the last two may have been answered before these"


SCRIPT = """
import sys
from zlink_nogil import Host

role, place, *files = sys.argv[1:]
host = Host(workers=1)
mesh = host.mesh("m", bind=place if role == "server" else "ipc://@" + place[7:] + "-c", peers=files[:1], node_id=role)

def echo(message: bytes, ctx) -> bytes:
    return message

if role == "server":
    mesh.channel("work").handler(echo)
with host:
    if role == "server":
        print("up", flush=True)
        sys.stdin.read()
    else:
        host.wait_ready(10)
        for _ in range(3):
            assert mesh.channel("work").request(b"x", reply=bytes).result(10) == b"x"
"""


def test_two_processes_are_traced_by_the_environment_and_reported_together(tmp_path: Path) -> None:
    place = new_place()
    environment = os.environ | {"ZLINK_TRACE": str(tmp_path / "t"), "ZLINK_TRACE_SAMPLE": "1", "PYTHON_GIL": "0"}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(
        [*command, "server", place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        client = subprocess.run([*command, "client", place, place], env=environment, timeout=60, check=False)
        server.communicate(timeout=60)
    assert (client.returncode, server.returncode) == (0, 0)
    files = sorted(tmp_path.glob("t-*-1.jsonl"))
    assert len(files) == 2
    shown = subprocess.run([sys.executable, str(TOOL), *map(str, files)], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "mesh: " in shown.stdout
    assert "hand-overs from the call to the socket" in shown.stdout
    (messages,) = report.read(files).values()
    assert len(messages) == 3
    assert all("E1" in message and "W5" in message for message in messages), "seen from both sides"


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("nonsense\n")
    done = subprocess.run([sys.executable, str(TOOL), str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, "is no trace" in done.stderr) == (1, True)
