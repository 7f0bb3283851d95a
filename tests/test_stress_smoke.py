"""A few seconds of the stress run, so that it works when it is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from children import run

ROOT = Path(__file__).parent.parent
GIL = os.environ.get("PYTHON_GIL")


@pytest.mark.timeout(100)
def test_a_short_stress_run_balances() -> None:
    done = run(sys.executable, "-m", "stress", "--minutes", "0.1", "--seed", "1", cwd=ROOT, PYTHON_GIL=GIL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every operation ended once" in done.stdout
