"""What the demo counts in a Python source, and how counts add up."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Counts", "Totals", "as_text", "count", "package_of", "sources"]


@dataclass(slots=True)
class Counts:
    """Of one file; `longest` is the most lines a function has."""

    lines: int = 0
    functions: int = 0
    classes: int = 0
    imports: int = 0
    longest: int = 0


@dataclass(slots=True)
class Totals:
    """Of one package."""

    files: int = 0
    counts: Counts = field(default_factory=Counts)

    def add(self, more: Counts, files: int = 1) -> None:
        mine = self.counts
        self.files += files
        mine.lines += more.lines
        mine.functions += more.functions
        mine.classes += more.classes
        mine.imports += more.imports
        mine.longest = max(mine.longest, more.longest)


def count(source: bytes) -> Counts:
    """Parse and count. Raises what `ast.parse` raises for a source that does not parse (`SyntaxError`, `ValueError`, ...).

    Only statements are walked: parsing is the work, and expressions hold none of what is counted.
    """
    counts = Counts(lines=source.count(b"\n") + (not source.endswith(b"\n") and source != b""))
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counts.functions += 1
            counts.longest = max(counts.longest, (node.end_lineno or node.lineno) - node.lineno + 1)
        elif isinstance(node, ast.ClassDef):
            counts.classes += 1
        elif isinstance(node, ast.Import | ast.ImportFrom):
            counts.imports += 1
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, block, None)
            if isinstance(inner, list):
                waiting.extend(inner)
    return counts


def sources(root: Path) -> list[Path]:
    """Every Python file below `root`, in a fixed order, without what `pip` installed and without caches."""
    skipped = {"site-packages", "__pycache__"}
    return sorted(path for path in root.rglob("*.py") if skipped.isdisjoint(path.relative_to(root).parts) and path.is_file())


def package_of(path: Path, root: Path) -> str:
    """The first folder below `root`, or "." for a file in `root` itself."""
    parts = path.relative_to(root).parts
    return as_text(parts[0]) if len(parts) > 1 else "."


def as_text(name: str | Path) -> str:
    """A file name that can be encoded and shown, also one that is not UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")
