"""Every code block of the README is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [code.strip() for language, code in BLOCKS if language == "bash"]

SMALLER = {  # what each command is given here, so that the suite does not run itself or the whole library
    "tools/run demo": ["--path", str(ROOT / "zlink_nogil"), "--nodes", "1"],
    "tools/run test": ["--collect-only", "-q", "-n", "0", "tests/test_readme.py"],
}


def test_every_block_is_known() -> None:
    assert {language for language, _ in BLOCKS} <= {"python", "bash", "text"}
    assert len(PYTHON) >= 3
    assert set(COMMANDS) == SMALLER.keys()


@pytest.mark.parametrize("code", PYTHON, ids=[f"block{number}" for number in range(len(PYTHON))])
def test_python_block_runs(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for expected in re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE):
        assert expected in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: str) -> None:
    done = subprocess.run(
        [*command.split(), *SMALLER[command]], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
