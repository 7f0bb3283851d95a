"""`Actor`: a member, as users write it (design 3.5, 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zlink_nogil.scheduler import Completion
from zlink_nogil.spots.owner import Owner
from zlink_nogil.spots.refs import ActorRef, SpotRef, spot_id_of

if TYPE_CHECKING:
    from zlink_nogil.spots.actors import ActorEntry

__all__ = ["Actor"]


class Actor(Owner):
    """Base class. One handler at a time, in the order of its messages, wherever it is a member."""

    actor_id: str
    ref: ActorRef
    _entry: ActorEntry

    @property
    def spot(self) -> SpotRef | None:
        """Where it is a member now."""
        spot = self._entry.spot
        return None if spot is None else spot.ref

    def defer_join(self, spot: SpotRef | str) -> Completion[None]:
        """In a handler: join `spot`, and leave the present one, when this handler has ended normally, before the next
        message. Dropped (the completion is cancelled) if the handler fails.

        A join that fails leaves the Actor where it is; the completion tells, and if nobody looks the log does.
        """
        return self._entry.defer_move(spot_id_of(spot))

    def defer_leave(self) -> Completion[None]:
        """As `defer_join`, to be a member nowhere."""
        return self._entry.defer_move(None)

    def on_join(self, spot: SpotRef) -> Any:
        """Hook, on the Actor's own turn: it is a member of `spot` now."""

    def on_leave(self, spot: SpotRef) -> Any:
        """Hook, on the Actor's own turn: it is no member of `spot` any more."""
