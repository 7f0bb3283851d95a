"""Waiting for several things: `join`, `race`, `timeout` (seed 001 section 5; design 2.4).

What they are given they own: whoever gives up waiting - the race is over, the time is, the waiter was cancelled - cancels
what is left of it and waits for its end, so that no `finally` block runs later than the caller goes on. Waiting for work
that needs the caller's own turn raises `InvalidOperation`, as an `await` of it does.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Generator, Iterable
from typing import Any

from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation
from zlink_nogil.scheduler.completion import Completion
from zlink_nogil.scheduler.spawning import Sleep, spawn
from zlink_nogil.scheduler.suspension import Suspension, Wait, Waker
from zlink_nogil.scheduler.timers import check_seconds

__all__ = ["end_of", "first_of", "join", "race", "timeout"]


class _FirstOf(Suspension):
    """Over when the first of `members` is. One waiter, once.

    `_ticket` holds the waker; taking it out is the one atomic decision who is first.
    """

    __slots__ = ("_members", "_ticket", "first")

    def __init__(self, members: Iterable[Suspension]) -> None:
        self._members = tuple(members)
        self._ticket: list[Waker] = []
        self.first: Suspension | None = None

    def add_waker(self, waker: Waker) -> bool:
        self._ticket.append(waker)
        for member in self._members:
            if not member.add_waker(self._one):
                return not self._win(member)
        return True

    def remove_waker(self, waker: Waker) -> None:  # noqa: ARG002 - there is one
        self._ticket.clear()
        self.detach()

    def detach(self) -> None:
        for member in self._members:
            member.remove_waker(self._one)

    def _win(self, member: Suspension) -> Waker | None:
        try:
            waker = self._ticket.pop()
        except IndexError:
            return None
        self.first = member
        return waker

    def _one(self, member: Suspension) -> None:
        waker = self._win(member)
        if waker is not None:
            waker(self)


@types.coroutine
def first_of(*members: Suspension) -> Generator[Suspension, None, Suspension]:
    """The one that ended first. The others are left alone."""
    waiting = _FirstOf(members)
    try:
        yield waiting
    finally:
        waiting.detach()
    assert waiting.first is not None
    return waiting.first


@types.coroutine
def end_of(completion: Completion[Any]) -> Generator[Suspension]:
    """Wait for the outcome without looking at it."""
    if not completion.done():
        yield completion


def _started[T](contestant: Awaitable[T]) -> Completion[T]:
    if isinstance(contestant, Completion):
        return contestant
    if isinstance(contestant, types.CoroutineType):
        return spawn(contestant)
    if inspect.isawaitable(contestant):  # `task.sleep(1)` is no `Awaitable` to `isinstance`
        return spawn(_await(contestant))
    raise TypeError(f"a task, a completion or an awaitable is needed, not {type(contestant).__name__!r}")


async def _await[T](awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _start_all[T](contestants: Iterable[Awaitable[T]]) -> list[Completion[T]]:
    """All or none: those before a bad one have been given up."""
    completions: list[Completion[T]] = []
    try:
        for contestant in contestants:
            completions.append(_started(contestant))
    except BaseException:
        await _give_up(completions)
        raise
    return completions


def _begin_to_wait(completions: Iterable[Completion[Any]]) -> None:
    """`InvalidOperation` if one of them cannot end while the caller waits for it (decision 11)."""
    for completion in completions:
        if not completion.done():
            completion.tell(Wait.KEEP)


def _can_be_awaited(completion: Completion[Any]) -> bool:
    try:
        _begin_to_wait([completion])
    except InvalidOperation:
        return False
    return True


async def _give_up(completions: Iterable[Completion[Any]]) -> None:
    """Cancel what is left, and wait for its end, whatever comes; a cancel that came meanwhile is raised then.

    What needs the caller's own turn to end is cancelled only.
    """
    left = [completion for completion in completions if not completion.done()]
    for completion in left:
        completion.cancel()
    cancelled: Cancelled | None = None
    for completion in filter(_can_be_awaited, left):
        while not completion.done():
            try:
                await end_of(completion)
            except Cancelled as again:
                cancelled = again
    if cancelled is not None:
        raise cancelled


async def join[T](*contestants: Awaitable[T]) -> list[T]:
    """Wait until all have ended; their results in order, or the first error in that order."""
    completions = await _start_all(contestants)
    try:
        _begin_to_wait(completions)
        for completion in completions:
            await end_of(completion)
    except BaseException:
        await _give_up(completions)
        raise
    return [completion.outcome() for completion in completions]


async def race[T](*contestants: Awaitable[T]) -> T:
    """The outcome of the one that ends first; the others are cancelled, and have ended when this returns.

    `ValueError` for a race of none.
    """
    if not contestants:
        raise ValueError("a race of none never ends")
    completions = await _start_all(contestants)
    try:
        _begin_to_wait(completions)
        winner = await first_of(*completions)
    finally:
        await _give_up(completions)
    return next(completion for completion in completions if completion is winner).outcome()


async def timeout[T](seconds: float, contestant: Awaitable[T]) -> T:
    """The outcome of `contestant`, or `DeadlineExceeded` (a `TimeoutError`) after `seconds`: then it has been cancelled
    and has ended. `ValueError` for NaN."""
    alarm = Sleep(check_seconds(seconds))
    completion = _started(contestant)
    try:
        _begin_to_wait([completion])
        await first_of(completion, alarm)
    except BaseException:
        await _give_up([completion])
        raise
    if not completion.done():
        await _give_up([completion])
        raise DeadlineExceeded(f"not done within {seconds} s")
    return completion.outcome()
