"""The filters of a host are around every handler: of channels and nodes, Spots and Actors, whoever calls."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, new_place

from zlink_nogil import Actor, Completion, Context, Host, InternalFailure, InvalidOperation, NotConfigured, Spot, handler
from zlink_nogil.dependencies import Container
from zlink_nogil.spots.message import Message


@dataclass
class Add:
    amount: int


class Session:
    pass


class Sum:
    """Answers with what it was given; `hold` is awaited first, with the turn kept."""

    hold: typing.ClassVar[Completion[Any] | None] = None
    begun: typing.ClassVar[list[int]] = []

    @handler
    def plain(self, message: Add, ctx: Any) -> int:  # noqa: ARG002
        if message.amount < 0:
            raise ValueError("negative")
        return message.amount

    @handler(name="later")
    async def later(self, message: Add, ctx: Any) -> int:  # noqa: ARG002
        self.begun.append(message.amount)
        return await self.hold if self.hold is not None else message.amount

    @handler(name="note")
    def note(self, message: Add, ctx: Any) -> None:  # noqa: ARG002
        self.begun.append(message.amount)


class Room(Sum, Spot):
    pass


class Player(Sum, Actor):
    pass


class Net:
    """Host `a` has a Spot `r` and an Actor `p`; `b` is another node of its mesh, where calls can come from."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._stack = ExitStack()
        self.a = self._host("a", a := new_place(), [])
        self.b = self._host("b", new_place(), [a])

    def _host(self, name: str, bind: str, peers: list[str]) -> Host:
        host = Host(workers=2)
        host.container.scoped(Session, self.session)
        host.mesh("world", bind=bind, peers=peers, node_id=name, locations="a")
        host.spots.register(Room)
        host.actors.register(Player)
        return host

    def session(self) -> Iterator[Session]:
        self.log.append("open")
        yield Session()
        self.log.append("close")

    def __enter__(self) -> Net:
        for host in (self.a, self.b):
            host.start()
            self._stack.callback(host.close, 0.5)
        self.b.wait_ready(PATIENCE)
        self.a.spots.create("Room", "r").result(PATIENCE)
        self.a.actors.create("Player", "p").result(PATIENCE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    Sum.begun.clear()
    yield
    Sum.hold = None


def caller(net: Net, where: str) -> Host:
    return net.a if where == "here" else net.b


WHERE = pytest.mark.parametrize("where", ["here", "elsewhere"])


@WHERE
def test_filters_nest_around_the_handlers_of_spots_and_actors_and_share_a_scope_closed_before_the_answer(where):
    class Around:
        def __init__(self, session: Session) -> None:
            self.session = session

        async def __call__(self, message: Add, ctx: Any, call_next: Any) -> int:
            net.log.append(f"class {ctx.spot_id} {ctx.actor_id}")
            return await call_next(message) * 10

    net = Net()

    @net.a.filter
    def outermost(message: Add, ctx: Any, call_next: Any) -> Any:
        net.log.append(f"plain {ctx.message_name}")
        return call_next(Add(message.amount + 1))

    net.a.filter(Around)
    with net:
        owners = caller(net, where)
        assert owners.spots.request("r", Add(1), reply=int).result(PATIENCE) == 20
        assert net.log == ["open", "plain Add", "class r None", "close"]
        net.log.clear()
        assert owners.actors.request("p", Add(2), reply=int, name="later").result(PATIENCE) == 30
        assert net.log == ["open", "plain later", "class None p", "close"]


def test_only_the_host_where_the_owner_is_filters_and_tells_where_the_message_came_from():
    net = Net()
    seen: list[tuple[str, Any]] = []
    for name, host in (("a", net.a), ("b", net.b)):

        @host.filter
        def watch(message: Any, ctx: Any, call_next: Any, name: str = name) -> Any:
            seen.append((name, ctx.source))
            return call_next(message)

    with net:
        net.b.spots.request("r", Add(1)).result(PATIENCE)
        net.a.spots.request("r", Add(1)).result(PATIENCE)
    assert seen == [("a", "b"), ("a", None)]


def test_one_filter_can_tell_all_kinds_of_messages_apart():
    net = Net()
    seen: list[tuple[Any, ...]] = []

    @net.a.filter
    def watch(message: Any, ctx: Any, call_next: Any) -> Any:
        seen.append((ctx.channel, ctx.key, ctx.spot_id, ctx.actor_id, dict(ctx.metadata), ctx.cancelled))
        return call_next(message)

    there, here = net.a.meshes[0], net.b.meshes[0]

    @there.channel("work").handler
    def number(message: int, ctx: Context) -> int:  # noqa: ARG001
        return message

    there.handler(number)
    with net:
        here.channel("work").request(1, key="k").result(PATIENCE)
        there.node("a").request(1, metadata={"m": b"1"}).result(PATIENCE)
        net.a.spots.request("r", Add(1), metadata={"m": b"2"}).result(PATIENCE)
        net.a.actors.request("p", Add(1)).result(PATIENCE)
    assert seen == [
        ("work", "k", None, None, {}, False),
        ("", None, None, None, {"m": b"1"}, False),
        (None, None, "r", None, {"m": b"2"}, False),
        (None, None, None, "p", {}, False),
    ]


@WHERE
def test_a_filter_of_a_spot_may_answer_itself_and_calls_on_once(where):
    net = Net()

    @net.a.filter
    def short(message: Add, ctx: Any, call_next: Any) -> Any:  # noqa: ARG001
        if message.amount == 0:
            return 42
        call_next(message)
        return call_next(message)

    with net:
        spots = caller(net, where).spots
        assert spots.request("r", Add(0), reply=int, name="later").result(PATIENCE) == 42
        with pytest.raises((InvalidOperation, InternalFailure), match="for one call"):
            spots.request("r", Add(1)).result(PATIENCE)
    assert Sum.begun == []


@WHERE
def test_a_scope_is_closed_once_however_the_handler_ends(where):
    class Uses:
        def __init__(self, session: Session) -> None: ...

        def __call__(self, message: Add, ctx: Any, call_next: Any) -> Any:  # noqa: ARG002
            return call_next(message)

    net = Net()
    net.a.filter(Uses)
    with net:
        spots = caller(net, where).spots
        with pytest.raises((ValueError, InternalFailure), match="negative"):
            spots.request("r", Add(-1)).result(PATIENCE)
        assert net.log == ["open", "close"]
        spots.send("r", Add(7), name="note").result(PATIENCE)
        eventually(lambda: net.log == ["open", "close"] * 2, f"the send's scope is closed: {net.log}")
        Sum.hold = Completion(net.a._pool())
        held = spots.request("r", Add(1), name="later").submit()
        eventually(lambda: Sum.begun == [7, 1], "the handler waits")
        assert net.log == [*["open", "close"] * 2, "open"]
        net.a.close(0.1)  # interrupts the handler
        assert held.exception(PATIENCE) is not None
    assert net.log == ["open", "close"] * 3


def test_a_filter_that_cannot_be_made_keeps_the_host_from_starting_or_fails_the_message():
    class Needs:
        def __init__(self, unknown: Gate) -> None: ...

    class Breaks:
        def __init__(self, session: Session) -> None:  # noqa: ARG002
            raise RuntimeError("broken")

    host = Host(workers=1)
    host.spots.register(Room)
    Needs.__init__.__annotations__["unknown"] = Gate
    host.filter(Needs)
    with pytest.raises(NotConfigured, match="nobody registered what 'unknown' is"):
        host.start()
    net = Net()
    Breaks.__init__.__annotations__["session"] = Session
    net.a.filter(Breaks)
    with net:
        with pytest.raises(RuntimeError, match="broken"):
            net.a.spots.request("r", Add(1)).result(PATIENCE)
        with pytest.raises(InternalFailure, match="broken"):
            net.b.spots.request("r", Add(1)).result(PATIENCE)
    assert net.log == ["open", "close"] * 2
    assert net.a._permits.free() == net.a._permits.most


def test_without_filters_nothing_is_made_and_with_them_nothing_is_planned_per_message(monkeypatch: pytest.MonkeyPatch):
    net = Net()
    scopes: list[Any] = []
    close = Message._close_scope
    monkeypatch.setattr(Message, "_close_scope", lambda self: (scopes.append(self._scope), close(self))[1])
    with net:
        room = net.a.spots.entry("r").owner_type.handlers["Add"]
        assert room.filters is None
        assert room.function is Room.plain
        net.a.spots.request("r", Add(1)).result(PATIENCE)
    assert scopes == []
    filtered = Net()

    @filtered.a.filter
    def watch(message: Any, ctx: Any, call_next: Any) -> Any:  # noqa: ARG001
        return call_next(message)

    with filtered:
        looks: list[Any] = []
        for module, name in ((typing, "get_type_hints"), (Container, "plan")):
            monkeypatch.setattr(module, name, lambda *args, **_: looks.append(args))
        filtered.a.spots.request("r", Add(1)).result(PATIENCE)
        filtered.b.actors.request("p", Add(1)).result(PATIENCE)
    assert looks == []
    assert len(scopes) == 1
