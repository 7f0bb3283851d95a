"""`tools/mutants.py`, and its data: every mutant still fits the product and names scenarios that exist."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FILES = sorted((HERE / "mutants").glob("*.toml"))


def mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "mutants.py"), *arguments],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def write(data: Path, scenario: str, old: str, new: str) -> Path:
    (data / "one.toml").write_text(
        f"file = 'zlink_nogil/scheduler/ready.py'\nscenarios = ['{scenario}']\n"
        f"[[mutant]]\nname = 'one'\nwhy = 'a test'\nold = '''{old}'''\nnew = '''{new}'''\n"
    )
    return data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_data(path: Path) -> None:
    """A refactoring of the product is noticed at once: write the mutant again."""
    content = tomllib.loads(path.read_text())
    source = (ROOT / content["file"]).read_text()
    assert len(content["mutant"]) >= 2
    for entry in content["mutant"]:
        assert source.count(entry["old"]) == 1, entry["name"]
        compile(source.replace(entry["old"], entry["new"]), content["file"], "exec")
        assert all(map(exists, scenarios(content, entry))), entry["name"]


def scenarios(content: dict[str, Any], entry: dict[str, Any]) -> list[str]:
    return [*content["scenarios"], *entry.get("scenarios", ())]


def exists(node: str) -> bool:
    file, _, test = node.partition("::")
    return f"def {test}(" in (HERE / file).read_text() if test else (HERE / file).exists()


def test_names_are_unique() -> None:
    names = [entry["name"] for path in FILES for entry in tomllib.loads(path.read_text())["mutant"]]
    assert len(names) == len(set(names))


def test_a_mutant_is_found(tmp_path: Path) -> None:
    wake = "            more = self._idle and not self._searching and self._anything()\n"
    scenario = "test_ready.py::test_every_sleeper_can_be_woken"
    run = mutants("--data", str(write(tmp_path, scenario, wake, "            more = False\n")))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "mutants: 1 of 1 found" in run.stdout


def test_a_survivor_is_listed(tmp_path: Path) -> None:
    scenario = "test_harness.py::test_lost_update"
    run = mutants("--data", str(write(tmp_path, scenario, "Oldest first, for", "Youngest first, for")))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "survives" in run.stdout
    assert "mutants: 0 of 1 found" in run.stdout


def test_a_stale_old_text_is_reported(tmp_path: Path) -> None:
    run = mutants("--data", str(write(tmp_path, "test_ready.py", "no such text", "")))
    assert run.returncode == 1
    assert "one: its old text occurs 0 times" in run.stderr
