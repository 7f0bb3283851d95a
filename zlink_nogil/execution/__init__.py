"""Serial execution queues: the work of one owner, in order, one turn at a time (seed 000, design 3.3-3.4)."""

from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.queue import SerialExecutionQueue
from zlink_nogil.execution.turn import Turn

__all__ = ["ExecutionLanePolicy", "SerialExecutionQueue", "Turn"]
