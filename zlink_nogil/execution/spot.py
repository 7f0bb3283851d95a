"""`SpotSerialExecutor`: which queue a Spot's work takes (seed 000 sections 2-4; design 3.5).

    PerActor, Entry      [Spot]  [Actor a]  [Actor b]  [timer x]     a queue each, at the same time
    SpotWide, Instance   [Actor a] [Actor b] -> [Spot]               one gate; an Actor's payload stays in its queue

Guarantees
    The caller never names a queue. Finding or making a queue and admitting the work to it are one turn of the lane; so are
    the mark "closed" and emptying the maps. What was accepted ends before `close` returns.

Ownership
    on `_lane`           `_actors`, `_timers`, `_members`, `_closed`, `_ending`
    read-only            the rest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import AlreadyExists, InvalidOperation, ShuttingDown, ZLinkError
from zlink_nogil.execution import _waits
from zlink_nogil.execution._closing import close_together, end_together
from zlink_nogil.execution._queue_map import QueueMap
from zlink_nogil.execution.actor import ActorSerialExecutor
from zlink_nogil.execution.mode import SpotMode
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.queue import SerialExecutionQueue
from zlink_nogil.execution.snapshot import QueueStateSnapshot
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Wait, WorkerPool, default_pool
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["SpotSerialExecutor"]


class SpotSerialExecutor:
    """One per Spot. All members are thread-safe; each `execute_*` starts at once and returns a `Completion`.

    `name` appears in errors; `policy` limits the Spot's queue and its timers', `actor_policy` each Actor's. `execute_*`
    raise, having changed nothing: `CapacityExceeded` when that owner's share is full, `ShuttingDown` after `close`,
    `ValueError` for a negative size.
    """

    def __init__(
        self,
        name: str,
        mode: SpotMode,
        *,
        policy: ExecutionLanePolicy | None = None,
        actor_policy: ExecutionLanePolicy | None = None,
        pool: WorkerPool | None = None,
    ) -> None:
        if not isinstance(mode, SpotMode):
            raise TypeError(f"a Spot's mode is PerActor, SpotWide, Entry or Instance, not {mode!r}")
        self.name = name
        self.mode = mode
        self._policy = policy or ExecutionLanePolicy()
        self._actor_policy = actor_policy or ExecutionLanePolicy()
        self._pool = pool or default_pool()
        self._lane = StateLane(f"spot {name}")
        self._spot = self._queue(self._policy, f"spot {name}", shared=mode.one_gate)
        self._actors: QueueMap[str] = QueueMap(self._make_actor_queue)
        self._timers: QueueMap[str] = QueueMap(lambda timer: self._queue(self._policy, f"spot {name} timer {timer}"))
        self._members: dict[str, ActorSerialExecutor] = {}
        self._closed = False
        self._ending: list[SerialExecutionQueue] = []

    def __repr__(self) -> str:
        return f"<SpotSerialExecutor {self.name!r} {self.mode!r}>"

    def _queue(self, policy: ExecutionLanePolicy, name: str, **wiring: Any) -> SerialExecutionQueue:
        queue = SerialExecutionQueue(policy, pool=self._pool, name=name, **wiring)
        queue.group = self
        return queue

    def _make_actor_queue(self, actor_id: str) -> SerialExecutionQueue:
        return self._queue(self._actor_policy, f"spot {self.name} actor {actor_id}", outer=self.gate)

    @property
    def gate(self) -> SerialExecutionQueue | None:
        """The queue that gives this Spot's Actors their turns; None when each has its own."""
        return self._spot if self.mode.one_gate else None

    # -- entry points -----------------------------------------------------------------------------------------------

    def execute_spot(self, work: Callable[[], Any], payload_bytes: int = 0) -> Completion[Any]:
        """Run a Spot handler's `work()`, which holds `payload_bytes` bytes besides the fixed cost."""
        return self._lane.run(self._execute_spot, work, payload_bytes)

    def _execute_spot(self, work: Callable[[], Any], payload_bytes: int) -> Completion[Any]:
        debug_assert_on_lane(self._lane)
        self._check_open()
        return self._spot.enqueue_with_payload_bytes(work, payload_bytes)

    def admit(self, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        """Admit turns to the Spot's queue in one critical section; returns the refused ones with the reason each."""
        return self._lane.run(self._admit, turns)

    def _admit(self, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        debug_assert_on_lane(self._lane)
        return self._spot.admit(turns)

    def execute_actor(self, actor_id: str, work: Callable[[], Any], payload_bytes: int = 0) -> Completion[Any]:
        """Run a handler's `work()` of the Actor `actor_id`: in order for one Actor; see the modes for others."""
        if not self.mode.has_actors:
            raise InvalidOperation(f"{self!r} has no Actors")
        return self._lane.run(self._execute_actor, actor_id, work, payload_bytes)

    def _execute_actor(self, actor_id: str, work: Callable[[], Any], payload_bytes: int) -> Completion[Any]:
        debug_assert_on_lane(self._lane)
        self._check_open()
        member = _sync.look_up(self._members, actor_id)
        if member is not None:
            return member.execute_actor(work, payload_bytes)
        return self._actors.get_or_make(actor_id).enqueue_with_payload_bytes(work, payload_bytes)

    def execute_timer(self, timer_name: str, work: Callable[[], Any]) -> Completion[Any]:
        """Run a callback of the timer `timer_name`, at the fixed cost."""
        return self._lane.run(self._execute_timer, timer_name, work)

    def _execute_timer(self, timer_name: str, work: Callable[[], Any]) -> Completion[Any]:
        debug_assert_on_lane(self._lane)
        self._check_open()
        return (self._spot if self.mode.one_gate else self._timers.get_or_make(timer_name)).enqueue(work)

    def execute_lifecycle(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run join, leave and the like on the Spot's queue: ahead of what waits there, but not for ever."""
        return self._lane.run(self._execute_lifecycle, work)

    def _execute_lifecycle(self, work: Callable[[], Any]) -> Completion[Any]:
        debug_assert_on_lane(self._lane)
        self._check_open()
        return self._spot.enqueue_lifecycle(work)

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown(f"spot {self.name!r} is closed")

    # -- members ----------------------------------------------------------------------------------------------------

    def admit_member(self, actor_id: str, actor: ActorSerialExecutor) -> None:
        """On a turn of `actor`: from the turn's end on its work goes through this Spot.

        `AlreadyExists` when work of that id is here already, `ShuttingDown` after `close`.
        """
        if not self.mode.has_actors:
            raise InvalidOperation(f"{self!r} has no Actors")
        self._lane.run(self._admit_member, actor_id, actor)

    def _admit_member(self, actor_id: str, actor: ActorSerialExecutor) -> None:
        debug_assert_on_lane(self._lane)
        self._check_open()
        strays = self._actors.find(actor_id)
        if actor_id in self._members or (strays is not None and not strays.retire()):
            raise AlreadyExists(f"spot {self.name!r} has an Actor {actor_id!r} already")
        actor.move_to(self.gate, self)
        self._members[actor_id] = actor

    def release_member(self, actor_id: str) -> None:
        """On a turn of that member: from the turn's end on its work goes its own way, or another Spot's."""
        self._lane.run(self._release_member, actor_id)

    def _release_member(self, actor_id: str) -> None:
        debug_assert_on_lane(self._lane)
        actor = _sync.look_up(self._members, actor_id)
        if actor is not None:
            actor.leave(self)
            del self._members[actor_id]

    def see_off(self, actor_id: str, farewell: Callable[[], Any]) -> Completion[Any]:
        """As `release_member`, and run `farewell()` as lifecycle work: with room or without, since members are let in.

        `ShuttingDown` after `close`; it is released all the same.
        """
        return self._lane.run(self._see_off, actor_id, farewell)

    def _see_off(self, actor_id: str, farewell: Callable[[], Any]) -> Completion[Any]:
        debug_assert_on_lane(self._lane)
        self._members.pop(actor_id, None)
        self._check_open()
        return self._spot.enqueue_lifecycle_anyway(farewell)

    # -- asking, closing --------------------------------------------------------------------------------------------

    def check_wait(self, completion: Completion[Any] | None, how: Wait) -> None:
        """As `SerialExecutionQueue.check_wait`, for work of the Spot itself."""
        self._spot.check_wait(completion, how)

    def is_current(self) -> bool:
        """Is the calling thread on a turn of this Spot, or of an Actor or timer of it?"""
        return _waits.current_group() is self

    def snapshots(self) -> list[QueueStateSnapshot]:
        """What is in each queue, the Spot's first. Not all at one moment."""
        queues = self._lane.run(lambda: [self._spot, *self._actors.all(), *self._timers.all()])
        return [queue.snapshot() for queue in queues]

    def close(self, timeout: float = 5.0) -> None:
        """Refuse new work and finish what was accepted, the members' too. A second close is harmless and waits as well.

        After `timeout` seconds what has not begun ends as `ShuttingDown`, what waits gets it at its `await`;
        `DeadlineExceeded` if something still runs `timeout` seconds after that. On a turn of this Spot it only marks it.
        """
        queues = [*self.refuse_new(), *self._lane.run(self._refuse_members)]
        if not self.is_current():
            close_together(queues, timeout)

    def _refuse_members(self) -> list[SerialExecutionQueue]:
        debug_assert_on_lane(self._lane)
        return [member.refuse_new() for member in self._members.values()]

    def refuse_new(self) -> list[SerialExecutionQueue]:
        """Mark the Spot closed and empty the maps; returns the queues that have to end, without the members'."""
        return self._lane.run(self._refuse_new)

    def _refuse_new(self) -> list[SerialExecutionQueue]:
        debug_assert_on_lane(self._lane)
        if not self._closed:
            self._closed = True
            self._ending = [*self._actors.empty(), *self._timers.empty(), self._spot]
            for queue in self._ending:
                queue.refuse_new()
        return self._ending

    def expire(self) -> None:
        """Refuse new work, end what has not begun, and interrupt what waits."""
        for queue in self.refuse_new():
            queue.expire()

    async def end(self, timeout: float, final: Callable[[], Any]) -> None:
        """In a task: as `close`, but members go on elsewhere; then run `final()` on the Spot's queue. Once."""
        await end_together(self.refuse_new(), timeout, self._spot, final)
