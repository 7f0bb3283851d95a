"""Failure kinds of section E, messages between nodes: `KINDS` says which tests look at each kind; the new ones are here.

Who answers wrongly, late, twice or not at all is a `Stranger`: a node that does what the test says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from spots import missing, named_tests
from strangers import GENERATION, Stranger
from support import PATIENCE, Net, Node, echo, eventually, outcome

from zlink_nogil import Completion, DeadlineExceeded, Host, Unavailable
from zlink_nogil.binding import raw
from zlink_nogil.messaging import wire
from zlink_nogil.messaging.liveness import Liveness
from zlink_nogil.messaging.wire import Kind

KINDS = {
    "E1 the only receive thread dies and the process looks healthy": (
        "test_whatever_a_callback_raises_the_next_request_is_answered",
        "test_mesh_bad_input.py::test_garbage_on_the_data_socket_is_counted_and_survived",
        "test_mesh_bad_input.py::test_garbage_on_the_completion_socket_is_counted_and_survived",
        "test_mesh_bad_input.py::test_answers_nobody_waits_for_are_counted_as_late",
        "test_mesh_bad_input.py::test_answers_that_cannot_be_read_end_their_requests_and_a_second_answer_is_late",
        "test_mesh_failures.py::test_whatever_a_handler_raises_the_owner_goes_on",
        "test_operations.py::test_exactly_one_of_reply_error_deadline_cancel_loss_and_close_ends_an_operation",
        "test_standby.py::test_it_survives_a_driver_that_raises",
        "test_fuzz.py::test_bad_frames_at_every_socket_break_nothing",
    ),
    "E2 liveness probes leak, pile up, or switch themselves off": (
        "test_a_frozen_peer_gets_one_question_over_many_intervals_and_its_next_life_is_asked_again",
        "test_liveness.py::test_a_silent_one_is_asked_once_and_then_given_up",
        "test_liveness.py::test_anything_heard_keeps_it_alive_and_a_new_silence_is_a_new_question",
        "test_liveness.py::test_a_question_that_finds_no_room_is_asked_again",
        "test_liveness.py::test_a_frozen_process_is_given_up_and_comes_back",
    ),
    "E3 helper tables for answered or expired ids never shrink; a sweeper kills live requests": (
        "test_answered_late_and_doubled_replies_leave_nothing_and_match_nothing_else",
        "test_operations.py::test_finished_operations_are_let_go_at_once_and_not_at_their_deadline",
        "test_mesh_peers.py::test_reconnecting_does_not_pile_up_what_is_known_of_a_peer",
        "test_mesh_pressure.py::test_senders_and_askers_of_every_kind_against_tiny_limits_leave_everything_at_zero",
    ),
    "E4 a send to a full peer that then disconnects blocks for ever": (
        "test_while_a_peer_is_full_others_are_answered_and_its_end_ends_what_waits_for_it",
        "test_mesh_pressure.py::test_what_waits_for_a_node_that_dies_ends_at_once_as_never_accepted",
        "test_mesh_pressure.py::test_a_stuck_node_holds_up_neither_others_nor_answers_nor_deadlines",
        "test_mesh_pressure.py::test_sends_to_a_node_that_does_not_read_wait_and_all_arrive_in_order_once_it_does",
        "test_client_server_failures.py::test_a_server_that_stops_reading_holds_up_its_own_calls_and_gets_them_in_order",
        "test_client_server_failures.py::test_what_waits_for_a_client_that_goes_is_dropped_and_counted",
        "test_binding.py::test_a_full_peer_holds_up_nobody_else",
    ),
    "E5 a peer restarts under a new or the same identity": (
        "test_a_new_life_at_the_same_place_while_nobody_reads_gets_the_next_message_and_answers_no_old_one",
        "test_mesh_peers.py::test_a_node_that_has_moved_is_found_when_it_calls",
        "test_mesh_peers.py::test_a_node_that_is_started_again_at_its_place_is_found_again",
        "test_mesh_peers.py::test_a_killed_peer_ends_what_was_in_flight_once_each_and_comes_back_as_a_new_life",
        "test_mesh_peers.py::test_two_nodes_of_one_name_do_not_throw_each_other_out_for_ever",
        "test_mesh_bad_input.py::test_a_request_for_another_life_is_refused_as_never_accepted",
        "test_mesh_bad_input.py::test_nodes_of_different_meshes_and_of_one_name_do_not_pair",
        "test_binding.py::test_a_stranger_cannot_take_a_name_that_is_in_use",
        "test_client_server_failures.py::test_a_server_that_is_killed_is_left_and_its_next_life_is_found",
    ),
    "a peer is chosen only after both hellos, and what it answers before counts": (
        "test_mesh_peers.py::test_a_peer_that_calls_before_it_is_called_is_one_link_and_stays",
        "test_mesh_peers.py::test_answers_that_come_by_a_new_connection_count",
        "test_links.py::test_a_node_that_does_not_welcome_us_hears_our_hello_until_it_does",
    ),
}


def test_every_kind_is_looked_at():
    mentioned = [reference for references in KINDS.values() for reference in references]
    assert missing(mentioned, __file__) == []
    assert named_tests(__file__) - set(mentioned) == {"test_every_kind_is_looked_at"}


RAW_REPLY = wire.pack_route("application/octet-stream")


class Life(Stranger):
    """A life of a node: `generation` is its own, `at` the data endpoint of an earlier one."""

    def __init__(self, node: Node, name: str, generation: int = GENERATION, at: str | None = None) -> None:
        super().__init__(node, name)
        self.generation = generation
        if at is not None:
            self.data_in.unbind(self.data_endpoint)
            self.data_in.bind(at)
            self.data_endpoint = at

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = super()._socket(kind)
        socket.setsockopt(zmq.RCVHWM, 2)
        socket.setsockopt(zmq.RCVBUF, 4096)
        if kind == zmq.DEALER:  # liveness goes by the name of the connection
            socket.setsockopt(zmq.ROUTING_ID, self.name.encode() + os.urandom(8))
        return socket

    def introduction(self, **changes: Any) -> dict[str, Any]:
        return super().introduction(**{"generation": self.generation, **changes})

    def read(self, kind: Kind) -> tuple[wire.Header, bytes]:
        """The next record of this kind, and its payload."""
        while True:
            record = self.data_in.recv_multipart()[1]
            header = wire.unpack(record)
            if header.kind is kind:
                return header, record[header.payload_at :]

    def reply(self, reply_route: int, payload: bytes) -> None:
        to = {"generation": self.node.generation, "reply_route": reply_route}
        self.completion_out.send(wire.pack(Kind.REPLY, RAW_REPLY, b"", payload, **to))


class Lives:
    """Makes them, and closes what is left."""

    def __init__(self) -> None:
        self.made: list[Life] = []

    def join(self, node: Node, name: str, **options: Any) -> Life:
        life = Life(node, name, **options)
        self.made.append(life)
        life.hello()
        life.join()
        return life


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


@pytest.fixture
def lives() -> Iterator[Lives]:
    lives = Lives()
    yield lives
    for life in lives.made:
        life.close()


class Unheard(BaseException):
    pass


def test_whatever_a_callback_raises_the_next_request_is_answered(net: Net):
    client, _ = net.pair(echo)
    for error in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, Unheard):
        called = threading.Event()

        def fail(_: Completion[Any], error: type[BaseException] = error, called: threading.Event = called) -> None:
            called.set()
            raise error("on purpose")

        completion = client.work.request(b"x", reply=bytes).submit()
        completion.add_done_callback(fail)
        assert completion.result(PATIENCE) == b"x"
        assert called.wait(PATIENCE)
        assert client.work.request(b"canary", reply=bytes, timeout=PATIENCE).result() == b"canary"
    assert client.count("pending") == client.count("deadlines") == 0
    eventually(lambda: client.host._slots.taken() == 0, "the slots are back")


def test_a_frozen_peer_gets_one_question_over_many_intervals_and_its_next_life_is_asked_again(
    net: Net, lives: Lives, monkeypatch: pytest.MonkeyPatch
):
    looks = 0
    look = Liveness.look

    def counted(book: Liveness[str], now: float) -> tuple[list[str], list[str]]:
        nonlocal looks
        looks += 1
        return look(book, now)

    monkeypatch.setattr(Liveness, "look", counted)
    host = Host(workers=1)
    client = Node(host, host.mesh("test", node_id="client", probe_interval=0.005, dead_after=60.0))
    net.nodes.append(client)
    host.start()
    frozen = lives.join(client, "frozen")
    frozen.read(Kind.PROBE)
    seen = looks
    eventually(lambda: looks >= seen + 60, "sixty intervals pass")
    assert frozen.data_in.poll(0) == 0, "one question is outstanding"
    assert client.count("pending") == 0
    frozen.completion_out.send(frozen.says(Kind.ACK))
    frozen.read(Kind.PROBE)  # it was answered: a new silence is a new question
    frozen.close()
    eventually(lambda: client.mesh.nodes() == [], "it is gone with the question unanswered")
    again = lives.join(client, "frozen", generation=GENERATION + 1)
    eventually(lambda: client.mesh.nodes() == ["frozen"], "its next life is there")
    again.read(Kind.PROBE)
    seen = looks
    eventually(lambda: looks >= seen + 10, "ten intervals pass")
    assert again.data_in.poll(0) == 0, "no old questions come"


def test_answered_late_and_doubled_replies_leave_nothing_and_match_nothing_else(net: Net, lives: Lives):
    client = net.node("client")
    peer = lives.join(client, "peer")
    eventually(lambda: client.mesh.nodes() == ["peer"], "it can be chosen")
    long = client.work.request(b"long", reply=bytes, timeout=60.0).submit()
    long_route = peer.read(Kind.REQUEST)[0].reply_route
    old: list[int] = []
    expired = 0
    for round_ in range(20):
        given_up = [client.work.request(b"late", reply=bytes, timeout=0.001).submit() for _ in range(10)]
        late = [peer.read(Kind.REQUEST)[0].reply_route for _ in given_up]
        assert {type(outcome(completion)) for completion in given_up} == {DeadlineExceeded}
        expired += len(given_up)
        bodies = [b"%d.%d" % (round_, number) for number in range(100)]
        calls = [client.work.request(body, reply=bytes).submit() for body in bodies]
        asked = [peer.read(Kind.REQUEST) for _ in calls]
        for route in (*old, *late):
            peer.reply(route, b"of an old request")
        for header, body in asked:
            peer.reply(header.reply_route, body)
        assert [call.result(PATIENCE) for call in calls] == bodies
        old = [header.reply_route for header, _ in asked]  # each is answered once more in the next round
    eventually(lambda: client.count("late") == expired + 19 * 100, "late and doubled ones are counted")
    assert not long.done()
    assert (client.count("pending"), client.count("deadlines"), client.host._slots.taken()) == (1, 1, 1)
    peer.reply(long_route, b"long")
    assert long.result(PATIENCE) == b"long"
    assert (client.count("pending"), client.count("deadlines"), client.count("malformed")) == (0, 0, 0)
    eventually(lambda: client.host._slots.taken() == 0, "the slots are back")


def test_while_a_peer_is_full_others_are_answered_and_its_end_ends_what_waits_for_it(
    net: Net, lives: Lives, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(raw, "HIGH_WATER_MARK", 2)
    other = net.node("other", own=(echo,))
    client = net.node("client", peers=(other,))
    net.ready(client, other)
    full = lives.join(client, "full")
    eventually(lambda: "full" in client.mesh.nodes(), "it can be chosen")
    there, full_node = client.mesh.node("other"), client.mesh.node("full")
    more_than_all_buffers = 30
    sends = [full_node.send(b"x" * 900_000, timeout=60.0).submit() for _ in range(more_than_all_buffers)]
    request = full_node.request(b"x", timeout=60.0).submit()
    for number in range(300):
        assert there.request(b"%d" % number, reply=bytes, timeout=PATIENCE).result() == b"%d" % number
    assert [end.done() for end in (sends[-1], request)] == [False, False]
    going = [there.request(b"%d" % number, reply=bytes, timeout=PATIENCE).submit() for number in range(50)]
    full.close()
    errors = [outcome(end) for end in (sends[-1], request)]
    assert [(type(error), error.accepted) for error in errors] == [(Unavailable, False)] * 2
    assert [call.result(PATIENCE) for call in going] == [b"%d" % number for number in range(50)]
    assert client.count("pending") == client.count("deadlines") == 0
    eventually(lambda: client.host._slots.taken() == 0, "the slots are back")


def test_a_new_life_at_the_same_place_while_nobody_reads_gets_the_next_message_and_answers_no_old_one(
    net: Net, lives: Lives
):
    client = net.node("client")
    first = lives.join(client, "server")
    eventually(lambda: client.mesh.nodes() == ["server"], "it can be chosen")
    completions = client.mesh._node.completions
    rotate = completions.rotate
    held, go_on = threading.Event(), threading.Event()

    def not_now(ready: Any) -> float | None:
        held.set()
        assert go_on.wait(PATIENCE), "nobody let it go on"
        return rotate(ready)

    pending = client.work.request(b"old", reply=bytes, timeout=60.0).submit()
    route = first.read(Kind.REQUEST)[0].reply_route
    completions.rotate = not_now
    try:
        completions.wake()
        assert held.wait(PATIENCE)
        first.close()
        second = Life(client, "server", GENERATION + 1, at=first.data_endpoint)
        lives.made.append(second)
        second.data_out.send(second.says(Kind.HELLO))
        second.reply(route, b"of another life")
        assert not pending.done()
    finally:
        go_on.set()
        completions.rotate = rotate
    error = outcome(pending)
    assert isinstance(error, Unavailable), error
    assert error.accepted
    second.join()
    eventually(lambda: client.mesh.nodes() == ["server"], "the new life can be chosen")
    assert client.mesh.peer("server").generation == GENERATION + 1
    call = client.work.request(b"new", reply=bytes).submit()
    header, body = second.read(Kind.REQUEST)
    assert header.generation == GENERATION + 1
    assert body == b"new"
    second.reply(header.reply_route, b"by the new life")
    assert call.result(PATIENCE) == b"by the new life"
    assert client.count("pending") == client.count("deadlines") == 0
