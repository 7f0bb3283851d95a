"""One run of one row by one peer. Fails when anything that was sent did not arrive."""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from bench.actors.counting import Arrivals, Counts, Peer

__all__ = ["PATIENCE", "PEERS", "SENDERS", "Figures", "measured"]

SENDERS: Final = 2
WINDOW: Final = 64
"""Requests in flight of one sender thread."""
PATIENCE: Final = 120.0
WARM_UP: Final = 0.1
"""Of the rounds, once more and before."""


def _pykka(workers: int) -> Peer:  # noqa: ARG001 - it has a thread for each actor
    from bench.actors.pykka_actors import PykkaActors

    return PykkaActors()


def _zlink(workers: int, *, spot_wide: bool = False) -> Peer:
    from bench.actors.zlink_actors import ZlinkActors

    return ZlinkActors(workers, spot_wide=spot_wide)


# In a process of its own each: none pays for what another one imports.
PEERS: Final[dict[str, Callable[[int], Peer]]] = {
    "zlink": _zlink,
    "zlink_spot_wide": functools.partial(_zlink, spot_wide=True),
    "pykka": _pykka,
}


@dataclass(frozen=True)
class Figures:
    """`cpu_seconds`: of all threads, which a busy machine hardly changes. `bytes_each`: memory of the process with the
    actors less that without, by their number.
    """

    seconds: float
    cpu_seconds: float
    threads: int
    bytes_each: float


def measured(job: str, peer_name: str, actors: int, rounds: int, workers: int) -> Figures:
    """`job`: `tell`, `ask`, `ask_serial`, or `idle`, which only makes the actors."""
    peer = PEERS[peer_name](workers)
    try:
        run = _Run(peer, job, actors)
        if job == "idle":
            return Figures(run.start_seconds, run.cpu_seconds, _threads(), run.bytes_each)
        run.seconds(max(1, round(rounds * WARM_UP)))
        gc.collect()
        gc.freeze()  # the actors are not looked at again
        return Figures(run.seconds(rounds), run.cpu_seconds, _threads(), run.bytes_each)
    finally:
        peer.stop()


class _Run:
    def __init__(self, peer: Peer, job: str, actors: int) -> None:
        self._peer = peer
        self._job = job
        self._arrivals = Arrivals()
        before, start, cpu = _resident(), perf_counter(), process_time()
        self._counters = peer.start(actors, self._arrivals)
        self.start_seconds = perf_counter() - start
        self.cpu_seconds = process_time() - cpu
        self.bytes_each = (_resident() - before) / actors

    def seconds(self, rounds: int) -> float:
        """From the first message to the arrival of the last one, and of the last answer."""
        for counter in self._counters:
            counter.total, counter.received, counter.expected = 0, 0, SENDERS * rounds
        self._arrivals.expect(len(self._counters))
        answers: list[int] = []
        barrier = threading.Barrier(SENDERS + 1)
        senders = [threading.Thread(target=self._send, args=(number, rounds, barrier, answers)) for number in range(SENDERS)]
        for sender in senders:
            sender.start()
        barrier.wait()
        start, cpu = perf_counter(), process_time()
        end = self._arrivals.wait(PATIENCE)
        for sender in senders:
            sender.join()
        self.cpu_seconds = process_time() - cpu
        if self._job != "tell":
            end = perf_counter()
        self._check(rounds, answers)
        return end - start

    def _send(self, number: int, rounds: int, barrier: threading.Barrier, answers: list[int]) -> None:
        first = number * len(self._counters) // SENDERS
        barrier.wait()
        if self._job == "tell":
            self._peer.tell(first, rounds)
        else:
            answers.append(self._peer.ask(first, rounds, WINDOW if self._job == "ask" else 1))

    def _check(self, rounds: int, answers: list[int]) -> None:
        each = rounds * (rounds - 1) // 2
        wanted = (SENDERS * rounds, SENDERS * each)
        if wrong := [counter for counter in self._counters if _got(counter) != wanted]:
            raise AssertionError(f"{len(wrong)} actors got something else, one {_got(wrong[0])} instead of {wanted}")
        if self._job != "tell" and answers != [each * len(self._counters)] * SENDERS:
            raise AssertionError(f"the answers sum up to {answers}")


def _got(counter: Counts) -> tuple[int, int]:
    return counter.received, counter.total


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _threads() -> int:
    """Of the operating system in this process, besides the main one; the senders have ended."""
    return len(os.listdir("/proc/self/task")) - 1
