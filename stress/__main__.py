"""The run: begin, disturb, stop, and see that the books balance. Exit code 1 when they do not."""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import threading
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from stress.client import Client, Ledger
from stress.server import books, descriptors
from stress.servers import Books, Server, Trouble
from zlink_nogil import ZLinkError
from zlink_nogil.scheduler import default_standby

CLIENTS = 2
SENDERS = 3
SERVERS = 3
SMOKE_MINUTES = 0.5
PATIENCE = 20.0
"""Seconds for what was started to end; the longest deadline is 5."""
LONGEST_ENDING = 180.0
LONGEST_IDLE = 10.0
IDLE_MILLISECONDS = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=5.0, show_default=True, type=click.FloatRange(0.01), help="How long to go on.")
@click.option("--seed", type=int, help="Decides what is done (when it happens, the machine decides); default: a new one.")
@click.option("--smoke", is_flag=True, help=f"A short run: {SMOKE_MINUTES * 60:.0f} seconds, and a few to begin and end.")
@click.option("--gentle", is_flag=True, help="No server is killed, only drained and frozen: then none may be lost either.")
def main(minutes: float, seed: int | None, smoke: bool, gentle: bool) -> None:
    """Everything at once over real sockets; then each operation must have ended once, and nothing may be left."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    minutes = SMOKE_MINUTES if smoke else minutes
    console = Console()
    console.print(f"seed {seed}, {minutes:g} minutes", highlight=False)
    faulthandler.dump_traceback_later(minutes * 60 + LONGEST_ENDING, exit=True)  # a hang is a finding too
    default_standby()  # has descriptors of its own, for ever
    threads, files = threading.active_count(), descriptors()
    ledger, told = Ledger(), Books()
    clients = [Client(f"client-{n}", SENDERS, ledger, seed) for n in range(CLIENTS)]
    servers = [Server(f"server-{n}", [client.mesh.endpoint for client in clients], told) for n in range(SERVERS)]
    left: dict[str, dict[str, Any]] = {}
    try:
        trouble = Trouble(servers, told, seed, gentle)
        seconds = _run(clients, servers, told, trouble, minutes * 60)
        left = _settle(clients, ledger, told)
        _idle(servers, told, min(LONGEST_IDLE, seconds / 3))
        for server in servers:
            server.drain()
    finally:
        for client in clients:
            client.host.close()
        for server in servers:
            server.end()
    if (extra := threading.active_count() - threads) > 0:
        told.tell(f"{extra} threads are left: {[thread.name for thread in threading.enumerate()]}")
    if (extra := descriptors() - files) > 0:
        told.tell(f"{extra} descriptors are left")
    if gentle and (lost := ledger.ends["Unavailable"] + ledger.refused["Unavailable"]):
        told.tell(f"{lost} operations were lost although every server was drained")
    broken = [*ledger.broken, *told.broken]
    _show(console, ledger, told, left, seconds)
    if broken:
        console.print(f"{len(broken)} promises broken (seed {seed}):", style="bold red")
        for what in broken[:20]:
            console.print(f"  {what}", highlight=False, markup=False)
        sys.exit(1)
    console.print("every operation ended once, in order, one turn at a time per owner, and nothing is left", style="green")


def _run(clients: list[Client], servers: list[Server], told: Books, trouble: Trouble, seconds: float) -> float:
    """The part with traffic and trouble; returns how long it took."""
    for server in servers:
        server.start()
    _wait_ready(clients)
    began = time.monotonic()
    for client in clients:
        client.begin()
    trouble.make(seconds)
    for client in clients:
        for name in client.stop(PATIENCE):
            told.tell(f"sender {name} hangs")
    _wait_ready(clients)
    return time.monotonic() - began


def _wait_ready(clients: list[Client]) -> None:
    for client in clients:
        client.mesh.channel("work").wait_ready(SERVERS, PATIENCE)


def _settle(clients: list[Client], ledger: Ledger, told: Books) -> dict[str, dict[str, Any]]:
    """Wait until everything has ended; returns what each node has left, which should be nothing."""
    left = {client.name: {} for client in clients}
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while True:
        reports = _reports(clients[0], told)
        left = {client.name: books(client.host, client.mesh) for client in clients}
        left |= {node: report["books"] for node, report in reports.items()}
        rest = sum(sum(counts.values()) for counts in left.values())
        if (not rest and not ledger.open) or time.monotonic() > deadline:
            break
        pause.wait(0.2)
    for operation in sorted(ledger.open)[:10]:
        told.tell(f"{operation} has not ended")
    if ledger.started != ledger.ended:
        told.tell(f"{ledger.started} operations were started and {ledger.ended} ended")
    for node, counts in left.items():
        for what, count in counts.items():
            if count:
                told.tell(f"{node} is quiet and has {count} {what}")
    return left


def _idle(servers: list[Server], told: Books, seconds: float) -> None:
    """Nothing is going on, so nothing may run."""
    pause = threading.Event()
    pause.wait(0.5)
    before = [server.cpu_milliseconds() for server in servers]
    pause.wait(seconds)
    for server, start in zip(servers, before, strict=True):
        used = server.cpu_milliseconds() - start
        if used >= IDLE_MILLISECONDS:
            told.tell(f"{server.node} was idle for {seconds:.0f} s and used {used:.0f} ms of CPU time")


def _reports(client: Client, told: Books) -> dict[str, dict[str, Any]]:
    reports: dict[str, dict[str, Any]] = {}
    for node in client.mesh.nodes():
        if node.startswith("server"):
            try:
                call = client.mesh.node(node).request(
                    "now", name="str", reply=dict[str, Any], key="report", timeout=PATIENCE
                )
                reports[node] = call.result()
            except ZLinkError as error:
                told.tell(f"{node} does not report: {error!r}")
    return reports


def _show(console: Console, ledger: Ledger, told: Books, left: dict[str, dict[str, Any]], seconds: float) -> None:
    table = Table(title=f"{ledger.started:,} operations in {seconds:.0f} s: {ledger.started / seconds:,.0f} a second")
    table.add_column("what")
    table.add_column("how often", justify="right")
    for name, count in ledger.ends.most_common():
        table.add_row(f"ended: {name}", f"{count:,}")
    for name, count in ledger.refused.most_common():
        table.add_row(f"refused at once: {name}", f"{count:,}")
    table.add_section()
    for name, count in sorted(told.troubles.items()):
        table.add_row(f"servers {name}", f"{count:,}")
    table.add_row("lives of servers", f"{told.lives:,}")
    table.add_row("turns of lives that were not killed", f"{told.turns:,}")
    table.add_section()
    table.add_row("left on all nodes at the end", f"{sum(sum(counts.values()) for counts in left.values()):,}")
    table.add_row("promises broken", f"{len(ledger.broken) + len(told.broken):,}")
    console.print(table)


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the servers find the package by it
    main()
