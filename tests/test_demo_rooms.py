"""`demo --rooms`: a world that ticks and checks its own books."""

from __future__ import annotations

import io
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from children import COMMAND, Child, run
from rich.console import Console

from zlink_nogil.hosting.demo.rooms import COINS, MemberReport, RoomReport, audit, run_world

ROOM = RoomReport(members=("ann",), total=COINS - 1, purse=1, joins=1, handled=1, late=[], missed=0)
OTHER = RoomReport(members=("bob",), total=COINS, purse=0, joins=1, handled=0, late=[], missed=0)
ANN = MemberReport(spot="room", coins=COINS - 1, moves=1, steps=1, greeted=0, refused=0)
BOB = MemberReport(spot="other", coins=COINS, moves=1, steps=0, greeted=0, refused=0)


def test_the_command_runs_the_world_and_its_books_balance(tmp_path: Path) -> None:
    outcome = tmp_path / "outcome.json"
    done = run(COMMAND, "demo", "--rooms", "--seconds", "1", "--workers", "2", "--json", str(outcome))
    assert done.returncode == 0, done.stderr
    assert "the books balance" in done.stdout
    written = json.loads(outcome.read_text())
    assert written["books_balance"] is True
    assert (written["rooms"], written["members"], written["workers"]) == (200, 5000, 2)
    assert written["gil_enabled"] is False
    assert written["messages"] > 1000
    assert written["moves"] > 0
    assert written["tick_late_p99_ms"] > 0


def test_a_small_world() -> None:
    """Few rooms: the moves and greetings of one room meet those of another all the time."""
    world = run_world(rooms=3, members=12, seconds=1.0, workers=2, console=Console(file=io.StringIO()))
    assert world.wrong == []
    assert world.books_balance
    assert world.ticks + world.ticks_missed >= 30, "three rooms, twenty times a second"
    assert world.messages >= world.ticks


def test_books_that_balance() -> None:
    assert list(audit({"room": ROOM, "other": OTHER}, {"ann": ANN, "bob": BOB}, ["room", "other"])) == []


@pytest.mark.parametrize(
    ("rooms", "members", "registered", "told"),
    [
        ({"room": replace(ROOM, members=())}, {}, None, "ann is in 0 rooms"),
        ({"other": replace(OTHER, members=("bob", "ann"))}, {}, None, "ann is in 2 rooms"),
        ({"other": replace(OTHER, members=("bob", "eve"))}, {}, None, "nobody knows"),
        ({"room": replace(ROOM, total=COINS)}, {}, None, "the members of room own"),
        ({"room": replace(ROOM, purse=2)}, {}, None, "coins, there were"),
        ({"room": replace(ROOM, joins=2)}, {}, None, "the rooms count 3 joins"),
        ({}, {"bob": replace(BOB, spot="room")}, None, "bob believes to be in room"),
        ({}, {}, ["other", "other"], "ann believes to be in room"),
    ],
)
def test_books_that_do_not(
    rooms: dict[str, RoomReport], members: dict[str, MemberReport], registered: list[str | None] | None, told: str
) -> None:
    wrong = audit(
        {"room": ROOM, "other": OTHER} | rooms, {"ann": ANN, "bob": BOB} | members, registered or ["room", "other"]
    )
    assert any(told in line for line in wrong)


@pytest.mark.parametrize("more", [["--path", "."], ["--nodes", "2"], ["--scheduler"]])
def test_what_does_not_go_with_it_is_told(more: list[str]) -> None:
    done = run(COMMAND, "demo", "--rooms", *more)
    assert done.returncode == 2
    assert more[0] in done.stderr


def test_seconds_are_for_rooms(tmp_path: Path) -> None:
    done = run(COMMAND, "demo", "--seconds", "1", "--path", str(tmp_path))
    assert done.returncode == 2
    assert "--seconds" in done.stderr


def test_interrupted_it_closes_and_says_so() -> None:
    with Child(COMMAND, "demo", "--rooms", "--seconds", "60") as child:
        child.line_with("ticking")
        child.signal(signal.SIGINT)
        assert child.end() == 130
        assert "interrupted" in child.output
        assert "Traceback" not in child.output
