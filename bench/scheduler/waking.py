"""One waits, another one wakes it: back and forth, from a plain thread, and a thousand at once."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep
from typing import Any

from bench.measure import Cell, Plan, Void, check, compare
from zlink_nogil import Completion, task
from zlink_nogil.scheduler import WorkerPool

__all__ = ["fan_out", "ping_pong", "wake"]

ROUNDS = 5_000
WAITERS = 1_000

type Ball = Completion[Any]
"""Succeeds with the next ball, or with None when the game is over."""


async def pong(ball: Ball, pool: WorkerPool) -> int:
    """Answer every ball with a fresh one; returns how many there were."""
    hits = 0
    while (answer := await ball) is not None:
        hits += 1
        ball = Completion(pool)
        answer.succeed(ball)
    return hits


async def ping(ball: Ball, pool: WorkerPool, rounds: int) -> None:
    for _ in range(rounds):
        answer: Ball = Completion(pool)
        ball.succeed(answer)
        ball = await answer
    ball.succeed(None)


def ping_pong(plan: Plan) -> Cell:
    """Two tasks; each round trip is two wake-ups through fresh completions (futures, queues)."""
    rounds = plan.count(ROUNDS)
    with WorkerPool(plan.workers) as pool, ThreadPoolExecutor(2) as executor, asyncio.Runner() as runner:
        rows = {
            "zlink": lambda: _ping_pong_tasks(pool, rounds),
            "asyncio": lambda: runner.run(_ping_pong_asyncio(rounds)),
            "simple_queue": lambda: _ping_pong_threads(executor, rounds),
        }
        return compare("ping_pong", rounds, rows, plan.runs)


def _ping_pong_tasks(pool: WorkerPool, rounds: int) -> float:
    async def play() -> int:
        first: Ball = Completion(pool)
        players = task.spawn(pong(first, pool)), task.spawn(ping(first, pool, rounds))
        await players[1]
        return await players[0]

    start = perf_counter()
    hits = task.spawn(play(), pool=pool).result()
    seconds = perf_counter() - start
    check("zlink: round trips", hits, rounds)
    return seconds


async def _ping_pong_asyncio(rounds: int) -> float:
    new = asyncio.get_running_loop().create_future

    async def asyncio_pong(ball: asyncio.Future[Any]) -> int:
        hits = 0
        while (answer := await ball) is not None:
            hits += 1
            ball = new()
            answer.set_result(ball)
        return hits

    async def asyncio_ping(ball: asyncio.Future[Any]) -> None:
        for _ in range(rounds):
            answer = new()
            ball.set_result(answer)
            ball = await answer
        ball.set_result(None)

    start = perf_counter()
    first = new()
    hits, _ = await asyncio.gather(asyncio_pong(first), asyncio_ping(first))
    seconds = perf_counter() - start
    check("asyncio: round trips", hits, rounds)
    return seconds


def _ping_pong_threads(executor: ThreadPoolExecutor, rounds: int) -> float:
    """Two threads of a pool with a queue each way."""
    there: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answering() -> int:
        hits = 0
        while (number := there.get()) is not None:
            hits += 1
            back.put(number)
        return hits

    def asking() -> None:
        for number in range(rounds):
            there.put(number)
            back.get()
        there.put(None)

    start = perf_counter()
    answerer, asker = executor.submit(answering), executor.submit(asking)
    asker.result()
    hits = answerer.result()
    seconds = perf_counter() - start
    check("simple_queue: round trips", hits, rounds)
    return seconds


def wake(plan: Plan) -> Cell:
    """Round trip from a plain thread: wake a waiting task, wait for its answer.

    `ratio_two_locks` is the other way round: our time by that of two bare threads that release each other's lock, which
    is what the machine can give. Lower is better; the aim is at most 1.5.
    """
    rounds = plan.count(ROUNDS)
    with WorkerPool(plan.workers) as pool, ThreadPoolExecutor(plan.workers) as executor:
        rows = {
            "zlink": lambda: _wake_task(pool, rounds),
            "two_locks": lambda: _wake_two_locks(rounds),
            "thread_pool": lambda: _wake_executor(executor, rounds),
        }
        cell = compare("wake", rounds, rows, plan.runs)
    figures = {**cell.figures, "ratio_two_locks": 1 / cell.figures["ratio_two_locks"]}
    return Cell(cell.name, cell.items, cell.rows, figures)


def _wake_task(pool: WorkerPool, rounds: int) -> float:
    ball: Ball = Completion(pool)
    player = task.spawn(pong(ball, pool), pool=pool)
    start = perf_counter()
    for _ in range(rounds):
        answer: Ball = Completion(pool)
        ball.succeed(answer)
        ball = answer.result()
    seconds = perf_counter() - start
    ball.succeed(None)
    check("zlink: round trips", player.result(), rounds)
    return seconds


def _wake_two_locks(rounds: int) -> float:
    there, back = threading.Lock(), threading.Lock()
    there.acquire()
    back.acquire()
    hits = 0

    def answering() -> None:
        nonlocal hits
        for _ in range(rounds):
            there.acquire()
            hits += 1
            back.release()

    thread = threading.Thread(target=answering)
    thread.start()
    start = perf_counter()
    for _ in range(rounds):
        there.release()
        back.acquire()
    seconds = perf_counter() - start
    thread.join()
    check("two_locks: round trips", hits, rounds)
    return seconds


def _wake_executor(executor: ThreadPoolExecutor, rounds: int) -> float:
    hits = 0

    def answer() -> int:
        nonlocal hits
        hits += 1  # one at a time
        return hits

    submit = executor.submit
    start = perf_counter()
    for _ in range(rounds):
        submit(answer).result()
    seconds = perf_counter() - start
    check("thread_pool: round trips", hits, rounds)
    return seconds


def fan_out(plan: Plan) -> Cell:
    """Many tasks wait for one thing: from the moment it happens until the last of them has run.

    Threads are left out: a thousand of them cannot be woken in a comparable way, and fifty are another job.
    """
    waiters = plan.count(WAITERS)
    with WorkerPool(plan.workers) as pool, asyncio.Runner() as runner:
        rows = {
            "zlink": lambda: _fan_out_tasks(pool, waiters),
            "asyncio": lambda: runner.run(_fan_out_asyncio(waiters)),
        }
        return compare("fan_out", waiters, rows, plan.runs)


def _fan_out_tasks(pool: WorkerPool, waiters: int) -> float:
    event: Completion[int] = Completion(pool)
    over: Completion[float] = Completion(pool)
    began: list[int] = []
    ran: list[int] = []

    async def waiter() -> None:
        began.append(1)
        ran.append(await event)
        if len(ran) == waiters:
            over.succeed(perf_counter())

    tasks = [task.spawn(waiter(), pool=pool) for _ in range(waiters)]
    _until("all wait", lambda: len(began) == waiters and pool.counts() == (0, pool.workers))
    start = perf_counter()
    event.succeed(1)
    seconds = over.result() - start
    for one in tasks:
        one.result()
    check("zlink: waiters", sum(ran), waiters)
    return seconds


async def _fan_out_asyncio(waiters: int) -> float:
    event = asyncio.Event()
    over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    ran: list[int] = []

    async def waiter() -> None:
        await event.wait()
        ran.append(1)
        if len(ran) == waiters:
            over.set_result(perf_counter())

    tasks = [asyncio.create_task(waiter()) for _ in range(waiters)]
    await asyncio.sleep(0)  # all of them wait
    start = perf_counter()
    event.set()
    seconds = await over - start
    await asyncio.gather(*tasks)
    check("asyncio: waiters", sum(ran), waiters)
    return seconds


def _until(what: str, condition: Callable[[], bool], patience: float = 20.0) -> None:
    deadline = perf_counter() + patience
    while not condition():
        if perf_counter() > deadline:
            raise Void(f"not within {patience:.0f} s: {what}")
        sleep(0.001)
