"""Real OS threads outside the scheduler's pool (seed 001 section 6): `thread.spawn(serve_forever).join()`."""

from zlink_nogil.scheduler.os_threads import JoinHandle, spawn

__all__ = ["JoinHandle", "spawn"]
