"""What tests of the coordinators share: Spots with hardly any room, work that notes what it does, and tables of tests."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from background import Gate
from support import PATIENCE, eventually

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.execution import (
    ActorSerialExecutor,
    Entry,
    ExecutionLanePolicy,
    Instance,
    PerActor,
    SerialExecutionQueue,
    SessionSerialExecutor,
    SpotMode,
    SpotSerialExecutor,
    SpotWide,
)
from zlink_nogil.scheduler import Completion, WorkerPool

MODES = (PerActor, SpotWide)
KINDS = (PerActor, SpotWide, Entry, Instance)

type Work = Callable[[], Any]
type Execute = Callable[[Work], Completion[Any]]


class Clock:
    """What everything that is made under `monkeypatch` takes for the time."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now = 1000.0
        monkeypatch.setattr(_sync, "monotonic", lambda: self.now)

    def spend(self, milliseconds: float) -> None:
        self.now += milliseconds / 1000


def let_others_run(pool: WorkerPool) -> None:
    """On a pool with one free worker: whatever was ready before has had its slice."""
    assert SerialExecutionQueue(pool=pool).enqueue(lambda: "others run").result(PATIENCE) == "others run"


def refused() -> None:
    raise AssertionError("refused work ran")


class Stage:
    """A Spot, and what its work noted in `seen`. Policies are given as fields: `items=2, actor_items=1`."""

    def __init__(self, pool: WorkerPool, mode: SpotMode, name: str = "stage", **limits: Any) -> None:
        self.pool = pool
        self.seen: list[Any] = []
        actor = {key.removeprefix("actor_"): value for key, value in limits.items() if key.startswith("actor_")}
        own = {key: value for key, value in limits.items() if not key.startswith("actor_")}
        self.spot = SpotSerialExecutor(name, mode, policy=policy(**own), actor_policy=policy(**actor), pool=pool)
        self._gates: list[Gate] = []

    # -- work -------------------------------------------------------------------------------------------------------

    def note(self, name: Any, then: Work = lambda: None) -> Work:
        return lambda: (self.seen.append(name), then(), name)[2]

    def waits(self, name: str, awaited: Completion[Any], how: str = "yield") -> Work:
        """An `async def` that says when it begins and goes on."""

        async def handler() -> Any:
            self.seen.append(f"{name} begins")
            try:
                value = await (awaited.yield_() if how == "yield" else awaited)
            except BaseException as error:
                self.seen.append(f"{name} {type(error).__name__}")
                raise
            self.seen.append(f"{name} goes on")
            return value

        return handler

    def actor(self, actor_id: str, *names: str) -> list[Completion[Any]]:
        return [self.spot.execute_actor(actor_id, self.note(name)) for name in names]

    # -- holding ----------------------------------------------------------------------------------------------------

    def hold(self, execute: Execute) -> Gate:
        """Work that has begun, and keeps its queue until the gate is opened."""
        gate = Gate()
        self._gates.append(gate)
        execute(gate)
        gate.wait_begun()
        return gate

    def hold_spot(self) -> Gate:
        return self.hold(self.spot.execute_spot)

    def hold_actor(self, actor_id: str) -> Gate:
        return self.hold(lambda work: self.spot.execute_actor(actor_id, work))

    def let_go(self) -> list[Any]:
        """Open every gate, let everything end; returns what was seen."""
        for gate in self._gates:
            gate.open()
        self.at_rest()
        return self.seen

    def at_rest(self) -> None:
        """Nothing is left, and nothing reserved."""
        eventually(lambda: self.reserved() == (0, 0), f"rest; {self.spot.snapshots()}")

    def reserved(self) -> tuple[int, int]:
        snapshots = self.spot.snapshots()
        return sum(each.reserved_items for each in snapshots), sum(each.reserved_bytes for each in snapshots)

    def spot_reserved(self) -> tuple[int, int]:
        """(items, bytes) of the Spot's own queue."""
        own = self.spot.snapshots()[0]
        return own.reserved_items, own.reserved_bytes


def joined(stage: Stage, actor_id: str, **limits: Any) -> ActorSerialExecutor:
    """An Actor that has become a member of the stage's Spot."""
    actor = ActorSerialExecutor(actor_id, policy=policy(**limits), pool=stage.pool)
    actor.execute_lifecycle(lambda: stage.spot.admit_member(actor_id, actor)).result(PATIENCE)
    return actor


def run_out(coordinator: SpotSerialExecutor | ActorSerialExecutor | SessionSerialExecutor) -> None:
    """Close it with the time over at once, and wait for the end of what is unwound then."""
    with contextlib.suppress(DeadlineExceeded):
        coordinator.close(0)
    coordinator.close(PATIENCE)


SHORT = {
    "items": "application_message_capacity",
    "bytes": "application_byte_capacity",
    "lifecycle_items": "lifecycle_message_capacity",
    "cost": "fixed_work_byte_cost",
    "burst": "lifecycle_burst_limit",
    "budget": "owner_time_budget_ms",
}


def policy(**limits: Any) -> ExecutionLanePolicy:
    return ExecutionLanePolicy(**{SHORT[name]: value for name, value in limits.items()})


def entries(coordinator: SpotSerialExecutor | ActorSerialExecutor | SessionSerialExecutor) -> dict[str, Execute]:
    """Every `execute_*` of a coordinator, by what it is for. An Actor's is there twice, a timer's as well."""
    if isinstance(coordinator, ActorSerialExecutor):
        return {"actor": coordinator.execute_actor, "lifecycle": coordinator.execute_lifecycle}
    if isinstance(coordinator, SessionSerialExecutor):
        return {
            "application": coordinator.execute_application,
            "control": coordinator.execute_control,
            "infrastructure": coordinator.execute_infrastructure,
            "final": coordinator.execute_final,
        }
    found: dict[str, Execute] = {
        "spot": coordinator.execute_spot,
        "timer": lambda work: coordinator.execute_timer("tick", work),
        "other timer": lambda work: coordinator.execute_timer("beat", work),
        "lifecycle": coordinator.execute_lifecycle,
    }
    if coordinator.mode.has_actors:
        found["actor"] = lambda work: coordinator.execute_actor("a", work)
        found["other actor"] = lambda work: coordinator.execute_actor("b", work)
    return found


# -- tables ---------------------------------------------------------------------------------------------------------


def named_tests(file: str | Path) -> set[str]:
    """The names of the tests in a file beside this one."""
    tree = ast.parse((Path(__file__).parent / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def missing(references: Iterable[str], here: str | Path) -> list[str]:
    """Those of `references` - "test_name", or "test_file.py::test_name" - that are no tests."""
    found = []
    for reference in references:
        file, _, name = reference.rpartition("::")
        if name not in named_tests(file or here):
            found.append(reference)
    return found
