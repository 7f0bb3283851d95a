"""`zlink-nogil call`: one request, or one send, from the shell to a running node."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import Any, Final

import click

from zlink_nogil import _sync
from zlink_nogil.binding import Keys
from zlink_nogil.binding.keys import ANY_NODE, name_in, public_in
from zlink_nogil.errors import DeadlineExceeded, ZLinkError
from zlink_nogil.execution.call import checked_timeout
from zlink_nogil.hosting.host import Host
from zlink_nogil.messaging import Client, Mesh
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
@click.option("--keys", "key_file", metavar="FILE", help="Our pair, of `zlink-nogil keygen`; its name is our node id.")
@click.option("--server-key", metavar="FILE|KEY", help="The public key of who is at ENDPOINT, or its file.")
@click.option("--bind", default="tcp://127.0.0.1:0", show_default=True, help="Where a node of a mesh reaches us to answer.")
def call(
    endpoint: str,
    channel: str,
    message: str,
    name: str,
    key: str | None,
    send: bool,
    timeout: float,
    key_file: str | None,
    server_key: str | None,
    bind: str,
) -> None:
    """Send JSON to CHANNEL of the node at ENDPOINT, of a mesh or a server, and print the answer as JSON.

    Where there are keys, it takes --keys and --server-key, and the node must have our public key on its list.

    Exit code 0, or 1 with the error's kind and text on the error output.
    """
    try:
        value = json.loads(message)
        checked_timeout(timeout, 0.0)
        host = Host(workers=1)
        client, mesh = _ways(host, endpoint, channel, bind, key_file, server_key)
    except (ValueError, OSError) as error:
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


def _ways(
    host: Host, endpoint: str, channel: str, bind: str, key_file: str | None, server_key: str | None
) -> tuple[Client, Mesh]:
    """Who is at the endpoint may be a server, or a node of a mesh. `ValueError`, `OSError`."""
    if key_file is None and server_key is None:
        node_id = f"call-{secrets.token_hex(4)}"
        return host.client(channel, servers=[endpoint]), host.mesh(ANY_MESH, bind=bind, peers=[endpoint], node_id=node_id)
    if key_file is None or server_key is None:
        raise ValueError("--keys and --server-key go together")
    node_id = name_in(key_file)
    keys = Keys.load(key_file, {ANY_NODE: public_in(server_key)})
    there = {ANY_NODE: endpoint}
    client = host.client(channel, servers=there, node_id=node_id, keys=keys)
    return client, host.mesh(ANY_MESH, bind=bind, peers=there, node_id=node_id, keys=keys)


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
