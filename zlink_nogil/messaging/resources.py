"""What the meshes of one host share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zlink_nogil.dependencies import Container
from zlink_nogil.dependencies.filters import Filter
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.messaging.codecs import Codecs
from zlink_nogil.messaging.ingress import Ingress
from zlink_nogil.messaging.operation import Slots
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.tracing import Tracer
from zlink_nogil.messaging.wire import OwnerKind
from zlink_nogil.scheduler import StandBy, WorkerPool
from zlink_nogil.spots.directory import Directory

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
    ingress: Ingress
    container: Container
    filters: Sequence[Filter]
    directories: Mapping[OwnerKind, Directory[Any]]
    tracer: Tracer
