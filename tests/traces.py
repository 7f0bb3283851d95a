"""`tools/trace_report.py` as a module, for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parent.parent / "tools" / "trace_report.py"

_spec = importlib.util.spec_from_file_location("trace_report", TOOL)
assert _spec is not None
assert _spec.loader is not None
report = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(report)
