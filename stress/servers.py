"""The server processes, from outside: started, killed, stopped for a moment, drained, and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stress.server import BROKEN, READY, REPORT

__all__ = ["Books", "Server", "Trouble"]

PATIENCE = 30.0
LOGGED = ("Deliberate", "CapacityExceeded", "DeadlineExceeded", "ShuttingDown")
"""What a send may fail with: nobody but the log hears of it."""


@dataclass
class Books:
    """What the servers' lives have told. Under `lock`."""

    lives: int = 0
    turns: int = 0
    broken: list[str] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, what: str) -> None:
        with self.lock:
            self.broken.append(what)

    def report(self, node: str, report: dict[str, Any]) -> None:
        """What a life that was drained leaves: nothing."""
        with self.lock:
            self.turns += report["turns"]
        for what, count in report["left"].items():
            if count:
                self.tell(f"{node} was drained and has left {count} {what}")


class Server:
    """One node name with one life after the other."""

    def __init__(self, node: str, peers: list[str], books: Books) -> None:
        self.node = node
        self._command = [sys.executable, "-m", "stress.server", node, *peers]
        self._books = books
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        ready = threading.Event()
        process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._process = process
        self._readers = [
            threading.Thread(target=self._read, args=(process, ready), daemon=True),
            threading.Thread(target=self._read_errors, args=(process,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        with self._books.lock:
            self._books.lives += 1
        if not ready.wait(PATIENCE):
            self._books.tell(f"{self.node} did not start")

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.startswith(READY):
                    ready.set()
                elif line.startswith(BROKEN):
                    self._books.tell(f"{self.node}: {line.removeprefix(BROKEN).strip()}")
                elif line.startswith(REPORT):
                    self._books.report(self.node, json.loads(line.removeprefix(REPORT)))

    def _read_errors(self, process: subprocess.Popen[str]) -> None:
        """The first and the last line of a traceback tell enough."""
        assert process.stderr is not None
        with process.stderr as stream:
            lines = [line.rstrip() for line in stream]
        for at, line in enumerate(lines):
            if line.startswith("Traceback"):
                end = next((later for later in lines[at + 1 :] if later and not later.startswith(" ")), "")
                if not any(name in end for name in LOGGED):
                    self._books.tell(f"{self.node}: a traceback ending in {end}")

    def cpu_milliseconds(self) -> float:
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._wait()

    def freeze(self, moment: threading.Event, seconds: float) -> None:
        """Stop it for a while; nobody may be taken for dead for that."""
        self._signal(signal.SIGSTOP)
        moment.wait(seconds)
        self._signal(signal.SIGCONT)

    def drain(self) -> None:
        self._signal(signal.SIGTERM)
        code = self._wait()
        if code != 0:
            self._books.tell(f"{self.node} was drained and ended with code {code}")

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        else:
            self._books.tell(f"{self.node} has ended by itself, with code {self._process.returncode}")

    def _wait(self) -> int | None:
        assert self._process is not None
        try:
            code: int | None = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = None
        for reader in self._readers:
            reader.join(PATIENCE)
        return code


class Trouble:
    """Trouble for one server after the other; leaves all of them running.

    Made in the main thread: a server ends with the thread that has started it.
    """

    def __init__(self, servers: list[Server], books: Books, seed: int, gentle: bool) -> None:
        self._servers = servers
        self._books = books
        self._random = random.Random(f"{seed}/trouble")
        self._weights = (0 if gentle else 4, 4, 2)

    def make(self, seconds: float) -> None:
        dice, pause = self._random, threading.Event()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            pause.wait(min(left, dice.uniform(0.1, 1.5)))
            server = dice.choice(self._servers)
            what = dice.choices(("killed", "drained", "frozen"), self._weights)[0]
            self._books.troubles[what] += 1
            if what == "frozen":
                server.freeze(pause, dice.uniform(0.05, 2.0))
                continue
            if what == "killed":
                server.kill()
            else:
                server.drain()
            pause.wait(dice.uniform(0.0, 1.0))
            server.start()
