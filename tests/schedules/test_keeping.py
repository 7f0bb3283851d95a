"""`Holdings` under every schedule: Spots are made, and end, while the keeper goes, comes back, or begins anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zlink_nogil.errors import AlreadyExists, Unavailable
from zlink_nogil.messaging import holdings as holdings_module
from zlink_nogil.messaging.keeper import Announce, Claim, Release
from zlink_nogil.messaging.wire import Address
from zlink_nogil.scheduler import Completion
from zlink_nogil.scheduler.spawning import sleep, spawn

from .harness import Scenario, run_random
from .nodes import KEEPER, Calling, Played


class Keeping(Calling):
    """At the end the keeper knows what is here, and nothing else."""

    def __init__(self, s: Scenario) -> None:
        super().__init__(s, workers=2)
        self.spots.start()
        self.at_keeper = Played(self, KEEPER)
        s.check("what is here is known, and what is known is here", self.is_known)
        s.check("nothing is left to be told", lambda: not self.direct._holdings._unreleased)

    def ask_with(self, change: Callable[[Any, Callable[[], Completion[Any]]], Completion[Any]]) -> None:
        """Instead of asking, `change(question, ask)`."""
        holdings = self.direct._holdings
        ask = holdings._ask
        holdings._ask = lambda question, *how: change(question, lambda: ask(question, *how))

    def tell_slowly(self, kind: type[Any]) -> None:
        """Such a word goes out half a second after it was decided."""

        def tell(question: Any, ask: Callable[[], Completion[Any]]) -> Completion[Any]:
            if isinstance(question, kind):
                self.s.sleep(0.5)
            return ask()

        self.ask_with(tell)

    def is_known(self) -> bool:
        return (self.location("r") == "me") == ("r" in self.spots.ids())

    def create(self, spot_id: str = "r") -> None:
        """Until it is made."""
        while True:
            try:
                self.spots.create("Room", spot_id).result()
            except Unavailable:
                self.s.sleep(0.01)
            else:
                return

    def close(self, spot_id: str = "r") -> None:
        self.spots.close(spot_id).result()


def made_again_as_the_keeper_comes_back(s: Scenario) -> None:
    """It has still to be told of the end of the last one."""
    node = Keeping(s)
    node.create()
    node.at_keeper.go()
    node.close()

    def come_back() -> None:
        s.sleep(0.01)
        node.at_keeper.come()
        s.sleep(1.0)

    s.thread("topology", come_back)
    s.thread("a", node.create)


def made_while_the_keeper_is_another(s: Scenario) -> None:
    """Whom the keeper let have it, the next one does not know."""
    node = Keeping(s)

    def start_again() -> None:
        s.sleep(0.05)
        node.at_keeper.go()
        node.keep_locations()
        node.at_keeper.come()
        s.sleep(1.0)

    s.thread("a", node.create)
    s.thread("topology", start_again)


def it_ends_as_the_keeper_comes_back(s: Scenario) -> None:
    """The keeper is told of its end after it was told that it is there."""
    node = Keeping(s)
    node.create()
    node.at_keeper.go()

    def come_back() -> None:
        node.at_keeper.come()
        s.sleep(1.0)

    s.thread("topology", come_back)
    s.thread("a", node.close)


def another_node_was_faster(s: Scenario) -> None:
    """The next keeper was told of it by another node first: it ends here, also if it is only being made."""
    holdings_module._log = logging.getLogger(__name__)  # an error, as it should be; put back after the run
    node = Keeping(s)
    c = Played(node, "c")

    def start_again() -> None:
        s.sleep(0.05)
        node.at_keeper.go()
        node.keep_locations()
        node.place("r", c)
        node.at_keeper.come()
        s.sleep(1.0)

    def create() -> None:
        with suppress(AlreadyExists):
            node.create()

    s.thread("a", create)
    s.thread("topology", start_again)
    s.check("it is there", lambda: node.location("r") == "c")


def test_while_the_keeper_comes_and_goes() -> None:
    scenarios = [
        made_again_as_the_keeper_comes_back,
        made_while_the_keeper_is_another,
        it_ends_as_the_keeper_comes_back,
        another_node_was_faster,
    ]
    for scenario in scenarios:
        run_random(scenario, 30)


def made_again_while_the_last_end_is_told(s: Scenario) -> None:
    """That it has ended is told before that it is there."""
    node = Keeping(s)
    node.create()
    node.at_keeper.go()
    node.close()
    node.tell_slowly(Release)

    def come_back() -> None:
        node.at_keeper.come()
        s.sleep(3.0)

    s.thread("topology", come_back)
    s.thread("a", node.create)


def made_again_before_the_last_end_is_told(s: Scenario) -> None:
    """Then that end is not told at all: its turn comes after another's."""
    node = Keeping(s)
    for spot_id in "qr":
        node.create(spot_id)
    node.at_keeper.go()
    for spot_id in "qr":
        node.close(spot_id)
    holdings = node.direct._holdings
    tell_end = holdings._tell_end

    def tell_and_rest(address: Address, *, again: bool) -> None:
        tell_end(address, again=again)
        s.sleep(0.5)

    def come_back() -> None:
        node.at_keeper.come()
        s.sleep(3.0)

    holdings._tell_end = tell_and_rest  # type: ignore[method-assign]
    s.thread("topology", come_back)
    s.thread("a", node.create)


