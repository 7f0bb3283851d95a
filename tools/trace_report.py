"""`tools/run trace-report FILE...`: hand-overs, copies, time per stage, from the files of `ZLINK_TRACE` and `host.trace`.

The files of both sides of a message are put together by its operation id; `zlink_nogil/messaging/tracing.py` says what a
line means. Times are compared within one side only: two machines have two clocks.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

STEPS: Final = (
    ("E1", "E2"),
    ("E2", "E3"),
    ("E3", "E4"),
    ("E4", "E5"),
    ("E5", "R"),
    ("I0", "I1"),
    ("I1", "I2"),
    ("I2", "I3"),
    ("I3", "I4"),
    ("I4", "W1"),
    ("W1", "W2"),
    ("W3", "W4"),
    ("W3", "W5"),
)
"""From one stage to another one of the same side."""

type Stages = Mapping[str, Mapping[str, Any]]
"""The events of one message, by stage; of a stage that came more than once (a message that was sent again) the last."""


def changes(*stages: str) -> Callable[[Stages], int | None]:
    """How often the thread changes on the way through them."""

    def count(message: Stages) -> int | None:
        threads = [message[stage]["thread"] for stage in stages if stage in message]
        return None if len(threads) < 2 else sum(a != b for a, b in itertools.pairwise(threads))

    return count


def copies(begin: str, end: str) -> Callable[[Stages], int | None]:
    return lambda message: message[end]["copied"] - message[begin]["copied"] if {begin, end} <= message.keys() else None


def done(what: str, begin: str, end: str) -> Callable[[Stages], int | None]:
    """By the thread that was there, at the beginning and at the end; elsewhere it cannot be told."""

    def count(message: Stages) -> int | None:
        if not {begin, end} <= message.keys() or message[begin]["thread"] != message[end]["thread"]:
            return None
        return int(message[end][what] - message[begin][what])

    return count


COUNTS: Final[Mapping[str, Callable[[Stages], int | None]]] = {
    "hand-overs from the call to the socket": changes("E1", "E2", "E3", "E4"),
    "hand-overs from the end to who waits": changes("E5", "R"),
    "hand-overs from the claim to the handler": changes("I3", "I4", "W1"),
    "hand-overs from the handler to the answer": changes("W1", "W2", "W3", "W4"),
    "lanes entered up to the socket": done("lanes", "E1", "E4"),
    "copies when sending": copies("E1", "E4"),
    "copies when receiving": copies("I3", "W2"),
    "copies when answering": copies("W2", "W4"),
    "copies when reading the answer": copies("E4", "R"),
    "runnables given to workers by a commit": done("given", "I3", "I4"),
    "tasks, completions, threads made when sending": done("made", "E1", "E4"),
    "tasks, completions, threads made when receiving": done("made", "I3", "I4"),
    "tasks, completions, threads made around the handler": done("made", "W1", "W5"),
    "the same from the claim to the end, on one thread": done("made", "I3", "W5"),
}


def read(files: Iterable[Path]) -> dict[str, list[Stages]]:
    """The messages by API; "?" for those whose sender's file is not there. `ValueError` for a file that is no trace."""
    messages: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
                messages[event["id"]][event["stage"]] = event
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{file} is no trace: {line[:80]!r}") from None
    by_api: defaultdict[str, list[Stages]] = defaultdict(list)
    for message in messages.values():
        by_api[next((event["api"] for event in message.values() if "api" in event), "?")].append(message)
    return dict(by_api)


def counted(messages: Iterable[Stages], count: Callable[[Stages], int | None]) -> list[int]:
    """`count` of each message where it can be told."""
    return [number for number in map(count, messages) if number is not None]


def _show_counts(api: str, messages: list[Stages], console: Console) -> None:
    table = Table(title=f"{api}: {len(messages):,} messages")
    for column in ("per message", "messages", "mean", "most"):
        table.add_column(column, justify="left" if column == "per message" else "right")
    for name, count in COUNTS.items():
        if numbers := counted(messages, count):
            table.add_row(name, f"{len(numbers):,}", f"{statistics.fmean(numbers):.2f}", str(max(numbers)))
    console.print(table)


def _show_times(api: str, messages: list[Stages], console: Console) -> None:
    table = Table(title=f"{api}: microseconds")
    for column in ("from", "to", "messages", "median", "p99"):
        table.add_column(column, justify="left" if column in ("from", "to") else "right")
    for begin, end in STEPS:
        times = sorted(m[end]["at"] - m[begin]["at"] for m in messages if begin in m and end in m)
        if times:
            p99 = times[min(len(times) - 1, round(len(times) * 0.99))]
            table.add_row(begin, end, f"{len(times):,}", f"{statistics.median(times) * 1e6:,.1f}", f"{p99 * 1e6:,.1f}")
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """What happened to the messages in the FILES of a trace."""
    try:
        by_api = read(files)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    console = Console()
    for api, messages in sorted(by_api.items()):
        _show_counts(api, messages, console)
        _show_times(api, messages, console)


if __name__ == "__main__":
    main()
