"""What a subject's cells look like: a table and `RESULT` lines on the terminal, a JSON file."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.measure import Cell, Plan, Samples

__all__ = ["environment", "show", "write"]

ROOT: Final = Path(__file__).resolve().parent.parent


def environment(plan: Plan) -> dict[str, Any]:
    """Where and how it was measured."""
    return {
        "commit": _git("describe", "--always", "--dirty", "--abbrev=12"),
        "python": platform.python_version(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "gil": sys._is_gil_enabled(),
        "configured": sysconfig.get_config_var("CONFIG_ARGS"),
        "cflags": sysconfig.get_config_var("PY_CFLAGS"),
        "cpus": os.process_cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "gc": {"enabled": gc.isenabled(), "thresholds": gc.get_threshold(), "frozen": gc.get_freeze_count() > 0},
        "workers": plan.workers,
        "runs": plan.runs,
        "scale": plan.scale,
    }


def _git(*arguments: str) -> str | None:
    """None where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def show(title: str, where: dict[str, Any], cells: Sequence[Cell], console: Console) -> None:
    table = Table(title=title)
    for column in ("cell", "row", "each, µs", "spread", "figure", "value"):
        table.add_column(column, justify="left" if column in ("cell", "row", "figure") else "right")
    for cell in cells:
        _add(table, cell)
    console.print(table)
    for name, value in where.items():
        console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
    for cell in cells:
        # Not through rich: a line is a line, however narrow the terminal is.
        print(_result_line(cell), flush=True)


def _add(table: Table, cell: Cell) -> None:
    rows = [(name, _each(cell, taken), f"{taken.spread:.0%}") for name, taken in cell.rows.items()]
    figures = [(name, f"{value:,.2f}") for name, value in cell.figures.items()]
    if cell.void is not None:
        figures = [("void", cell.void)]
    elif cell.noisy:
        figures.append(("noisy: spread", f"{cell.spread:.0%}"))
    for line in range(max(len(rows), len(figures))):
        row = rows[line] if line < len(rows) else ("", "", "")
        figure = figures[line] if line < len(figures) else ("", "")
        table.add_row("" if line else f"{cell.name} x {cell.items:,}", *row, *figure)
    table.add_section()


def _each(cell: Cell, taken: Samples) -> str:
    return f"{taken.median / cell.items * 1e6:,.2f}"


def _result_line(cell: Cell) -> str:
    if cell.void is not None:
        return f"RESULT {cell.name} void={json.dumps(cell.void)}"
    figures = {**cell.figures, "spread": cell.spread}
    noisy = " noisy=1" if cell.noisy else ""
    return f"RESULT {cell.name} " + " ".join(f"{name}={value:.4g}" for name, value in figures.items()) + noisy


def write(path: Path, where: dict[str, Any], cells: Sequence[Cell]) -> None:
    data = {"environment": where, "cells": [_as_json(cell) for cell in cells]}
    path.write_text(json.dumps(data, indent=2) + "\n")


def _as_json(cell: Cell) -> dict[str, Any]:
    if cell.void is not None:
        return {"name": cell.name, **cell.labels, "void": cell.void}
    rows = {name: {"seconds": list(taken.taken), "spread": taken.spread} for name, taken in cell.rows.items()}
    return {
        "name": cell.name,
        **cell.labels,
        **cell.figures,
        "spread": cell.spread,
        "noisy": cell.noisy,
        "items": cell.items,
        "rows": rows,
    }
