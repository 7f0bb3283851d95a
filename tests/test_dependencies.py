"""Dependencies by type: planned at the start, made per dispatch or activation, cleaned up once; filters around handlers."""

from __future__ import annotations

import threading
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, together

from zlink_nogil import (
    Actor,
    AlreadyExists,
    Context,
    DeadlineExceeded,
    Host,
    InternalFailure,
    InvalidOperation,
    NotConfigured,
    Spot,
    handler,
)
from zlink_nogil.dependencies import Container, Scope


@dataclass
class Log:
    """What was made and cleaned up, and on which thread."""

    lines: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.threads.add(threading.get_ident())


LOG = Log()


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    LOG.__init__()


class Clock:
    pass


class Ledger:
    def __init__(self, clock: Clock, currency: str = "eur") -> None:
        self.clock, self.currency = clock, currency


class Session:
    pass


def session(ledger: Ledger) -> Iterator[Session]:
    assert isinstance(ledger, Ledger)
    LOG.add("open")
    yield Session()
    LOG.add("close")


# -- the container ------------------------------------------------------------------------------------------------------


def test_parameters_come_by_type_and_defaults_stay():
    container = Container()
    container.singleton(Ledger)
    container.singleton(Clock)
    container.seal()
    plan = container.plan(Ledger)
    made = plan.make(Scope())
    assert isinstance(made.clock, Clock)
    assert made.currency == "eur"
    assert made.clock is plan.make(Scope()).clock


def test_lifetimes():
    container = Container()
    container.singleton(Clock)
    container.scoped(Session)
    container.transient(Ledger)

    def function(a: Session, b: Session, c: Ledger, d: Ledger, e: Clock) -> tuple[Any, ...]:
        return a, b, c, d, e

    plan = container.plan(function)
    one, two = plan.make(Scope()), plan.make(Scope())
    assert one[0] is one[1]
    assert one[2] is not one[3]
    assert one[0] is not two[0]
    assert one[4] is two[4] is one[2].clock


def test_what_cannot_be_made_is_refused_when_it_is_planned_with_the_way_to_it():
    class Room:
        def __init__(self, ledger: Ledger) -> None: ...

    class Egg:
        def __init__(self, hen: Any) -> None: ...

    class Hen:
        def __init__(self, egg: Any) -> None: ...

    Egg.__init__.__annotations__ = {"hen": Hen}
    Hen.__init__.__annotations__ = {"egg": Egg}
    container = Container()
    container.singleton(Ledger)
    with pytest.raises(NotConfigured, match=r"Room -> Ledger: nobody registered what 'clock' is: Clock"):
        container.plan(Room)
    container.scoped(Clock)
    with pytest.raises(NotConfigured, match="a singleton cannot keep what lives in one scope"):
        container.seal()
    eggs = Container()
    eggs.singleton(Egg)
    eggs.singleton(Hen)
    with pytest.raises(AlreadyExists, match="Egg is registered already"):
        eggs.scoped(Egg)
    with pytest.raises(NotConfigured, match=r"Egg -> .*Hen -> .*Egg: a circle"):
        eggs.seal()
    with pytest.raises(InvalidOperation, match="before the host starts"):
        eggs.scoped(Clock)
    with pytest.raises(TypeError, match="must be a class or a plain function"):
        Container().scoped(Clock, "clock")


def test_a_singleton_is_made_once_whoever_asks():
    gate = Gate()
    made: list[Clock] = []

    def clock() -> Clock:
        gate()
        made.append(Clock())
        return made[-1]

    container = Container()
    container.singleton(Clock, clock)

    def use(clock: Clock) -> Clock:
        return clock

    plan = container.plan(use)
    first = threading.Thread(target=plan.make, args=(Scope(),))
    first.start()
    gate.wait_begun()
    second = threading.Thread(target=plan.make, args=(Scope(),))
    second.start()
    gate.open()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert len(made) == 1


