"""Lint, format, types and import contracts, as tests: the suite's own summary is then the whole verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent  # of the virtual environment, whether it is activated or not
SCRIPTS = ["tools/run", "tools/setup/build_cpython.sh", ".ci/run"]


def assert_clean(tool: str, *arguments: str) -> None:
    done = subprocess.run([BIN / tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{tool} {' '.join(arguments)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_lint() -> None:
    assert_clean("ruff", "check")


def test_format() -> None:
    assert_clean("ruff", "format", "--check")


@pytest.mark.timeout(600)  # ten seconds without a cache on a free machine
def test_types() -> None:
    assert_clean("mypy", "--strict", "zlink_nogil", "bench")


def test_import_contracts() -> None:
    assert_clean("lint-imports", "--no-cache")


def test_shell_scripts() -> None:
    assert_clean("shellcheck", "--external-sources", "--check-sourced", *SCRIPTS)
