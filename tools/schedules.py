"""`tools/run schedules --minutes M`: every scenario, with seeds it has not seen, until the time is over.

Guarantees
    Ends within a few minutes of the time given, whatever the scenarios do. A failure stands on the console with its
    seed, and the exit code is 1.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

ROOT: Final = Path(__file__).resolve().parent.parent
LONGEST_FILE: Final = 1800.0
"""Seconds after which a round over one file is given up, and counts as failed."""

console = Console(highlight=False)


def files() -> list[Path]:
    """The scenarios, without the tests of the harness and of the tools."""
    tests = sorted((ROOT / "tests" / "schedules").glob("test_*.py"))
    return [path for path in tests if path.stem not in ("test_harness", "test_mutants")]


def explore(file: Path, first: int, count: int, jobs: int) -> tuple[bool, int]:
    """Seeds `first` to `first + count` of every scenario of `file`; did all pass, and how many tests were run."""
    options = ["-q", "-p", "no:cacheprovider", "-n", str(jobs), "--timeout", f"{LONGEST_FILE:.0f}"]
    command = [sys.executable, "-m", "pytest", *options, "--schedules", str(count), str(file)]
    try:
        run = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHON_GIL": "0", "ZLINK_FIRST_SEED": str(first)},
            timeout=LONGEST_FILE,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        console.print(f"[red]{file.name}: not within {LONGEST_FILE:.0f} s[/]")
        return False, 0
    if run.returncode:
        console.print(run.stdout + run.stderr, markup=False)
    passed = re.search(r"(\d+) passed", run.stdout)
    return run.returncode == 0, int(passed[1]) if passed else 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=10.0, show_default=True, help="how long; the round that has begun is finished")
@click.option("--schedules", "count", default=1000, show_default=True, help="seeds of every scenario in one round")
@click.option("--first-seed", type=int, help="begin with this one (default: somewhere at random)")
@click.option("--jobs", default=2, show_default=True, help="scenarios at a time")
@click.option("--only", default="", metavar="NAME", help="only the files whose name contains NAME")
def main(minutes: float, count: int, first_seed: int | None, jobs: int, only: str) -> None:
    """Run every scenario with fresh seeds for some minutes."""
    chosen = [file for file in files() if only in file.name]
    if not chosen:
        raise click.UsageError("no such file")
    end = time.monotonic() + 60 * minutes
    first = first_seed if first_seed is not None else random.SystemRandom().randrange(10**6, 10**9)
    failures = scenarios = rounds = 0
    while rounds == 0 or time.monotonic() < end:
        for file in chosen:
            if rounds and time.monotonic() >= end:
                break
            fine, passed = explore(file, first, count, jobs)
            failures += not fine
            scenarios += passed
            console.print(f"{file.name}: seeds {first} to {first + count - 1}: {'passed' if fine else '[red]FAILED[/]'}")
        rounds += 1
        first += count
    console.print(f"schedules: {count * scenarios} seeds in {scenarios} runs of scenarios, {failures} files failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
