"""`tools/run profile TARGET`: a flame graph and the dearest functions of running code (design 6.3).

TARGET is the number of a running process, or a cell of `tools/run bench messaging` such as `mesh/request-window/1024`, whose
two processes are started and measured.

On 3.13t: `perf`, from outside. Python functions show when the process was started with `PYTHON_PERF_JIT_SUPPORT=1`, which a
cell's are; without, only the interpreter's own do. The interpreter writes down what it calls for the first time in pieces of
4 KiB: the last dozen functions of a process that goes on may be unknown. Where there is a GIL: `py-spy`. What was used, and
why, is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from flame import Stacks, flame_graph
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.messaging.job import Job  # noqa: E402 - the checkout is on the path only now
from bench.messaging.rows import CELLS, command  # noqa: E402

JIT: Final = "PYTHON_PERF_JIT_SUPPORT"
PER_SECOND: Final = 299
"""No divisor of anything periodic."""
STACK_BYTES: Final = 8192
"""Of each sample's stack. More is worse: with twice as much whole threads lose their Python frames."""
WARM_UP: Final = 2.5
"""Seconds a cell runs before it is looked at: start-up, imports, connections."""
PYTHON: Final = "py::"

console = Console(width=max(100, shutil.get_terminal_size().columns))


class Unusable(click.ClickException):
    """No profiler can do it."""


# -- whom to look at ----------------------------------------------------------------------------------------------------


@contextmanager
def processes(target: str, seconds: float) -> Iterator[list[int]]:
    """The numbers of the target's processes, which run meanwhile."""
    if target.isdigit():
        if not Path("/proc", target).exists():
            raise click.BadParameter(f"there is no process {target}", param_hint="TARGET")
        yield [int(target)]
        return
    if target not in CELLS:
        raise click.BadParameter(f"a process number, or one of: {', '.join(CELLS)}", param_hint="TARGET")
    api, pattern, size = target.split("/")
    job = Job("zlink", api, pattern, int(size), seconds + WARM_UP + 2, 2)
    environment = os.environ | {JIT: "1"}
    with start(job, environment) as server:
        assert server.stdout is not None
        with start(replace(job, server=server.stdout.readline().strip()), environment) as client:
            time.sleep(WARM_UP)
            yield [server.pid, client.pid]
            told, _ = client.communicate(timeout=60)
        sent = json.loads(told)["count"] if pattern == "send-saturation" else 0
        server.communicate(f"{sent}\n", timeout=60)


