"""`Mailbox`: a driver of the stand-by, for scenarios."""

from __future__ import annotations

from collections.abc import Collection

from zlink_nogil import _sync
from zlink_nogil.scheduler import StandBy

from .harness import Scenario

__all__ = ["Mailbox", "rest"]


def rest(s: Scenario, seconds: float) -> None:
    """Nothing happens for a while: a thread that spins, which the virtual time lets sleep for moments, would be seen."""
    before = s.world.steps
    s.sleep(seconds)
    s.expect(s.world.steps - before < 200, "nobody spins")


class Mailbox:
    """A driver with a mailbox; `remove` must be the end of it."""

    def __init__(self, s: Scenario, name: str) -> None:
        self.s = s
        self.name = name
        self.fd = _sync.EventFd()
        self.mail = 0
        self.read = _sync.Event()
        self.inside: set[int] = set()
        self.removed = False
        self.rotations = 0
        self.due: float | None = None

    def descriptors(self) -> Collection[int]:
        return (self.fd.fileno(),)

    def rotate(self, _: Collection[int] | None = None, /) -> float | None:
        with self.s.alone(self.inside, "one thread leads"):
            self.s.expect(not self.removed, "nobody touches a driver that was removed")
            self.rotations += 1
            self.fd.clear()
            letters, self.mail = self.mail, 0
            if letters:
                self.deliver(letters)
                self.read.set()
            return self.due

    def deliver(self, letters: int) -> None:
        """They have been read."""

    def wake(self) -> None:
        self.fd.set()

    def post(self) -> None:
        self.mail += 1
        self.wake()

    def lead(self, standby: StandBy) -> None:
        """A life: added, written to, read, removed."""
        self.removed = False
        standby.add(self)
        self.post()
        self.read.wait()
        standby.remove(self)
        self.removed = True
