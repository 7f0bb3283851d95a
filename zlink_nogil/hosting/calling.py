"""`zlink-nogil call`: one request, or one send, from the shell to a running node."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import Any, Final

import click

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, ZLinkError
from zlink_nogil.execution.call import checked_timeout
from zlink_nogil.hosting.host import Host
from zlink_nogil.messaging.channel import Target
from zlink_nogil.messaging.peers import ANY_MESH

__all__ = ["call"]

LOOK: Final = 0.02
"""Seconds of waiting for one of the two ways to a node, before the other is looked at."""


@click.command()
@click.argument("endpoint")
@click.argument("channel")
@click.argument("message", metavar="JSON")
@click.option("--name", default="", help="The message's name; may be left out where the channel has one handler.")
@click.option("--key", help="The owner that keeps order.")
@click.option("--send", is_flag=True, help="A one-way message: nothing is printed.")
@click.option("--timeout", default=5.0, show_default=True, type=float, help="Seconds, connecting included.")
@click.option("--bind", default="tcp://127.0.0.1:0", show_default=True, help="Where a node of a mesh reaches us to answer.")
def call(
    endpoint: str, channel: str, message: str, name: str, key: str | None, send: bool, timeout: float, bind: str
) -> None:
    """Send JSON to CHANNEL of the node at ENDPOINT, of a mesh or a server, and print the answer as JSON.

    Exit code 0, or 1 with the error's kind and text on the error output.
    """
    try:
        value = json.loads(message)
        checked_timeout(timeout, 0.0)
        host = Host(workers=1)
        client = host.client(channel, servers=[endpoint])
        mesh = host.mesh(ANY_MESH, bind=bind, peers=[endpoint], node_id=f"call-{secrets.token_hex(4)}")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    deadline = _sync.monotonic() + timeout
    try:
        with host:
            target = _ready(client, mesh.channel(channel), deadline)
            left = max(0.001, deadline - _sync.monotonic())
            if send:
                target.send(value, declared=Any, name=name, key=key, timeout=left).result()
            else:
                answer: Any = target.request(value, declared=Any, name=name, key=key, timeout=left).result()
                click.echo(json.dumps(answer, ensure_ascii=False))
    except ZLinkError as error:
        raise click.ClickException(f"{error.kind.name}: {error.message}") from None
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _ready(client: Any, channel: Any, deadline: float) -> Target:
    """Whichever of the two there is at the endpoint."""
    ways: list[Any] = [client, channel]
    while _sync.monotonic() < deadline:
        for way in ways:
            with suppress(DeadlineExceeded):
                way.wait_ready(1, LOOK)
                ready: Target = way
                return ready
    raise DeadlineExceeded("nobody who serves the channel answers there")