def ended_while_it_is_told(s: Scenario) -> None:
    """That it is there is told before that it has ended."""
    node = Keeping(s)
    node.create()
    node.at_keeper.go()
    node.tell_slowly(Announce)

    def close() -> None:
        node.at_keeper.come()
        s.sleep(0.2)
        node.close()
        s.sleep(3.0)

    s.thread("a", close)


def test_told_in_order() -> None:
    scenarios = [made_again_while_the_last_end_is_told, made_again_before_the_last_end_is_told, ended_while_it_is_told]
    for scenario in scenarios:
        run_random(scenario, 15)


def told_at_once(s: Scenario) -> None:
    """The keeper may have answered before anybody looks whether it has."""
    node = Keeping(s)
    node.create()

    def ask_and_rest(_: Any, ask: Callable[[], Completion[Any]]) -> Completion[Any]:
        told = ask()
        s.sleep(0.5)
        return told

    node.ask_with(ask_and_rest)
    s.thread("a", node.close)


def lost_while_its_end_is_told(s: Scenario) -> None:
    """It is told again."""
    node = Keeping(s)
    node.create()
    node.at_keeper.deaf.clear()

    def go_and_come() -> None:
        s.sleep(0.5)
        node.at_keeper.go()
        node.at_keeper.deaf.set()
        node.at_keeper.come()
        s.sleep(1.0)

    s.thread("a", node.close)
    s.thread("topology", go_and_come)


def another_keeper_before_the_word_of_the_first_is_read(s: Scenario) -> None:
    """It is asked, too: what it was told of this node was told before."""
    node = Keeping(s)
    late: list[bool] = []

    def answer_late(_: Any, ask: Callable[[], Completion[Any]]) -> Completion[Any]:
        return ask() if late else spawn(read_late(ask()), pool=node.pool)

    async def read_late(asked: Completion[Any]) -> Any:
        late.append(True)
        value = await asked
        await sleep(0.5)
        return value

    def start_again() -> None:
        s.sleep(0.25)
        node.at_keeper.go()
        node.keep_locations()
        node.at_keeper.come()

    node.ask_with(answer_late)
    s.thread("a", node.create)
    s.thread("topology", start_again)


def another_node_comes(s: Scenario) -> None:
    """That is no reason to tell the keeper again."""
    node = Keeping(s)
    node.create()
    s.thread("topology", lambda: Played(node, "c").go())
    s.check("told once", lambda: [type(question) for question in node.at_keeper.asked] == [Claim])


def test_told_once_or_again() -> None:
    scenarios = [
        told_at_once,
        lost_while_its_end_is_told,
        another_keeper_before_the_word_of_the_first_is_read,
        another_node_comes,
    ]
    for scenario in scenarios:
        run_random(scenario, 10)
