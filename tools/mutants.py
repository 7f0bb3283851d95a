"""`tools/run mutants`: does the microscope see? Applies wrong edits to a copy of the product and runs the scenarios on it.

Guarantees
    The checkout is only read. A mutant counts as found when a named scenario reports a failing schedule; one that runs
    out of its budget, or whose run breaks in another way, does not. An old text that is not in its module exactly once is
    an error: the mutant has to be written again.

Assumes
    The scenarios pass on the unmutated product (the everyday suite says so).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import mutants_generated
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "tests" / "schedules" / "mutants"
COPIED: Final = ("pyproject.toml", "zlink_nogil", "tests/conftest.py", "tests/schedules")

console = Console(width=max(120, shutil.get_terminal_size().columns))


@dataclass(frozen=True, slots=True)
class Mutant:
    """`scenarios` are node ids below tests/schedules; `why` says what is wrong with the new text."""

    name: str
    file: str
    old: str
    new: str
    why: str
    scenarios: tuple[str, ...]

    def places(self) -> int:
        """How often the old text occurs in the checkout."""
        return (ROOT / self.file).read_text().count(self.old)

    def apply(self, tree: Path) -> None:
        module = tree / self.file
        module.write_text(module.read_text().replace(self.old, self.new, 1))


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    found: bool
    how: str
    seconds: float


def load(data: Path) -> Iterator[Mutant]:
    """The hand-written ones: a file per module of the product."""
    for path in sorted(data.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        for entry in content.get("mutant", ()):
            scenarios = tuple(entry.get("scenarios", content["scenarios"]))
            yield Mutant(entry["name"], content["file"], entry["old"], entry["new"], entry["why"], scenarios)


def generate(data: Path) -> Iterator[Mutant]:
    """Those made by rule, for every module that has hand-written ones; the scenarios are the file's."""
    for path in sorted(data.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        if "file" not in content:
            continue
        source = (ROOT / content["file"]).read_text()
        for edit in mutants_generated.edits(source):
            name = f"{Path(content['file']).stem}:{edit.where} {edit.rule}"
            yield Mutant(name, content["file"], source, edit.apply(source), edit.text, tuple(content["scenarios"]))


def snapshot(tree: Path) -> None:
    """Once per command: others may be editing the checkout."""
    for name in COPIED:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def try_out(mutant: Mutant, original: Path, budget: float) -> Verdict:
    """Run the mutant's scenarios on a copy of `original` until the first fails, at most `budget` seconds."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(original, tree)
        mutant.apply(tree)
        nodes = [f"tests/schedules/{node}" for node in mutant.scenarios]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", f"{budget:.0f}"]
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_GIL": "0"}
        began = time.monotonic()
        try:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *nodes],
                cwd=tree,
                env=environment,
                timeout=budget,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutant, False, f"not within {budget:.0f} s", time.monotonic() - began)
        found, how = judge(run.returncode, run.stdout + run.stderr)
        return Verdict(mutant, found, how, time.monotonic() - began)


def judge(code: int, output: str) -> tuple[bool, str]:
    """Was a failing schedule reported? And which one, or what happened instead."""
    if code == 0:
        return False, "survives"
    failure = re.search(r"ScheduleFailure: ((\S+): .*)", output)
    if code == 1 and failure:
        return True, failure[1]
    lines = [line for line in output.splitlines() if line.strip()]
    return False, f"pytest ended with {code}: {lines[-1] if lines else 'no output'}"


def run_all(mutants: list[Mutant], budget: float, jobs: int) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(jobs) as executor:
        original = Path(directory)
        snapshot(original)
        verdicts = []
        for verdict in executor.map(lambda mutant: try_out(mutant, original, budget), mutants):
            sign = "[green]found[/]" if verdict.found else "[red]not found[/]"
            console.print(f"{sign} {verdict.mutant.name} ({verdict.seconds:.1f} s)", end="  ", highlight=False)
            console.print(verdict.how[:100], style="dim", markup=False, highlight=False)
            verdicts.append(verdict)
    return verdicts


def report(verdicts: list[Verdict], reasons: dict[str, str]) -> bool:
    """Print the result; True when every mutant was found, or survives for a known reason."""
    survivors = [verdict for verdict in verdicts if not verdict.found]
    open_ = [verdict for verdict in survivors if verdict.mutant.name not in reasons]
    table = Table("mutant", "module", "what happened", "the edit, or why it makes no difference", title="not found")
    for verdict in survivors:
        mutant = verdict.mutant
        table.add_row(mutant.name, mutant.file, verdict.how, reasons.get(mutant.name, mutant.why))
    if survivors:
        console.print(table)
    equivalent = len(survivors) - len(open_)
    known = f", {equivalent} of no effect for a known reason" if equivalent else ""
    console.print(f"mutants: {len(verdicts) - len(survivors)} of {len(verdicts)} found{known}", highlight=False)
    return not open_


def known_reasons(data: Path) -> dict[str, str]:
    """Generated mutants that make no difference, with the reason each."""
    path = data / "equivalent" / "generated.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def stale(mutants: Iterable[Mutant]) -> list[str]:
    return [f"{m.name}: its old text occurs {m.places()} times in {m.file}" for m in mutants if m.places() != 1]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", multiple=True, metavar="NAME", help="only mutants whose name contains NAME")
@click.option("--generated", is_flag=True, help="mutants made by rule instead of the hand-written ones")
@click.option("--jobs", default=2, show_default=True, help="how many to try at a time")
@click.option("--budget", default=90.0, show_default=True, help="seconds for one mutant")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), default=DATA, help="the data files")
def main(only: tuple[str, ...], generated: bool, jobs: int, budget: float, data: Path) -> None:
    """Apply each mutant to a copy of the product, run its scenarios, and list those that nothing noticed."""
    made = generate(data) if generated else load(data)
    mutants = [mutant for mutant in made if not only or any(part in mutant.name for part in only)]
    if not mutants:
        raise click.UsageError("no such mutant")
    if problems := stale(mutants):
        raise click.ClickException("\n".join(problems))
    verdicts = run_all(mutants, budget, jobs)
    if not report(verdicts, known_reasons(data) if generated else {}):
        sys.exit(1)


if __name__ == "__main__":
    main()
