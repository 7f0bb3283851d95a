"""`Candidates`: the published side of a topology - who is ready, and the selectors that follow (design 4.4).

Ownership
    `_selectors`  on the topology's lane
    `ready`       replaced on that lane, read by anybody
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zlink_nogil import _sync
from zlink_nogil.messaging.peers import Peer
from zlink_nogil.messaging.selection import Selector
from zlink_nogil.messaging.watchers import Watchers
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Candidates"]


class Candidates:
    def __init__(self, lane: StateLane) -> None:
        self._lane = lane
        self._selectors: dict[str, Selector[Peer]] = {}
        self.ready: Mapping[str, Peer] = {}
        self.watchers = Watchers()
        self.on_change: Callable[[], None] = _nobody_looks
        """Called on the lane when the ready nodes have changed; set before the start."""

    def selector(self, channel: str) -> Selector[Peer]:
        """The selector of a channel, made on first use and kept up to date from then on."""
        return self._lane.run(self._selector, channel)

    def _selector(self, channel: str) -> Selector[Peer]:
        debug_assert_on_lane(self._lane)
        selector = _sync.look_up(self._selectors, channel)
        if selector is None:
            selector = self._selectors[channel] = Selector(channel)
            self._offer(channel, selector)
        return selector

    def publish(self, peers: Sequence[Peer]) -> None:
        """On lane: these are ready from now on, and no others."""
        debug_assert_on_lane(self._lane)
        self.ready = {peer.node: peer for peer in peers}
        for channel, selector in self._selectors.items():
            self._offer(channel, selector)
        self.notify()

    def notify(self) -> None:
        """On lane: whoever waits for something looks again."""
        debug_assert_on_lane(self._lane)
        self.on_change()
        self.watchers.notify()

    def _offer(self, channel: str, selector: Selector[Peer]) -> None:
        able = {peer.identifier: (peer, peer.channels[channel]) for peer in self.ready.values() if channel in peer.channels}
        selector.replace(able)

    def wait(self, enough: Callable[[Mapping[str, Peer]], bool], timeout: float, what: str) -> None:
        """Block until `enough(ready peers)`; `DeadlineExceeded` naming `what` after `timeout` seconds."""
        self.watchers.wait(
            lambda: enough(self.ready), timeout, lambda: f"{what} not ready (ready: {sorted(self.ready) or 'none'})"
        )


def _nobody_looks() -> None:
    """Until somebody does."""
