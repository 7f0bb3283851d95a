"""The host: registration, start, drain, stop, and the command line (design 4.7, 7)."""

from zlink_nogil.hosting.host import Host, HostInspection

__all__ = ["Host", "HostInspection"]
