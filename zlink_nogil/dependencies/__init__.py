"""Dependencies by type: a container, its scopes, and plans that are made once (design 4.7; seed 004 section 4.3)."""

from zlink_nogil.dependencies.container import Container
from zlink_nogil.dependencies.plan import Plan
from zlink_nogil.dependencies.scope import Scope

__all__ = ["Container", "Plan", "Scope"]
