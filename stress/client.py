"""Client nodes and their sender threads, and the ledger in which each operation has exactly one end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stress.server import MESH, answer
from zlink_nogil import (
    Cancelled,
    CapacityExceeded,
    Channel,
    Completion,
    DeadlineExceeded,
    Host,
    InternalFailure,
    NotFound,
    ShuttingDown,
    Unavailable,
)

__all__ = ["Client", "Ledger"]

EXPECTED = (Cancelled, CapacityExceeded, DeadlineExceeded, NotFound, ShuttingDown, Unavailable)
"""Ends that are nobody's fault: nodes are killed, deadlines are short, calls are cancelled. Besides, what was asked for."""
HOT_KEYS = 30
COLD_KEYS = 5000
"""More than a node keeps queues for: the idle ones are given up, and made again."""
IN_FLIGHT = 48
"""Per sender; three of them need more than the slots of their client."""
SLOTS = 100
TIMEOUTS = (0.002, 0.05, 0.5, 5.0, 5.0, 5.0)
SIZES = (0, 1, 100, 1000, 1000, 10_000, 60_000)
LARGE = 1_000_000
DEEDS = (b"nothing", b"nothing", b"nothing", b"burn", b"nest", b"raise")


@dataclass
class Ledger:
    """What was started and how it ended. Everything under `lock`."""

    started: int = 0
    ended: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    open: set[tuple[str, int]] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, operation: tuple[str, int]) -> None:
        with self.lock:
            self.started += 1
            self.open.add(operation)

    def refuse(self, operation: tuple[str, int], error: BaseException) -> None:
        """It was not started after all."""
        with self.lock:
            self.started -= 1
            self.open.remove(operation)
            self.refused[type(error).__name__] += 1
            if not isinstance(error, EXPECTED):
                self.broken.append(f"{operation} was refused: {error!r}")

    def end(self, operation: tuple[str, int], name: str, wrong: str | None) -> None:
        with self.lock:
            self.ended += 1
            self.ends[name] += 1
            if operation not in self.open:
                self.broken.append(f"{operation} has ended twice, now as {name}")
            self.open.discard(operation)
            if wrong is not None:
                self.broken.append(f"{operation}: {wrong}")


class Sender(threading.Thread):
    """Sends and requests, pipelined; the seed and its name decide what, the machine decides when."""

    def __init__(self, name: str, channel: Channel, ledger: Ledger, stop: threading.Event, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._channel = channel
        self._ledger = ledger
        self._stop_sending = stop
        self._random = random.Random(f"{seed}/{name}")
        self._room = threading.Semaphore(IN_FLIGHT)
        self._number = 0

    def run(self) -> None:
        while not self._stop_sending.is_set():
            if not self._room.acquire(timeout=0.1):
                continue
            try:
                self._one()
            except BaseException as error:  # the sender must not die unseen
                with self._ledger.lock:
                    self._ledger.broken.append(f"{self.name} has died: {error!r}")
                raise

    def _one(self) -> None:
        dice = self._random
        self._number += 1
        operation = (self.name, self._number)
        number = str(self._number).encode()
        message = dice.randbytes(LARGE if dice.random() < 0.002 else dice.choice(SIZES))
        deed = dice.choice(DEEDS)
        asks = dice.random() < 0.7
        call: Any = (self._channel.request if asks else self._channel.send)(
            message,
            name="ask" if asks else "tell",
            key=f"key {dice.randrange(HOT_KEYS if dice.random() < 0.7 else COLD_KEYS)}",
            timeout=dice.choice(TIMEOUTS),
            metadata={"sender": self.name.encode(), "number": number, "do": deed},
            **({"reply": bytes} if asks else {}),
        )
        expected = answer(number, message) if asks else None
        self._ledger.start(operation)
        try:
            completion = call.submit()
        except BaseException as error:
            self._ledger.refuse(operation, error)
            self._room.release()
            return
        completion.add_done_callback(lambda done: self._ended(operation, done, expected, deed))
        self._then(completion)

    def _then(self, completion: Completion[Any]) -> None:
        """Mostly nothing; sometimes cancel, at once or after a moment, or wait, sometimes not long enough."""
        what = self._random.random()
        if what < 0.05:
            completion.cancel()
        elif what < 0.10:
            threading.Event().wait(self._random.random() * 0.01)
            completion.cancel()
        elif what < 0.25:
            try:
                completion.exception(self._random.choice((0.001, 10.0)))
            except DeadlineExceeded:
                return  # the operation goes on

    def _ended(self, operation: tuple[str, int], done: Completion[Any], expected: bytes | None, deed: bytes) -> None:
        wrong = None
        error = done.exception(0)
        if error is None:
            name = "answered" if expected is not None else "sent"
            if done.result(0) != expected:
                wrong = f"got another's answer: {done.result(0)!r}, not {expected!r}"
            elif expected is not None and deed == b"raise":
                wrong = "its handler raised, and it was answered"
        elif isinstance(error, InternalFailure) and deed == b"raise" and "Deliberate: as asked" in str(error):
            name = "handler raised"
        else:
            name = type(error).__name__
            if not isinstance(error, EXPECTED):
                wrong = f"{error!r}"
        self._ledger.end(operation, name, wrong)
        self._room.release()


class Client:
    """A client node with its senders."""

    def __init__(self, name: str, senders: int, ledger: Ledger, seed: int) -> None:
        self.name = name
        self.host = Host(workers=2, max_pending_operations=SLOTS)
        self.mesh = self.host.mesh(MESH, node_id=name)
        self.host.start()
        self._stop = threading.Event()
        channel = self.mesh.channel("work")
        self._senders = [Sender(f"{name}/{n}", channel, ledger, self._stop, seed) for n in range(senders)]

    def begin(self) -> None:
        for sender in self._senders:
            sender.start()

    def stop(self, timeout: float) -> list[str]:
        """No new operations; the names of senders that hang."""
        self._stop.set()
        for sender in self._senders:
            sender.join(timeout)
        return [sender.name for sender in self._senders if sender.is_alive()]
