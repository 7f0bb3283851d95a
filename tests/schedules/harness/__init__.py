"""The microscope: runs a scenario's threads one at a time and chooses who goes next (issue 3).

A scenario imports the product unchanged; only `zlink_nogil._sync` is replaced, and only while it runs.
"""

from .explore import (
    Settings,
    Summary,
    TooManySchedules,
    find_exhaustive,
    find_random,
    replay,
    run_exhaustive,
    run_kept,
    run_lines,
    run_random,
    settings,
)
from .outcome import Failure, Outcome
from .report import Finding, ScheduleFailure
from .scenario import Scenario, ScenarioFunction

__all__ = [
    "Failure",
    "Finding",
    "Outcome",
    "Scenario",
    "ScenarioFunction",
    "ScheduleFailure",
    "Settings",
    "Summary",
    "TooManySchedules",
    "find_exhaustive",
    "find_random",
    "replay",
    "run_exhaustive",
    "run_kept",
    "run_lines",
    "run_random",
    "settings",
]
