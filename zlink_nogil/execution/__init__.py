"""Serial execution: the work of one owner, in order, one turn at a time (seed 000, design 3.3-3.6)."""

from zlink_nogil.execution.actor import ActorSerialExecutor
from zlink_nogil.execution.call import Call
from zlink_nogil.execution.mode import Entry, Instance, PerActor, SpotMode, SpotWide
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.queue import SerialExecutionQueue
from zlink_nogil.execution.session import SessionSerialExecutor
from zlink_nogil.execution.snapshot import QueueStateSnapshot
from zlink_nogil.execution.spot import SpotSerialExecutor
from zlink_nogil.execution.turn import Turn

__all__ = [
    "ActorSerialExecutor",
    "Call",
    "Entry",
    "ExecutionLanePolicy",
    "Instance",
    "PerActor",
    "QueueStateSnapshot",
    "SerialExecutionQueue",
    "SessionSerialExecutor",
    "SpotMode",
    "SpotSerialExecutor",
    "SpotWide",
    "Turn",
]
