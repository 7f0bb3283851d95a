"""`ClientSocket` and `ServerSocket` under every schedule: who sends eats the edge of what came, as the reader parks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.binding import ClientSocket, ServerSocket
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.state import StateLane

from .harness import Scenario, run_exhaustive, run_random
from .harness.sockets import Dealer, Network

RECORD = 1 << 20


class _OnLane:
    """A socket that one thread at a time may use: calls of it are turns."""

    def __init__(self, s: Scenario, raw: Any, lane: StateLane) -> None:
        self.s = s
        self.raw = raw
        self.lane = lane

    def __getattr__(self, name: str) -> Any:
        self.s.expect(StateLane.current is self.lane or name == "descriptors", f"{name} is called on the lane")
        return getattr(self.raw, name)


class Leading:
    """Whoever leads a socket until it has so many records, as a client does; and those who send on it."""

    socket: ClientSocket | ServerSocket

    def __init__(self, s: Scenario, records: int, sends: int) -> None:
        self.s = s
        self.lane = StateLane("socket")
        self.wakeup = _sync.EventFd()
        self.due = True
        self.records = records
        self.received: list[bytes] = []
        self.ends: list[str] = []
        s.check("every send has ended once", lambda: len(self.ends) == sends)
        s.check("nothing waits for room", lambda: self.lane.run(self.socket.backlog) == 0)

    def watch(self) -> None:
        self.socket._raw = _OnLane(self.s, self.socket._raw, self.lane)  # type: ignore[assignment]

    def send(self, alias: bytes, *records: bytes) -> None:
        for record in records:
            self.lane.run(self._send, alias, record)

    def _send(self, alias: bytes, record: bytes) -> None:
        try:
            if self.socket.send(alias, record, self._end) is None:
                self._end(None)
        except Unavailable as error:
            self._end(error)

    def _end(self, error: ZLinkError | None) -> None:
        self.ends.append("sent" if error is None else "refused")

    def wake(self) -> None:
        self.due = True
        self.wakeup.set()

    def data(self) -> set[int]:
        return {self.socket.fd} if isinstance(self.socket, ServerSocket) else set(self.lane.run(self.socket.data))

    def lead(self, take: Callable[[bytes, bytes], None] | None = None) -> None:
        """Looks after what waits only when it may have to, as the drivers do."""
        epoll = _sync.Epoll()
        for fd in (self.wakeup.fileno(), *self.socket.descriptors()):
            epoll.register(fd, 1)
        data = {self.wakeup.fileno(), *self.data()}
        look: float | None = None
        while True:
            self.wakeup.clear()
            claimed, hot = self.socket.claim(4, RECORD, 1e9, _sync.monotonic)
            for routing_id, record in claimed:
                self.received.append(record or b"")
                if take is not None:
                    take(routing_id, record or b"")
            if self.due or (look is not None and look <= _sync.monotonic()):
                self.due = False
                self.lane.run(self.socket.service)
                look = self.socket.next_look(_sync.monotonic())
            if len(self.received) == self.records and not self.lane.run(self.socket.backlog):
                return
            ready = epoll.poll(0.0 if hot else None if look is None else look - _sync.monotonic())
            self.due = self.due or not data.issuperset(fd for fd, _ in ready)

    def lead_for_ever(self, take: Callable[[bytes, bytes], None]) -> None:
        self.records = -1
        _sync.Thread(target=self.lead, args=(take,), name="leader", daemon=True).start()


class ClientSide(Leading):
    def __init__(self, s: Scenario, network: Network, records: int, sends: int, *endpoints: str) -> None:
        super().__init__(s, records, sends)
        self.socket = ClientSocket(network, self.lane, b"node", RECORD, self.wake, self.wakeup.set)  # type: ignore[arg-type]
        self.watch()
        self.aliases = [self.lane.run(self.socket.connect, endpoint) for endpoint in endpoints]


class ServerSide(Leading):
    def __init__(self, s: Scenario, network: Network, endpoint: str, sends: int) -> None:
        super().__init__(s, -1, sends)
        self.socket = ServerSocket(network, self.lane, endpoint, RECORD, self.wake, self.wakeup.set)  # type: ignore[arg-type]
        self.watch()
        self.lead_for_ever(self.let_in_and_answer)

    def let_in_and_answer(self, routing_id: bytes, record: bytes) -> None:
        """As a server does with a client's first record; the answer is its turn's."""
        self.lane.run(self.socket.let_in, routing_id)
        self.s.thread_now(f"turn {record.decode()}", self.send, routing_id, b"re " + record)


def echo(network: Network, endpoint: str, count: int) -> Callable[[], None]:
    """A server that answers so many."""
    router = network.router(RECORD)
    router.bind(endpoint)

    def run() -> None:
        epoll = _sync.Epoll()
        epoll.register(router.fd, 1)
        answers: list[tuple[bytes, bytes]] = []
        received = 0
        while received < count or answers:
            came = router.receive()
            if came is not None:
                received += 1
                answers.append((came[0], b"re " + (came[1] or b"")))
            while answers and router.try_send(*answers[0]):
                answers.pop(0)
            if came is None and not router.readable() and (received < count or answers):
                epoll.poll(0.01 if answers else None)

    return run


def one_sends_while_answers_come(s: Scenario) -> None:
    """All answers are read, whoever took the news of them."""
    network = Network(room=8)
    client = ClientSide(s, network, 2, 2, "b")
    s.thread("leader", client.lead)
    s.thread("sender", client.send, client.aliases[0], b"1", b"2")
    s.thread("server", echo(network, "b", 2))
    s.check("all answered", lambda: client.received == [b"re 1", b"re 2"])


def two_send_while_answers_come(s: Scenario) -> None:
    network = Network(room=4)
    client = ClientSide(s, network, 3, 3, "b")
    s.thread("sender", client.send, client.aliases[0], b"1", b"2")
    s.thread("other", client.send, client.aliases[0], b"3")
    s.thread("leader", client.lead)
    s.thread("server", echo(network, "b", 3))
    s.check("all answered", lambda: sorted(client.received) == [b"re 1", b"re 2", b"re 3"])


def test_one_sends_while_answers_come() -> None:
    for scenario in (one_sends_while_answers_come, two_send_while_answers_come):
        run_random(scenario, 200)
        run_exhaustive(scenario, preemptions=1, switches=0)


def the_last_that_waited_is_sent(s: Scenario) -> None:
    """More than the server has room for; who leads is looking when answers and the news of room come together."""
    network = Network(room=4)
    client = ClientSide(s, network, 5, 5, "b")
    s.thread("leader", client.lead)
    s.thread("sender", client.send, client.aliases[0], b"1", b"2", b"3", b"4", b"5")
    s.thread("somebody", client.wakeup.set)
    s.thread("server", echo(network, "b", 5))
    s.check("all answered, in order", lambda: client.received == [b"re 1", b"re 2", b"re 3", b"re 4", b"re 5"])


def the_server_waits_for_the_client(s: Scenario) -> None:
    """It reads on when its answer has been read: that must not wait for room."""
    network = Network(room=4)
    client = ClientSide(s, network, 0, 5, "b")
    router = network.router(RECORD)
    router.bind("b")
    answered = _sync.Event()

    def serve() -> None:
        epoll = _sync.Epoll()
        epoll.register(router.fd, 1)
        received = 0
        while received < 5:
            came = router.receive()
            if came is not None:
                received += 1
                if received == 1:
                    router.try_send(came[0], b"re 1")
                    answered.wait()
            elif not router.readable():
                epoll.poll()

    client.lead_for_ever(lambda *_: answered.set())
    s.thread("sender", client.send, client.aliases[0], b"1", b"2", b"3", b"4", b"5")
    s.thread("somebody", client.wakeup.set)
    s.thread("server", serve)


def test_what_waits_is_sent_while_answers_come() -> None:
    for scenario in (the_last_that_waited_is_sent, the_server_waits_for_the_client):
        run_random(scenario)
        run_exhaustive(scenario, preemptions=1, switches=0)


def two_servers(s: Scenario) -> None:
    """One that takes nothing for a while holds up nothing of the other."""
    network = Network(room=1)
    client = ClientSide(s, network, 4, 4, "b", "c")
    b_has_all = _sync.Event()
    serve_b, serve_c = echo(network, "b", 2), echo(network, "c", 2)

    def b() -> None:
        serve_b()
        b_has_all.set()

    def c() -> None:
        b_has_all.wait()
        serve_c()

    s.thread("leader", client.lead)
    s.thread("to c", client.send, client.aliases[1], b"3", b"4")
    s.thread("to b", client.send, client.aliases[0], b"1", b"2")
    s.thread("b", b)
    s.thread("c", c)
    s.check("all answered", lambda: sorted(client.received) == [b"re 1", b"re 2", b"re 3", b"re 4"])


def test_two_servers() -> None:
    run_random(two_servers)


def turns_answer_while_requests_come(s: Scenario) -> None:
    """A server reads on while turns of its owners answer; a client that reads late gets its answers late."""
    network = Network(room=1)
    server = ServerSide(s, network, "b", sends=4)
    answers: dict[str, list[bytes]] = {"x": [], "y": []}

    def ask(name: str) -> None:
        dealer = Dealer(network)
        dealer.connect("b", None, name.encode())
        epoll = _sync.Epoll()
        epoll.register(dealer.fd, 1)
        asked = 0
        while len(answers[name]) < 2:
            if asked < 2 and dealer.try_send_bare(f"{name}{asked}".encode()):
                asked += 1
            came = dealer.receive_bare()
            if came is not None:
                answers[name].append(came[0] or b"")
            elif not dealer.readable():
                epoll.poll(0.01 if asked < 2 else None)

    s.thread("x", ask, "x")
    s.thread("y", ask, "y")
    s.check("all asked", lambda: sorted(server.received) == [b"x0", b"x1", b"y0", b"y1"])
    s.check("all answered", lambda: {k: sorted(v) for k, v in answers.items()} == ANSWERS)


ANSWERS = {"x": [b"re x0", b"re x1"], "y": [b"re y0", b"re y1"]}


def test_turns_answer_while_requests_come() -> None:
    run_random(turns_answer_while_requests_come)
