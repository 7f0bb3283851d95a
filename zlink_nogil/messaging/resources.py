"""What the meshes of one host share."""

from __future__ import annotations

from dataclasses import dataclass

from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.messaging.codecs import Codecs
from zlink_nogil.messaging.operation import Slots
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.scheduler import StandBy, WorkerPool

__all__ = ["Resources"]


@dataclass(frozen=True, slots=True)
class Resources:
    pool: WorkerPool
    standby: StandBy
    permits: Permits
    slots: Slots
    codecs: Codecs
    policy: ExecutionLanePolicy
    max_record_bytes: int
