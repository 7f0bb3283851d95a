"""Spots and Actors: stateful objects with one handler at a time, as users write them (seed 000, design 3.5-3.6, 7)."""

from zlink_nogil.spots.actor import Actor
from zlink_nogil.spots.actors import Actors
from zlink_nogil.spots.handlers import handler, timer
from zlink_nogil.spots.message import MessageContext
from zlink_nogil.spots.refs import ActorRef, SpotRef
from zlink_nogil.spots.snapshot import ActorInspection, ActorStateSnapshot, SpotInspection, TimerStatistics
from zlink_nogil.spots.spot import EntrySpot, InstanceSpot, Spot
from zlink_nogil.spots.spots import Spots
from zlink_nogil.spots.timers import SpotTimers

__all__ = [
    "Actor",
    "ActorInspection",
    "ActorRef",
    "ActorStateSnapshot",
    "Actors",
    "EntrySpot",
    "InstanceSpot",
    "MessageContext",
    "Spot",
    "SpotInspection",
    "SpotRef",
    "SpotTimers",
    "Spots",
    "TimerStatistics",
    "handler",
    "timer",
]
