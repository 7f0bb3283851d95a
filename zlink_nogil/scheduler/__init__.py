"""The scheduler: completions, the worker pool, the stand-by thread that waits for sockets (seed 001, design 2)."""

from zlink_nogil.scheduler.completion import Completion, OnWait
from zlink_nogil.scheduler.driver import Driver
from zlink_nogil.scheduler.pool import WorkerPool, default_pool
from zlink_nogil.scheduler.role import Role
from zlink_nogil.scheduler.standby import StandBy, default_standby
from zlink_nogil.scheduler.statistics import Statistics
from zlink_nogil.scheduler.suspension import Suspension, Wait, Waker
from zlink_nogil.scheduler.worker import Runnable

__all__ = [
    "Completion",
    "Driver",
    "OnWait",
    "Role",
    "Runnable",
    "StandBy",
    "Statistics",
    "Suspension",
    "Wait",
    "Waker",
    "WorkerPool",
    "default_pool",
    "default_standby",
]
