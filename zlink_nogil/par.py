"""Fork-join on the scheduler's threads (design 2.4): `par.map(files, parse)`. Plain functions; the caller helps."""

from zlink_nogil.scheduler.parallel import Scope, for_each, map, scope

__all__ = ["Scope", "for_each", "map", "scope"]
