"""`Roles`: what the workers of a pool may lead while they have nothing to run (decision 7).

Ownership
    `_roles`       replaced under `_lock`, never changed; read without it
    `Worker.role`  the thread at that place
"""

from __future__ import annotations

from zlink_nogil import _sync
from zlink_nogil.scheduler.role import LED, Role
from zlink_nogil.scheduler.worker import Worker

__all__ = ["Roles"]


class Roles:
    __slots__ = ("_lock", "_roles")

    def __init__(self) -> None:
        self._lock = _sync.Lock()
        self._roles: tuple[Role, ...] = ()

    def add(self, role: Role) -> None:
        """From now on a worker that sleeps leads `role`, if nobody else does. `remove` it before it is over."""
        with self._lock:
            self._roles = (*self._roles, role)

    def remove(self, role: Role) -> None:
        with self._lock:
            self._roles = tuple(other for other in self._roles if other is not role)

    def take(self, worker: Worker) -> Role | None:
        """By the thread at `worker`: the role it leads, now or already; None when there is none for it."""
        if worker.role is not None:
            if worker.role.state == LED:
                return worker.role
            self.leave(worker)
        if self._roles and not worker.guest:
            worker.role = next((role for role in self._roles if role.take(worker.parker)), None)
        return worker.role

    @staticmethod
    def leave(worker: Worker) -> bool:
        """By the thread at `worker`; did it lead?"""
        role, worker.role = worker.role, None
        if role is not None:
            role.leave()
        return role is not None
