"""`demo --scheduler`: the same job with tasks, asyncio and a thread pool, in one process."""

from __future__ import annotations

import json
from pathlib import Path

from children import COMMAND, run
from test_demo import PACKAGES, write_tree


def test_three_ways_with_one_outcome(tmp_path: Path) -> None:
    tree, outcome = write_tree(tmp_path / "tree", PACKAGES), tmp_path / "outcome.json"
    done = run(COMMAND, "demo", "--scheduler", "--path", str(tree), "--workers", "2", "--json", str(outcome))
    assert done.returncode == 0, done.stderr
    assert "all three have the same totals" in done.stdout
    written = json.loads(outcome.read_text())
    assert (written["files"], written["workers"], written["equal"]) == (len(PACKAGES), 2, True)
    assert set(written["seconds"]) == {"tasks", "asyncio", "threads"}
    assert not written["gil_enabled"]


def test_it_has_no_nodes(tmp_path: Path) -> None:
    done = run(COMMAND, "demo", "--scheduler", "--nodes", "2", "--path", str(write_tree(tmp_path, PACKAGES)))
    assert done.returncode == 2
    assert "--nodes" in done.stderr


def test_a_tree_without_sources_is_told(tmp_path: Path) -> None:
    done = run(COMMAND, "demo", "--scheduler", "--path", str(tmp_path))
    assert done.returncode == 2
    assert "no Python sources" in done.stderr