def test_clean_ups_run_once_the_latest_first_whatever_they_raise(caplog: pytest.LogCaptureFixture):
    def first() -> Iterator[Clock]:
        yield Clock()
        LOG.add("first")

    def second(clock: Clock) -> Iterator[Session]:  # noqa: ARG001
        yield Session()
        raise RuntimeError("stuck")

    container = Container()
    container.scoped(Clock, first)
    container.scoped(Session, second)

    def use(session: Session) -> None: ...

    scope = Scope()
    container.plan(use).make(scope)
    scope.close()
    scope.close()
    assert LOG.lines == ["first"]
    assert "a clean-up failed" in caplog.text


# -- dispatches ---------------------------------------------------------------------------------------------------------


class Net:
    """A host whose mesh calls itself, and one that calls it."""

    def __init__(self) -> None:
        self.host = Host(workers=2)
        self.host.container.singleton(Clock)
        self.host.container.singleton(Ledger)
        self.host.container.scoped(Session, session)
        self.mesh = self.host.mesh("shop", node_id="shop")
        self.work = self.mesh.channel("work")
        self.caller = Host(workers=1)

    def __enter__(self) -> Net:
        self.host.start()
        calling = self.caller.mesh("shop", peers=[self.mesh.endpoint])
        self.caller.start()
        self.caller.wait_ready(PATIENCE)
        self.call = calling.channel("work").request
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.caller.close()
        self.host.close()


class Work:
    seen: typing.ClassVar[list[Session]] = []

    def __init__(self, session: Session, ledger: Ledger) -> None:
        self.session, self.ledger = session, ledger

    @handler
    async def number(self, message: int, ctx: Context) -> int:  # noqa: ARG002
        LOG.add(f"handle {message}")
        self.seen.append(self.session)
        if message < 0:
            raise ValueError("negative")
        return message + 1

    @handler(name="text")
    def text(self, message: str, ctx: Context, clock: Clock) -> str:  # noqa: ARG002
        assert clock is self.ledger.clock
        LOG.add("handle text")
        return message


def test_each_dispatch_has_a_scope_of_its_own_closed_after_the_handler():
    net = Net()
    net.work.handlers(Work)
    Work.seen.clear()
    with net:
        assert net.call(1, reply=int).result(PATIENCE) == 2
        assert net.call(2, reply=int).result(PATIENCE) == 3
        with pytest.raises(InternalFailure, match="negative"):
            net.call(-1).result(PATIENCE)
        assert net.call("x", name="text", reply=str).result(PATIENCE) == "x"
    handled = ["open", "handle 1", "close", "open", "handle 2", "close", "open", "handle -1", "close"]
    assert LOG.lines == [*handled, "open", "handle text", "close"]
    assert len(set(map(id, Work.seen))) == 3


def test_handler_and_filters_share_the_scope_and_nest_from_the_host_inwards():
    class Around:
        def __init__(self, session: Session) -> None:
            self.session = session

        async def __call__(self, message: int, ctx: Context, call_next: Any) -> int:
            LOG.add(f"class {ctx.channel}")
            return await call_next(message)

    seen: list[Session] = []
    net = Net()

    @net.host.filter
    async def outermost(message: int, ctx: Context, call_next: Any) -> int:
        LOG.add("host")
        assert ctx.message_name == "int"
        return await call_next(message + 1) * 10

    @net.mesh.filter
    def plain(message: int, ctx: Context, call_next: Any) -> Any:  # noqa: ARG001
        LOG.add("mesh")
        return call_next(message)

    net.work.filter(Around)

    @net.work.handler
    def number(message: int, ctx: Context, session: Session, ledger: Ledger) -> int:  # noqa: ARG001
        seen.append(session)
        LOG.add("handler")
        return message

    with net:
        assert net.call(1, reply=int).result(PATIENCE) == 20
    assert LOG.lines == ["open", "host", "mesh", "class work", "handler", "close"]


def test_a_filter_may_answer_itself_and_calls_on_once():
    net = Net()

    @net.work.filter
    def short(message: int, ctx: Context, call_next: Any) -> Any:  # noqa: ARG001
        if message == 0:
            return 42
        call_next(message)
        return call_next(message)

    @net.work.handler
    def number(message: int, ctx: Context) -> int:  # noqa: ARG001
        LOG.add("handler")
        return message

    with net:
        assert net.call(0, reply=int).result(PATIENCE) == 42
        with pytest.raises(InvalidOperation, match="for one call"):
            net.call(1).result(PATIENCE)
    assert LOG.lines == ["handler"]


