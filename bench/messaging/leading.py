"""Workers and callers that lead (decision 7), next to the same runtime with everything read by the stand-by."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from bench.measure import OURS, Cell, Plan, Void, compare

__all__ = ["CELLS"]

FULL: Final = {"serial": 5_000, "window": 20_000}
PAYLOADS: Final = (1024, 4096)
PATIENCE: Final = 120.0


def _cell(pattern: str, payload: int, plan: Plan) -> Cell:
    count = plan.count(FULL[pattern])
    rows = {who: functools.partial(_run, pattern, payload, count, who, plan.workers) for who in (OURS, "standby")}
    return compare(f"{pattern}_{payload}", count, rows, plan.runs)


def _run(pattern: str, payload: int, count: int, who: str, workers: int) -> float:
    """Seconds of the active part; both processes are new ones."""
    node = [sys.executable, "-m", "bench.messaging.node", who, str(workers)]
    with subprocess.Popen([*node, "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        client = [*node, "client", endpoint, pattern, str(payload), str(count)]
        try:
            done = subprocess.run(client, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
        finally:
            server.stdin.close()
        if done.returncode:
            raise Void(f"{who}: the client failed")
        return float(done.stdout)


CELLS: Final[Mapping[str, Callable[[Plan], Cell]]] = {
    f"{pattern}_{payload}": functools.partial(_cell, pattern, payload) for pattern in FULL for payload in PAYLOADS
}
