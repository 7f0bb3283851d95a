"""`Entry`: one Spot or Actor in its directory, from creation to end.

Guarantees
    The object is made and `on_create` runs on the owner's first turn; `on_close` runs on its last, when everything accepted
    before it is over. No handler runs before the one or after the other.

Ownership
    `state`                    on the directory's lane
    `owner`                    set on the first turn, and taken back there when the creation fails
    `registration`             replaced on the directory's lane; read by anybody, one look
    `opening`                  set once, by who creates it, before anybody else sees `opened`
    `activation`               set once, before anybody sees the entry
    `failure`                  set on the first turn, when there is going to be no owner
    `opened`, `ended`          completions
    the rest                   read-only
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.dependencies import Scope
from zlink_nogil.errors import InvalidOperation, NotFound, ZLinkError
from zlink_nogil.execution import ActorSerialExecutor, SpotSerialExecutor, Turn
from zlink_nogil.scheduler import Completion, Wait, WorkerPool
from zlink_nogil.spots.handlers import Handling, OwnerType
from zlink_nogil.spots.message import Message
from zlink_nogil.spots.snapshot import ActorStateSnapshot

__all__ = ["Entry", "EntryState", "call_hook"]


class EntryState(Enum):
    CREATING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


_TRANSITIONS = frozenset(
    {
        (EntryState.CREATING, EntryState.OPEN),
        (EntryState.CREATING, EntryState.CLOSING),  # the creation failed, or was given up
        (EntryState.OPEN, EntryState.CLOSING),
        (EntryState.CLOSING, EntryState.CLOSED),
    }
)


async def call_hook(hook: Callable[..., Any], *args: Any) -> None:
    """Hooks may be plain or `async def`."""
    outcome = hook(*args)
    if inspect.isawaitable(outcome):
        await outcome


class Entry(ABC):
    executor: SpotSerialExecutor | ActorSerialExecutor
    registration: ActorStateSnapshot | None = None

    def __init__(self, label: str, owner_id: str, owner_type: OwnerType, ref: Any, pool: WorkerPool) -> None:
        self.label = label
        self.owner_id = owner_id
        self.owner_type = owner_type
        self.ref = ref
        self.owner: Any = None
        self.state = EntryState.CREATING
        self.activation: Completion[None] | None = None
        self.failure: BaseException | None = None
        self._scope: Scope | None = None
        self.given_up: Completion[None] = Completion(pool)
        self.opened: Completion[Any] = Completion(pool, canceller=self._give_up)
        self.ended: Completion[None] = Completion(pool, canceller=_never, on_wait=self._check_end)
        self.accepted: Completion[None] = Completion(pool)
        self.accepted.succeed(None)

    def move(self, state: EntryState) -> None:
        """On lane: one step of the lifecycle; an illegal one raises and changes nothing."""
        if (self.state, state) not in _TRANSITIONS:
            raise InvalidOperation(f"{self.label} is {self.state.name.lower()} and cannot become {state.name.lower()}")
        self.state = state

    def handling(self, name: str) -> Handling:
        """`NotFound` when no handler takes messages of that name."""
        handling = _sync.look_up(self.owner_type.handlers, name)
        if handling is None:
            raise NotFound(f"{self.label}, a {self.owner_type.type_name!r}, has no handler for {name!r}")
        return handling

    def _give_up(self) -> bool:
        """Not the opening task's cancel: before its first step that would end it with nothing done."""
        self.given_up.succeed(None)
        return True

    def _check_end(self, completion: Completion[Any], how: Wait) -> None:  # noqa: ARG002 - the end needs every turn
        if how is not Wait.OVER and self.executor.is_current():
            raise InvalidOperation(f"{how.value} on a turn of {self.label} would wait for itself: it is its own end")

    async def activate(self) -> None:
        """On the owner's first turn."""
        self._scope = scope = Scope()
        owner = self.owner_type.plan.make(scope)
        if not isinstance(owner, self.owner_type.owner_class):
            raise TypeError(f"the factory of {self.owner_type.type_name!r} made {type(owner).__name__}")
        self.bind(owner)
        await call_hook(owner.on_create)
        self.owner = owner

    async def deactivate(self) -> None:
        """On the same turn: the creation failed, in there or since."""
        self.owner = None
        self.close_scope()

    def close_scope(self) -> None:
        """Clean up what was made for the object, once: on the turn that could not make it, or after its last one."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.close()

    @abstractmethod
    def bind(self, owner: Any) -> None:
        """Tell the object who it is."""

    @abstractmethod
    def begin(self) -> None:
        """It is open: whatever runs by itself may do so now."""

    @abstractmethod
    def submit(self, message: Message) -> Completion[Any]:
        """Give the message to the executor."""

    def admit(self, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        """Append messages of other nodes in one critical section; returns the refused ones with the reason each."""
        return self.executor.admit(turns)

    @abstractmethod
    async def end(self, timeout: float) -> None:
        """In a task: finish what was accepted, then `on_close`; see `SpotSerialExecutor.end`."""

    @abstractmethod
    def abandon(self) -> None:
        """The creation failed: nothing that was accepted meanwhile will run."""


def _never() -> bool:
    return False
