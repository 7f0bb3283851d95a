"""A tiny run of the measurements, so that they work when they are needed. No time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from children import run
from click.testing import CliRunner

from bench.__main__ import main
from bench.actors import ROWS, rows
from bench.actors import run as actors_run
from bench.actors.pykka_actors import PykkaActors
from bench.actors.run import PEERS
from bench.measure import Plan, Void, compare
from bench.scheduler import CELLS, spawning
from bench.scheduler.waking import _until

ROOT = Path(__file__).parent.parent
GIL = os.environ.get("PYTHON_GIL")
HAS_GIL = sys._is_gil_enabled()
TINY = ("--runs", "1", "--scale", "0.01")
NAMED = {
    "spawn_and_run": {"ratio_thread_pool", "ratio_asyncio", "ratio_simple_queue"},
    "spawn_and_run_outside": {"ratio_thread_pool", "ratio_asyncio", "ratio_simple_queue"},
    "ping_pong": {"ratio_asyncio", "ratio_simple_queue"},
    "wake": {"ratio_two_locks", "ratio_thread_pool"},
    "fan_out": {"ratio_asyncio"},
    "cpu_scaling": {"scaling", "scaling_thread_pool"},
    "sleeping_memory": {"bytes_each", "spawn_us", "cancel_us", "bytes_each_asyncio"},
}


def bench(*arguments: str | Path, **changes: str | None) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "bench", "scheduler", *arguments, cwd=ROOT, **{"PYTHON_GIL": GIL, **changes})


def bench_actors(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    arguments = ("--runs", "1", "--allow-gil", *arguments)
    return run(sys.executable, "-m", "bench", "actors", *arguments, cwd=ROOT, **{"PYTHON_GIL": GIL})


def test_every_cell_does_its_job_and_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = bench(*TINY, "--allow-gil", "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(file.read_text())
    cells = {cell["name"]: cell for cell in data["cells"]}
    assert set(cells) == set(CELLS) == set(NAMED)
    for name, figures in NAMED.items():
        assert all(cells[name][figure] > 0 for figure in figures), cells[name]
        assert cells[name]["spread"] >= 0
        assert f"RESULT {name} " in done.stdout
    assert data["environment"]["gil"] == HAS_GIL
    assert data["environment"].keys() >= {"commit", "configured", "cflags", "cpus", "gc", "workers", "runs"}


def test_cells_can_be_chosen() -> None:
    done = bench(*TINY, "--allow-gil", "--rows", "wake", "fan_out")
    assert done.returncode == 0, done.stdout + done.stderr
    results = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results == ["wake", "fan_out"]


def test_a_cell_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(main, ["scheduler", "--allow-gil", "--rows", "nothing"])
    assert done.exit_code == 2
    assert "no such cell: nothing" in done.output


def test_refuses_with_the_gil_on() -> None:
    done = bench(*TINY, PYTHON_GIL="1")  # any build takes 1
    assert done.returncode == 1
    assert "the GIL is on" in done.stderr


def test_work_that_was_not_done_has_no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    monkeypatch.setattr(spawning, "work", lambda number: number)
    done = CliRunner().invoke(main, ["scheduler", *TINY, "--allow-gil", "--rows", "spawn_and_run", "--json", str(file)])
    assert done.exit_code == 1
    (cell,) = json.loads(file.read_text())["cells"]
    assert cell.keys() == {"name", "void"}
    assert cell["void"].startswith("thread_pool: results")


def test_rows_take_turns_and_warm_up() -> None:
    ran: list[str] = []

    def row(name: str, seconds: float) -> float:
        ran.append(name)
        return seconds

    cell = compare("x", 1, {"zlink": lambda: row("a", 2.0), "other": lambda: row("b", 3.0)}, runs=2)
    assert ran == ["a", "b"] * 3
    assert cell.figures == {"ratio_other": 1.5}
    assert not cell.noisy


def test_a_task_that_never_comes_is_void_not_a_hang() -> None:
    with pytest.raises(Void, match="never"):
        _until("never", lambda: False, patience=0.01)


def test_a_plan_scales_but_not_to_nothing() -> None:
    plan = Plan(runs=1, workers=1, scale=0.001, sleepers=100)
    assert (plan.count(20_000), plan.count(10)) == (20, 2)


def test_leading_is_measured_next_to_the_stand_by(tmp_path: Path) -> None:
    cells = messages("leading", tmp_path, "mesh/request-window/4096")
    assert cells["mesh/request-window/4096"]["ratio_standby"] > 0
    assert cells["mesh/request-window/4096"]["in_flight_mean"] > 10


def test_messages_of_every_api_all_arrive_whoever_carries_them(tmp_path: Path) -> None:
    chosen = ("client-server/request-window/4096", "spot/send-saturation/1024")
    cells = messages("messaging", tmp_path, *chosen)
    for cell in cells.values():
        assert all(cell[f"ratio_{row}"] > 0 for row in ("pyzmq", "direct", "floor")), cell
        assert (cell["api"], cell["pattern"], cell["payload"]) == tuple(cell["name"].split("/"))
    assert cells["client-server/request-window/4096"]["in_flight_mean"] > 10
    assert "drain_ratio" in cells["spot/send-saturation/1024"]


def messages(subject: str, folder: Path, *chosen: str) -> dict[str, Any]:
    file = folder / "bench.json"
    arguments = (subject, "--runs", "1", "--scale", "0.05", "--allow-gil", "--json", str(file), "--rows", *chosen)
    done = run(sys.executable, "-m", "bench", *arguments, cwd=ROOT, PYTHON_GIL=GIL)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = {cell["name"]: cell for cell in json.loads(file.read_text())["cells"]}
    assert cells.keys() == set(chosen)
    return cells


def test_a_stalled_peer_is_measured_next_to_none(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    arguments = ("stalled-peer", "--runs", "1", "--scale", "0.05", "--allow-gil", "--json", str(file))
    done = run(sys.executable, "-m", "bench", *arguments, cwd=ROOT, PYTHON_GIL=GIL)
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = json.loads(file.read_text())["cells"]
    assert cell["rows"].keys() == {"undisturbed", "stalled"}
    assert cell["ratio_stalled"] == pytest.approx(cell["p99_us_stalled"] / cell["p99_us_undisturbed"])


def test_actors_get_everything_whoever_runs_them(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    rows = ("tell_1", "tell_100", "ask_100", "ask_serial_1", "idle_1000")
    done = bench_actors("--scale", "0.005", "--json", file, "--rows", *rows)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = {(cell["row"], cell["peer"]): cell for cell in json.loads(file.read_text())["cells"]}
    assert cells.keys() == {(row, peer) for row in rows for peer in PEERS}
    assert set(rows) < set(ROWS)
    for (row, peer), cell in cells.items():
        assert all(cell[figure] > 0 for figure in ("per_second", "cpu_us", "ratio_pykka", "threads")), cell
        assert cell["spread"] == 0
        assert (cell["ratio_pykka"] == 1) == (peer == "pykka")
        assert ("bytes_per_actor" in cell) == (row == "idle_1000")
        assert f"RESULT {row}/{peer} " in done.stdout
    assert cells["idle_1000", "pykka"]["threads"] >= 1_000 > 10 > cells["idle_1000", "zlink"]["threads"]


def test_an_actor_that_loses_a_message_makes_its_peer_void(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: PykkaActors, first: int, rounds: int, window: int) -> int:  # noqa: ARG001
        return 0

    monkeypatch.setattr(PykkaActors, "ask", lose)
    monkeypatch.setattr(actors_run, "PATIENCE", 0.01)
    with pytest.raises(TimeoutError, match="2 actors did not get everything"):
        actors_run.measured("ask", "pykka", actors=2, rounds=1, workers=1)


def test_a_void_peer_leaves_the_others_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(row: rows.Row, peer: str, rounds: int, workers: int) -> actors_run.Figures:  # noqa: ARG001
        if peer == "pykka":
            raise Void("lost")
        return actors_run.Figures(2.0, 1.0, 3, 4.0)

    monkeypatch.setattr(rows, "_run", one)
    cells = {cell.labels["peer"]: cell for cell in ROWS["tell_1"](Plan(runs=2, workers=1, scale=1, sleepers=0))}
    assert cells["pykka"].void == "lost"
    assert cells["zlink"].void is None
    assert cells["zlink"].figures == {"per_second": 100_000, "cpu_us": 5.0, "threads": 3}
