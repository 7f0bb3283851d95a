"""Membership: how an Actor goes from one Spot to another (design 3.4-3.5).

Order, on the Actor's turn, so that none of its messages runs meanwhile
    1. the new Spot's executor takes the Actor's queue in, 2. its `on_join`, 3. the registration says so - from here on the
    Actor is a member there -, 4. the old Spot lets go, 5. its `on_leave`, 6. the Actor's own hooks.

Guarantees
    A move that fails before step 3 changes nothing: what was under way at the new Spot is cancelled, or undone there by its
    `on_leave`, and over before the Actor's next message (but if the Actor is closing and has no time left). After step 3
    the Actor is a member there, whatever the leaving hooks do: what they raise is logged. A shared gate is given back while
    another Spot is waited for; the Actor's queue is kept.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from zlink_nogil.errors import Cancelled, ShuttingDown
from zlink_nogil.scheduler import Completion
from zlink_nogil.scheduler.suspension import GivenBack
from zlink_nogil.scheduler.waiting import end_of
from zlink_nogil.spots.entry import EntryState, call_hook

if TYPE_CHECKING:
    from zlink_nogil.spots.actors import ActorEntry
    from zlink_nogil.spots.spots import SpotEntry

__all__ = ["let_go", "move"]

_log = logging.getLogger("zlink_nogil.spots")


async def move(actor: ActorEntry, target: SpotEntry | None) -> None:
    source = actor.spot
    if target is source:
        return
    if target is not None:
        await _join(actor, target, source)
    else:
        actor.executor.move_to(None, None)
    actor.publish(target)
    if source is not None:
        await _leave(actor, source)
        await _logged(actor, actor.owner.on_leave, source.ref)
    if target is not None:
        await _logged(actor, actor.owner.on_join, target.ref)


async def _join(actor: ActorEntry, target: SpotEntry, source: SpotEntry | None) -> None:
    target.executor.admit_member(actor.owner_id, actor.executor)
    undecided = ["taken out by the first: the Spot, which has let it in, or the Actor, which has given up"]
    try:
        joining = target.executor.execute_lifecycle(lambda: _on_join(actor, target, undecided))
        try:
            await _waits(actor, joining)
        except BaseException:
            if joining.done():
                joining.outcome()
            elif _first(undecided):  # else it is in, and what interrupts it comes too late
                joining.cancel()
                await _end(actor, joining)
                raise
    except BaseException:
        target.executor.release_member(actor.owner_id)
        actor.executor.move_to(*((None, None) if source is None else (source.executor.gate, source.executor)))
        raise


def _first(undecided: list[str]) -> bool:
    try:
        undecided.pop()  # atomic
    except IndexError:
        return False
    return True


async def _on_join(actor: ActorEntry, target: SpotEntry, undecided: list[str]) -> None:
    """On the new Spot's turn."""
    target.members[actor.owner_id] = actor.ref  # before the look: who closes the Spot looks the other way round
    try:
        if target.state is not EntryState.OPEN:
            raise ShuttingDown(f"{target.label} is not open")
        await call_hook(target.owner.on_join, actor.owner)
    except BaseException:
        del target.members[actor.owner_id]
        raise
    if not _first(undecided):
        await _on_leave(actor, target)


async def _leave(actor: ActorEntry, source: SpotEntry) -> None:
    """The move is decided: whoever interrupts it now comes too late."""
    try:
        leaving = source.executor.see_off(actor.owner_id, lambda: _on_leave(actor, source))
    except ShuttingDown:  # its last turn may be over
        source.members.pop(actor.owner_id, None)
        return
    try:
        await _waits(actor, leaving)
    except (Cancelled, ShuttingDown):
        if leaving.done():  # the Spot's time was over
            source.members.pop(actor.owner_id, None)
    except Exception:
        _log.exception("%s could not leave %s in order", actor.label, source.label)


async def _on_leave(actor: ActorEntry, source: SpotEntry) -> None:
    """On the old Spot's turn."""
    source.members.pop(actor.owner_id, None)
    await _logged(actor, source.owner.on_leave, actor.owner)


async def _logged(actor: ActorEntry, hook: Any, argument: Any) -> None:
    try:
        await call_hook(hook, argument)
    except Exception:
        _log.exception("%s failed for %s", hook.__qualname__, actor.label)


async def _waits(actor: ActorEntry, completion: Completion[Any]) -> None:
    await (completion.yield_() if actor.executor.may_yield() else completion)


def let_go(actor: ActorEntry) -> None:
    """Off its turn: an Actor that could not be closed in time is a member nowhere."""
    source = actor.spot
    if source is not None:
        actor.publish(None)
        try:
            source.executor.see_off(actor.owner_id, lambda: _on_leave(actor, source))
        except ShuttingDown:
            source.members.pop(actor.owner_id, None)


async def _end(actor: ActorEntry, completion: Completion[Any]) -> None:
    """Wait for the end without looking at it; an interruption ends the wait."""
    with contextlib.suppress(Cancelled, ShuttingDown):
        await (GivenBack(completion) if actor.executor.may_yield() else end_of(completion))
