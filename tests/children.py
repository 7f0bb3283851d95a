"""Processes that a test starts and watches: what they write, what they use, and when they end."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

PATIENCE = 30.0
"""Seconds until a test gives up on a process; starting one takes a second on a busy machine."""
COMMAND = str(Path(sys.executable).parent / "zlink-nogil")


def environment(**changes: str | None) -> dict[str, str]:
    """This process's, without `PYTHON_GIL`; None takes a variable out."""
    merged = {**os.environ, "PYTHON_GIL": None, "PYTHONUNBUFFERED": "1", **changes}
    return {name: value for name, value in merged.items() if value is not None}


def run(*command: str | Path, cwd: Path | None = None, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """Run to the end, in the environment above."""
    return subprocess.run(
        command, cwd=cwd, env=environment(**changes), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


class Child:
    """A process whose output (both streams) can be waited for line by line. Killed when the `with` block ends."""

    def __init__(self, *command: str | Path, cwd: Path | None = None, **changes: str | None) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []
        self._incoming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._incoming.put(line)
        self._incoming.put(None)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def line_with(self, text: str) -> str:
        """Wait for a line that contains `text`."""
        while text not in (line := self._next()):
            pass
        return line

    def _next(self) -> str:
        try:
            line = self._incoming.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"nothing more was written within {PATIENCE} s:\n{self.output}") from None
        assert line is not None, f"the process ended:\n{self.output}"
        self.lines.append(line)
        return line

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, timeout: float = PATIENCE) -> int:
        """Wait for the process, and for the last of its output; returns the exit code (-N: signal N)."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.output}") from None
        while (line := self._incoming.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
        return code


class Fifo:
    """A named pipe: a process of the test writes a line to it, or waits for one. Made by the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # both ends: opening never blocks, for nobody
        self._rest = b""

    def line(self) -> str:
        """The next line somebody writes."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while b"\n" not in self._rest:
            assert poll.poll(PATIENCE * 1000), f"nobody wrote to {self.path.name}"
            self._rest += os.read(self._fd, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._fd)


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started and that have not ended."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(stat)
        if fields and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def cpu_milliseconds(pid: int) -> float:
    """CPU time of all the process's threads so far."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str]:
    """The fields from the state on; none for a process that is gone."""
    try:
        return path.read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def wait_gone(*pids: int, timeout: float = PATIENCE) -> None:
    """Wait until none of these processes runs; they need not be our children."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(timeout * 1000), f"process {pid} still runs after {timeout} s"
        finally:
            os.close(descriptor)


def python(code: str, *options: str, cwd: Path | None = None, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Run `code` in this interpreter with these options, without `PYTHON_GIL`."""
    return run(sys.executable, *options, "-c", code, cwd=cwd, **changes)