def start(job: Job, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(job), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


# -- how ----------------------------------------------------------------------------------------------------------------


def has_gil(pid: int) -> bool:
    """Told by the executable, or the library with the interpreter."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return not re.search(r"python3\.\d+t(\s|$|\.so)", maps, re.MULTILINE)


def choose(pids: Sequence[int]) -> tuple[str, str]:
    """(profiler, why); `Unusable` where there is none."""
    if any(has_gil(pid) for pid in pids):
        if len(pids) > 1:
            raise Unusable("the cells are for python3.13t")
        if shutil.which("py-spy") is None:
            raise Unusable("py-spy is needed for a Python with a GIL: pip install py-spy")
        return "py-spy", "the process has a GIL"
    if shutil.which("perf") is None:
        raise Unusable(
            "perf is needed: py-spy finds no interpreter in a free-threaded Python (Debian: apt install linux-perf)"
        )
    return "perf", "py-spy finds no interpreter in a free-threaded Python"


def jitted(pid: int) -> bool:
    return f"{JIT}=1".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unusable(f"{words[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def record_by_perf(pids: Sequence[int], seconds: float, directory: Path) -> None:
    for pid in pids:
        if not jitted(pid):
            console.print(f"process {pid} was started without {JIT}=1: its Python functions cannot be seen")
    event = ("-e", "cpu-clock", "-F", str(PER_SECOND), "-k", "1", "--call-graph", f"dwarf,{STACK_BYTES}")
    pids_wanted = ",".join(map(str, pids))
    run("perf", "record", *event, "-p", pids_wanted, "-o", str(directory / "raw"), "--", "sleep", str(seconds))


def read_from_perf(directory: Path) -> Stacks:
    """After the processes of a cell have ended: then all their functions are known."""
    raw, whole, kept = str(directory / "raw"), str(directory / "whole"), ("perf", "--buildid-dir", str(directory / "ids"))
    run(*kept, "inject", "-j", "-i", raw, "-o", whole)
    return fold(run(*kept, "script", "-i", whole, "-F", "comm,pid,tid,ip,sym,dso").splitlines())


def fold(lines: Iterable[str]) -> Stacks:
    """The samples of `perf script`: a head line, the frames from the innermost outwards, an empty line."""
    stacks: Stacks = Counter()
    head, frames = "", list[str]()
    for line in (*lines, ""):
        if not line.strip():
            if head:
                stacks[(head, *readable(frames))] += 1
            head, frames = "", []
        elif line[0].isspace():
            frames.append(line.strip().partition(" ")[2])
        else:
            words = re.fullmatch(r"(.*?)\s+(\d+)/\d+\s*", line)
            head = f"{words[1]} {words[2]}" if words else line.strip()
    return stacks


def readable(frames: Sequence[str]) -> list[str]:
    """Outermost first: the Python functions, and at the end what native code the innermost was in."""
    python = [named(frame) for frame in reversed(frames) if frame.startswith(PYTHON)]
    return [*python, native(frames[0])] if frames and not frames[0].startswith(PYTHON) else python


def named(frame: str) -> str:
    """`py::Class.method:/path/file.py (/tmp/jitted.so)`"""
    function, _, place = frame.removeprefix(PYTHON).partition(":")
    return f"{function} ({'/'.join(Path(place.partition(' (')[0]).parts[-2:])})"


def native(frame: str) -> str:
    if "kernel" in frame or "[unknown]" in frame:
        return "[kernel]" if "kernel" in frame else "[unknown]"
    for library in ("libzmq", "libc", "libpthread", "libstdc++"):
        if library in frame:
            return f"[{library}]"
    return "[interpreter]"


def record_by_py_spy(pids: Sequence[int], seconds: float, directory: Path) -> None:
    duration = ("--duration", str(max(1, round(seconds))), "--rate", str(PER_SECOND))
    output = ("--format", "raw", "--output", str(directory / "raw"))
    run("py-spy", "record", "--pid", str(pids[0]), "--threads", *duration, *output)


def read_from_py_spy(directory: Path) -> Stacks:
    stacks: Stacks = Counter()
    for line in (directory / "raw").read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        stacks[tuple(stack.split(";"))] += int(count)
    return stacks


# -- what came of it ----------------------------------------------------------------------------------------------------


def dearest(stacks: Stacks, most: int) -> list[tuple[str, float, float]]:
    """(function, its own share, the share with what it calls), the largest own share first."""
    own, whole = Counter[str](), Counter[str]()
    for stack, count in stacks.items():
        functions = [frame for frame in stack[1:] if not frame.startswith("[")] or [*stack[1:], stack[0]][:1]
        own[functions[-1]] += count
        whole.update(dict.fromkeys(functions, count))
    total = own.total()
    return [(name, count / total, whole[name] / total) for name, count in own.most_common(most)]


def show(stacks: Stacks, most: int) -> None:
    table = Table("function", "own", "with callees", title=f"{stacks.total()} samples")
    for name, own, whole in dearest(stacks, most):
        table.add_row(escape(name), f"{own:.1%}", f"{whole:.1%}")
    console.print(table)
    unseen = sum(count for stack, count in stacks.items() if all(frame.startswith("[") for frame in stack[1:]))
    console.print(f"{unseen / stacks.total():.0%} of the samples show no Python function")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.1), help="how long to look")
@click.option("--top", default=30, show_default=True, type=click.IntRange(1), help="how many functions to show")
@click.option("--svg", default="profile.svg", show_default=True, type=click.Path(path_type=Path), help="the flame graph")
def main(target: str, **options: Any) -> None:
    """A flame graph and the dearest functions of a process, or of a cell of `bench messaging`."""
    with tempfile.TemporaryDirectory(prefix="zlink-profile-") as kept:
        directory = Path(kept)
        with processes(target, options["seconds"]) as pids:
            profiler, why = choose(pids)
            console.print(f"{profiler}: {why}")
            record = record_by_py_spy if profiler == "py-spy" else record_by_perf
            record(pids, options["seconds"], directory)
        stacks = read_from_py_spy(directory) if profiler == "py-spy" else read_from_perf(directory)
    if not stacks:
        raise Unusable("nothing ran meanwhile")
    show(stacks, options["top"])
    options["svg"].write_text(flame_graph(f"{target}, {profiler}", stacks))
    console.print(f"flame graph: {options['svg']}")


if __name__ == "__main__":
    main()