def test_what_is_cancelled_or_too_late_is_cleaned_up_or_never_made():
    net = Net()
    gate = Gate()

    @net.work.handler
    async def number(message: int, ctx: Context, session: Session) -> int:  # noqa: ARG001
        gate()
        return message

    with net:
        held = net.call(1, key="a").submit()
        gate.wait_begun()
        with pytest.raises(DeadlineExceeded):
            net.call(2, key="a", timeout=0.05).result(PATIENCE)
        gate.open()
        held.result(PATIENCE)
        eventually(lambda: net.mesh.statistics()["pending"] == 0)
    assert LOG.lines == ["open", "close"]


def test_nothing_is_planned_or_read_per_record_and_no_thread_changes(monkeypatch: pytest.MonkeyPatch):
    net = Net()
    threads: list[int] = []

    @net.work.handler
    def number(message: int, ctx: Context, session: Session) -> int:  # noqa: ARG001
        threads.append(threading.get_ident())
        return message

    with net:
        net.call(0).result(PATIENCE)
        looks: list[Any] = []
        for module, name in ((typing, "get_type_hints"), (Container, "plan")):
            monkeypatch.setattr(module, name, lambda *args, **_: looks.append(args))
        LOG.threads.clear()
        net.call(1).result(PATIENCE)
        assert looks == []
        assert threads[-1:] == list(LOG.threads)


def test_a_handler_that_cannot_have_what_it_needs_keeps_the_host_from_starting():
    class Unknown:
        pass

    net = Net()

    @net.work.handler
    def number(message: int, ctx: Context, unknown: Any) -> int:  # noqa: ARG001
        return message

    number.__annotations__["unknown"] = Unknown
    with pytest.raises(NotConfigured, match="nobody registered what 'unknown' is"):
        net.host.start()
    with pytest.raises(TypeError, match="no method that is marked"):
        Host().mesh("m").channel("c").handlers(Clock)


# -- activations --------------------------------------------------------------------------------------------------------


class Room(Spot):
    def __init__(self, session: Session, ledger: Ledger) -> None:
        self.session, self.ledger = session, ledger
        LOG.add("room")

    @handler
    def take(self, message: int, ctx: Any) -> int:  # noqa: ARG002
        return message

    def on_close(self) -> None:
        LOG.add("on_close")


class Broken(Room):
    def on_create(self) -> None:
        raise ValueError("no")


class Player(Actor):
    def __init__(self, session: Session) -> None:
        self.session = session


def test_a_spot_and_an_actor_have_a_scope_per_activation():
    host = Host(workers=2)
    host.container.singleton(Clock)
    host.container.singleton(Ledger)
    host.container.scoped(Session, session)
    host.spots.register(Room)
    host.spots.register(Broken)
    host.actors.register(Player)
    with host:
        host.spots.create("Room", "r").result(PATIENCE)
        assert [host.spots.request("r", n).result(PATIENCE) for n in range(3)] == [0, 1, 2]
        assert LOG.lines == ["open", "room"]
        host.spots.close("r").result(PATIENCE)
        assert LOG.lines == ["open", "room", "on_close", "close"]
        LOG.lines.clear()
        with pytest.raises(ValueError, match="no"):
            host.spots.create("Broken", "b").result(PATIENCE)
        assert LOG.lines == ["open", "room", "close"]
        LOG.lines.clear()
        host.actors.create("Player", "p").result(PATIENCE)
    assert LOG.lines == ["open", "close"]


def test_singletons_end_with_the_host():
    def clock() -> Iterator[Clock]:
        yield Clock()
        LOG.add("clock stopped")

    host = Host(workers=1)
    host.container.singleton(Clock, clock)
    host.container.singleton(Ledger)
    host.container.scoped(Session, session)
    host.spots.register(Room)
    with host:
        together(*(lambda name=name: host.spots.create("Room", name).result(PATIENCE) for name in "abc"))
    assert LOG.lines.count("clock stopped") == 1
    assert LOG.lines[-1] == "clock stopped"
