"""A short run of `tools/fuzz.py`: bad frames at every socket of a node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent / "tools" / "fuzz.py"


def test_bad_frames_at_every_socket_break_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "gil=0", str(TOOL), "--frames", "20000", "--seed", "6"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"'(\w+)': (\d+)", done.stdout))
    assert int(counts["malformed"]) > 2_000
    assert int(counts["refused"]) > 0
    assert int(counts["late"]) > 0
    assert counts["pending"] == "0"
    assert "no handler ran for a malformed message" in done.stdout
