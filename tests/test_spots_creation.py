"""`create` and `get_or_create`: one object per id, whoever asks; nothing left of one that failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, outcome, together
from worlds import Does, Room, at_rest, do, log_of, members, world

from zlink_nogil import (
    Actor,
    AlreadyExists,
    Cancelled,
    Completion,
    DeadlineExceeded,
    Host,
    InvalidOperation,
    NotConfigured,
    NotFound,
    ShuttingDown,
    Spot,
    TypeMismatch,
)

KINDS = ("spots", "actors")


class Plan:
    """What the constructor and `on_create` of the next object do, and how often they ran."""

    def __init__(self) -> None:
        self.made = 0
        self.lock = threading.Lock()
        self.construct: Any = lambda: None
        self.create: Any = lambda _: None
        self.handled: list[str] = []


PLAN = Plan()


class _Planned(Does):
    def __init__(self) -> None:
        with PLAN.lock:
            PLAN.made += 1
        PLAN.construct()

    def on_create(self) -> Any:
        return PLAN.create(self)


class PlannedSpot(_Planned, Spot):
    pass


class PlannedActor(_Planned, Actor):
    pass


TYPES = {"spots": "PlannedSpot", "actors": "PlannedActor"}


@pytest.fixture
def host() -> Iterator[Host]:
    PLAN.__init__()
    with world(PlannedSpot, PlannedActor) as host:
        yield host


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def create(host: Host, kind: str, **options: Any) -> Completion[Any]:
    return getattr(host, kind).create(TYPES[kind], "x", **options).submit()


def get_or_create(host: Host, kind: str, **options: Any) -> Completion[Any]:
    return getattr(host, kind).get_or_create(TYPES[kind], "x", **options).submit()


def nothing_is_left(host: Host, kind: str) -> None:
    """And the same id can be created again."""
    directory = getattr(host, kind)
    eventually(lambda: "x" not in directory, "the id is free")
    assert len(directory) == 0
    with pytest.raises(NotFound):
        do(directory.ref("x"), lambda *_: None)
    PLAN.construct, PLAN.create = (lambda: None), (lambda _: None)
    ref = create(host, kind).result(PATIENCE)
    assert do(ref, lambda *_: "works").result(PATIENCE) == "works"
    at_rest(host)


def test_sixteen_threads_get_one_object(host, kind):
    directory = getattr(host, kind)
    for number in range(8):
        before, name = PLAN.made, f"x{number}"

        def ask(name: str = name) -> Any:
            ref = directory.get_or_create(TYPES[kind], name).result(PATIENCE)
            return do(ref, lambda owner, _: id(owner)).result(PATIENCE)

        assert len(set(together(*[ask] * 16))) == 1
        assert PLAN.made == before + 1
    at_rest(host)


def test_of_sixteen_creates_one_succeeds(host, kind):
    outcomes = together(*[lambda: create(host, kind).result(PATIENCE)] * 16)
    assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 15
    assert PLAN.made == 1
    with pytest.raises(AlreadyExists, match="'x'"):
        create(host, kind)
    at_rest(host)


def test_two_types_of_one_id(host, kind):
    create(host, kind).result(PATIENCE)
    other = {"spots": "Room", "actors": "Player"}[kind]
    with pytest.raises(TypeMismatch, match=f"'{TYPES[kind]}', not a '{other}'"):
        getattr(host, kind).get_or_create(other, "x").submit()
    with pytest.raises(AlreadyExists):
        getattr(host, kind).create(other, "x").submit()
    with pytest.raises(NotConfigured, match="'Unheard'"):
        getattr(host, kind).create("Unheard", "y")
    at_rest(host)


def test_a_spot_and_an_actor_may_have_one_id(host):
    create(host, "spots").result(PATIENCE)
    create(host, "actors").result(PATIENCE)
    at_rest(host)


# -- failures -------------------------------------------------------------------------------------------------------


def raises(error: BaseException) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


async def _raises_later(_: Any) -> None:
    raise PermissionError("no")


@pytest.mark.parametrize("where", ["construct", "create"])
@pytest.mark.parametrize("error", [PermissionError("no"), SystemExit("no")])
def test_a_constructor_or_hook_that_raises_leaves_nothing(host, kind, where, error):
    setattr(PLAN, where, raises(error))
    assert type(outcome(create(host, kind))) is type(error)
    nothing_is_left(host, kind)


def test_a_hook_that_raises_cancelled_is_no_cancel_of_the_callers(host, kind):
    PLAN.create = raises(Cancelled())
    assert isinstance(outcome(create(host, kind)), ShuttingDown)
    nothing_is_left(host, kind)


def test_an_async_hook_that_raises_leaves_nothing(host, kind):
    PLAN.create = _raises_later
    assert isinstance(outcome(create(host, kind)), PermissionError)
    nothing_is_left(host, kind)


def test_a_factory_of_something_else_is_a_failed_creation():
    with world() as host:
        host_types = host.spots
        with pytest.raises(InvalidOperation, match="before the host starts"):
            host_types.register(PlannedSpot)
    host = Host(workers=1)
    host.spots.register(Room, type_name="odd", factory=dict)
    with host:
        with pytest.raises(TypeError, match="made dict"):
            host.spots.create("odd", "x").result(PATIENCE)
        assert "x" not in host.spots
        at_rest(host)


def test_messages_to_one_whose_creation_fails_never_reach_it(host, kind):
    gate = Gate()

    def fails(_: Any) -> None:
        gate()
        raise PermissionError("no")

    PLAN.create = fails
    created = create(host, kind)
    gate.wait_begun()
    ref = getattr(host, kind).ref("x")
    answers = [do(ref, lambda *_: PLAN.handled.append("reached")) for _ in range(5)]
    gate.open()
    assert isinstance(outcome(created), PermissionError)
    assert {type(outcome(answer)) for answer in answers} <= {NotFound, ShuttingDown}
    assert PLAN.handled == []
    nothing_is_left(host, kind)


def test_an_actor_that_its_spot_refuses_never_handles_a_message():
    PLAN.__init__()
    gate = Gate()

    def refuses(_: Any) -> None:
        gate()
        raise PermissionError("full")

    with world(PlannedActor, workers=1) as host:  # so that the Actor's queue goes on before anybody else
        room = host.spots.create("Room", "room").result(PATIENCE)
        do(room, lambda room, _: setattr(room, "on_join", refuses)).result(PATIENCE)
        created = create(host, "actors", spot=room)
        gate.wait_begun()
        answers = [do(host.actors.ref("x"), lambda *_: PLAN.handled.append("reached")) for _ in range(5)]
        gate.open()
        assert isinstance(outcome(created), PermissionError)
        assert {type(outcome(answer)) for answer in answers} <= {NotFound, ShuttingDown}
        assert PLAN.handled == []
        assert members(host, "room") == set()
        nothing_is_left(host, "actors")


def test_an_actor_whose_spot_is_not_there_is_not_created(host):
    assert isinstance(outcome(create(host, "actors", spot="nowhere")), NotFound)
    nothing_is_left(host, "actors")


# -- time, and giving up --------------------------------------------------------------------------------------------


def test_a_creation_that_waits_too_long_leaves_nothing(host, kind):
    never, seen = Completion[None](), []

    async def waits(_: Any) -> None:
        try:
            await never
        except BaseException as error:
            seen.append(type(error))
            raise

    PLAN.create = waits
    assert isinstance(outcome(create(host, kind, timeout=0.02)), DeadlineExceeded)
    nothing_is_left(host, kind)
    assert seen == [Cancelled]


def test_a_creation_that_blocks_too_long_fails_at_its_deadline_and_its_successor_waits(host, kind):
    gate = Gate()
    PLAN.create = lambda _: gate()
    created = create(host, kind, timeout=0.05)
    gate.wait_begun()
    answer = do(getattr(host, kind).ref("x"), lambda *_: PLAN.handled.append("reached"))
    assert isinstance(outcome(created), DeadlineExceeded), "told while the hook still blocks"
    PLAN.create = lambda _: None
    successor = create(host, kind)
    assert not successor.done()
    gate.open()
    assert do(successor.result(PATIENCE), lambda *_: "works").result(PATIENCE) == "works"
    assert isinstance(outcome(answer), NotFound | ShuttingDown)
    assert PLAN.handled == []
    assert PLAN.made == 2
    at_rest(host)


def test_an_actor_whose_creation_is_given_up_while_it_joins_is_no_member(host):
    gate = Gate()
    room = host.spots.create("Hall", "room").result(PATIENCE)
    do(room, lambda *_: gate())
    gate.wait_begun()
    assert isinstance(outcome(create(host, "actors", spot="room", timeout=0.02)), DeadlineExceeded)
    gate.open()
    nothing_is_left(host, "actors")
    assert members(host, "room") == set()
    assert log_of(room) in (["create"], ["create", "join x", "leave x"]), "it came in late and was sent away, or never came"
    host.actors.join("x", "room").result(PATIENCE)
    assert members(host, "room") == {"x"}


def test_a_cancelled_creation_leaves_nothing(host, kind):
    never = Completion[None]()
    begun = threading.Event()

    async def waits(_: Any) -> None:
        begun.set()
        await never

    PLAN.create = waits
    created = create(host, kind)
    assert begun.wait(PATIENCE)
    together_with = get_or_create(host, kind)
    assert created.cancel()
    assert isinstance(outcome(created), Cancelled)
    assert isinstance(outcome(together_with), ShuttingDown), "it was not the one who cancelled"
    nothing_is_left(host, kind)


def test_who_gives_up_waiting_for_a_creation_of_somebody_else_does_not_disturb_it(host, kind):
    gate = Gate()
    PLAN.create = lambda _: gate()
    created = create(host, kind)
    gate.wait_begun()
    impatient, cancelled, patient = (
        get_or_create(host, kind, timeout=0.02),
        get_or_create(host, kind),
        get_or_create(host, kind),
    )
    assert cancelled.cancel()
    assert isinstance(outcome(cancelled), Cancelled)
    assert isinstance(outcome(impatient), DeadlineExceeded), "its own timeout, not the creator's"
    gate.open()
    assert created.result(PATIENCE) == patient.result(PATIENCE) == get_or_create(host, kind).result(PATIENCE)
    at_rest(host)


def test_a_cancel_after_the_creation_is_too_late_and_harmless(host, kind):
    created = create(host, kind)
    created.result(PATIENCE)
    assert not created.cancel()
    again = get_or_create(host, kind)
    again.cancel()
    assert again.result(PATIENCE) == get_or_create(host, kind).result(PATIENCE)


@pytest.mark.parametrize("way", ["await", "result"])
def test_waiting_for_ones_own_creation_raises(host, kind, way):
    async def waits(owner: Any) -> None:
        call = getattr(owner, kind).get_or_create(TYPES[kind], "x", timeout=30)
        with pytest.raises(InvalidOperation, match=r"'x'.*wait for itself"):
            await call if way == "await" else call.result(PATIENCE)

    PLAN.create = waits
    create(host, kind).result(PATIENCE)
    at_rest(host)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "1"])
def test_bad_timeouts_are_refused_where_they_are_given(host, kind, timeout):
    directory = getattr(host, kind)
    for call in (directory.create, directory.get_or_create):
        with pytest.raises(ValueError, match="timeout"):
            call(TYPES[kind], "x", timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        directory.request("x", "message", timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        directory.close("x", timeout=timeout)
    assert PLAN.made == 0


# -- while the old one closes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["create", "get_or_create"])
def test_a_creation_while_the_old_one_closes_gives_a_successor(host, kind, way):
    directory, gate = getattr(host, kind), Gate()
    old = do(create(host, kind).result(PATIENCE), lambda owner, _: id(owner) and owner).result(PATIENCE)
    do(directory.ref("x"), lambda *_: gate())
    gate.wait_begun()
    closed = directory.close("x").submit()
    successors = [getattr(directory, way)(TYPES[kind], "x").submit() for _ in range(3)]
    assert not any(successor.done() for successor in successors)
    gate.open()
    closed.result(PATIENCE)
    ended = [outcome(successor) for successor in successors]
    assert sum(isinstance(end, AlreadyExists) for end in ended) == (2 if way == "create" else 0)
    new = do(directory.ref("x"), lambda owner, _: owner).result(PATIENCE)
    assert new is not old
    assert PLAN.made == 2
    at_rest(host)


def test_a_successor_is_not_waited_for_longer_than_its_timeout(host, kind):
    directory, gate = getattr(host, kind), Gate()
    do(create(host, kind).result(PATIENCE), lambda *_: gate())
    gate.wait_begun()
    closed = directory.close("x").submit()
    successor = get_or_create(host, kind, timeout=0.02)
    assert isinstance(outcome(successor), DeadlineExceeded)
    gate.open()
    closed.result(PATIENCE)
    nothing_is_left(host, kind)
