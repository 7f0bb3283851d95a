"""`zlink-nogil call`: one message from the shell to a running node, of a mesh or a server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from children import COMMAND, run
from support import Charge, Receipt, eventually

from zlink_nogil import Host, Mesh, Server


class Node:
    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.host = Host(workers=1)
        self.mesh: Mesh = self.host.mesh("shop")
        self.server: Server = self.host.server("api")
        for register in (self.mesh.channel("api").handler, self.server.handler):
            register(self.charge)
        self.server.handler(self.take)

    def charge(self, message: Charge, ctx: Any) -> Receipt:  # noqa: ARG002
        if message.cents < 0:
            raise ValueError("not that way")
        return Receipt(message.cents + 1)

    def take(self, message: str, ctx: Any) -> None:
        self.taken.append((message, ctx.key))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node()
    with node.host:
        yield node


def call(endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(COMMAND, "call", endpoint, "api", *arguments)


GOOD = '{"account": "a", "cents": 5}'


def test_a_mesh_and_a_server_answer_alike(node: Node):
    for endpoint, options in ((node.mesh.endpoint, ()), (node.server.endpoint, ("--name", "Charge"))):
        answered = call(endpoint, GOOD, *options)
        assert (answered.stdout, answered.stderr, answered.returncode) == ('{"balance": 6}\n', "", 0)


def test_a_send_prints_nothing(node: Node):
    answered = call(node.server.endpoint, '"x"', "--name", "str", "--key", "k", "--send")
    assert (answered.stdout, answered.stderr, answered.returncode) == ("", "", 0)
    eventually(lambda: node.taken == [("x", "k")])


@pytest.mark.parametrize(
    ("message", "options", "said"),
    [
        ('{"account": "a", "cents": -5}', (), "InternalFailure: ValueError: not that way"),
        ('{"account": "a"}', (), "ProtocolError: 'Charge' cannot be decoded: required field missing @ $.cents"),
        (GOOD, ("--name", "Other"), "NotFound: channel 'api' has no handler for 'Other'"),
    ],
)
def test_an_error_is_told_with_its_kind(node: Node, message, options, said):
    answered = call(node.mesh.endpoint, message, *options)
    assert (answered.stdout, answered.returncode) == ("", 1)
    assert answered.stderr.strip() == f"Error: {said}"


def test_without_a_name_the_channel_must_have_one_handler(node: Node):
    assert "NotFound: channel 'api' has no handler for ''" in call(node.server.endpoint, GOOD).stderr


def test_nobody_there_ends_with_the_time():
    answered = call("tcp://127.0.0.1:1", GOOD, "--timeout", "0.2")
    assert answered.returncode == 1
    assert "DeadlineExceeded: nobody who serves the channel answers there" in answered.stderr


@pytest.mark.parametrize(("endpoint", "message"), [("nowhere", GOOD), ("tcp://127.0.0.1:1", "{")])
def test_what_is_no_endpoint_or_no_json_is_a_usage_error(endpoint, message):
    assert call(endpoint, message).returncode == 2
