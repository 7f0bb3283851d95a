"""`python -m bench.messaging.node JOB`: one process of a measurement; JOB is a `Job` as JSON.

A server prints its endpoint, is told on its input how many sends of the active phase to expect, and prints what it has seen.
A client prints what it did. Both print one line of JSON, last.
"""

from __future__ import annotations

import functools
import gc
import json
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic, process_time, sleep
from typing import Any, Final

from bench.messaging import direct_row, patterns, pyzmq_row, zlink_row
from bench.messaging.counting import Arrivals
from bench.messaging.job import Job

PATIENCE: Final = 60.0
GC_THRESHOLD: Final = 100_000


def _line(job: Job) -> Any:
    if job.row == "pyzmq":
        return pyzmq_row.connect(job.api, job.server)
    if job.row == "direct":
        return direct_row.connect_direct(job.api, job.server)
    if job.row == "floor":
        return direct_row.connect_floor(job.api, job.server)
    return zlink_row.Zlink(job.api, job.server, job.workers)


def _ask(job: Job) -> dict[str, Any]:
    line = _line(job)
    cpu = [0.0]

    def ready() -> None:
        gc.collect()
        gc.freeze()
        cpu[0] = process_time()

    outcome = patterns.run(job.pattern, line, job.size, job.seconds, ready)
    ended = monotonic()
    seen = {**asdict(outcome), "cpu": process_time() - cpu[0], "ended": ended, "peak": _peak()}
    line.close()
    return seen


def _serving(job: Job, arrivals: Arrivals, ready: Callable[[str], None], stop: threading.Event) -> Callable[[], None]:
    if job.row == "pyzmq":
        return functools.partial(pyzmq_row.serve, arrivals, ready, stop)
    if job.row == "direct":
        return functools.partial(direct_row.serve_direct, job.api, arrivals, ready, stop)
    if job.row == "floor":
        return functools.partial(direct_row.serve_floor, arrivals, ready, stop)
    return functools.partial(zlink_row.serve, job.api, arrivals, ready, stop, job.workers)


def _serve(job: Job) -> dict[str, Any]:
    arrivals, stop = Arrivals(asks=job.pattern != "send-saturation"), threading.Event()

    def ready(endpoint: str) -> None:
        print(endpoint, flush=True)

    thread = threading.Thread(target=_serving(job, arrivals, ready, stop))
    thread.start()
    expected = int(sys.stdin.readline() or 0)
    deadline = monotonic() + PATIENCE
    while arrivals.count < expected and monotonic() < deadline:
        sleep(0.01)
    stop.set()
    thread.join()
    return {"count": arrivals.count, "last": arrivals.last, "cpu": process_time(), "peak": _peak()}


def _peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(job: Job) -> None:
    gc.set_threshold(GC_THRESHOLD)
    if job.row == "standby":
        zlink_row.lead_nothing()
    print(json.dumps(_ask(job) if job.server else _serve(job)), flush=True)


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
