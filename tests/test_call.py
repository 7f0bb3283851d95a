"""`zlink-nogil call`: one message from the shell to a running node, of a mesh or a server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from children import COMMAND, run
from click.testing import CliRunner
from support import Charge, Receipt, eventually, together

from zlink_nogil import Host, Keys, Mesh, Server
from zlink_nogil.hosting import calling


class Node:
    def __init__(self, keys: Keys | None = None) -> None:
        self.taken: list[Any] = []
        self.host = Host(workers=1)
        self.mesh: Mesh = self.host.mesh("shop", keys=keys)
        self.server: Server = self.host.server("api", keys=keys)
        for register in (self.mesh.channel("api").handler, self.server.handler):
            register(self.charge)
        self.server.handler(self.take)

    def charge(self, message: Charge, ctx: Any) -> Receipt:
        if message.cents < 0:
            raise ValueError("not that way")
        self.taken.append(ctx.source)
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
    eventually(lambda: ("x", "k") in node.taken)


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


# -- with keys ----------------------------------------------------------------------------------------------------------


class Keyed:
    """A node that knows `ops`, whose pair is in a file, as the node's public key is."""

    def __init__(self, folder: Path) -> None:
        ours, self.its = Keys.generate({}), Keys.generate({})
        ours.save(folder / "ops.key", "ops")
        (folder / "peer.toml").write_text(self.its.line("whatever it is called"))
        self.options = ("--keys", str(folder / "ops.key"), "--server-key", str(folder / "peer.toml"))
        self.node = Node(Keys(self.its.public, self.its.secret, {"ops": ours.public}))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path_factory.mktemp("keys"))
    with keyed.node.host:
        yield keyed


def test_a_keyed_server_and_a_keyed_node_answer_who_is_on_the_list(keyed: Keyed):
    answered = call(keyed.node.server.endpoint, GOOD, "--name", "Charge", *keyed.options)
    assert (answered.stdout, answered.stderr, answered.returncode) == ('{"balance": 6}\n', "", 0)
    answered = call(keyed.node.mesh.endpoint, GOOD, *keyed.options[:3], keyed.its.public)
    assert (answered.stdout, answered.stderr, answered.returncode) == ('{"balance": 6}\n', "", 0)
    assert keyed.node.taken == ["ops", "ops"]


def test_nobody_else_gets_an_answer_from_a_keyed_server(keyed: Keyed, tmp_path: Path):
    Keys.generate({}).save(tmp_path / "stranger.key", "ops")
    stranger = ("--keys", str(tmp_path / "stranger.key"), *keyed.options[2:])
    taken_for_another = (*keyed.options[:3], Keys.generate({}).public)
    asked = (keyed.node.server.endpoint, GOOD, "--name", "Charge", "--timeout", "0.3")
    for answered in together(lambda: call(*asked, *stranger), lambda: call(*asked, *taken_for_another)):
        assert (answered.stdout, answered.returncode) == ("", 1)
        assert "DeadlineExceeded: nobody who serves the channel answers there" in answered.stderr


def test_what_is_no_key_is_a_usage_error(keyed: Keyed, tmp_path: Path):
    two = tmp_path / "two.toml"
    two.write_text("\n".join(Keys.generate({}).line(name) for name in "ab"))
    nameless = tmp_path / "nameless.key"
    nameless.write_text(f'public = "{keyed.its.public}"\nsecret = "{keyed.its.secret}"\n')
    ours, its = keyed.options[1], keyed.options[3]
    wrong = {
        ("--keys", ours): "go together",
        ("--server-key", its): "go together",
        ("--keys", ours, "--server-key", "missing"): "No such file",
        ("--keys", ours, "--server-key", str(two)): "one public key is wanted, and there are 2",
        ("--keys", str(nameless), "--server-key", its): "there is no `name`",
        ("--keys", its, "--server-key", its): "no `name`",
    }
    for options, said in wrong.items():
        refused = CliRunner().invoke(calling.call, ["tcp://127.0.0.1:1", "api", GOOD, *options])
        assert refused.exit_code == 2, options
        assert said in refused.output


@pytest.mark.parametrize("key", ["x" * 39 + "~", "#" * 40, "x" * 41])
def test_a_key_is_read_before_anything_is_connected(key: str):
    pair = Keys.generate({})
    with pytest.raises(ValueError, match="Z85"):
        Keys(pair.public, pair.secret, {"a": key})


def test_who_is_known_by_the_key_alone_is_the_only_one_known():
    pair, other = Keys.generate({}), Keys.generate({})
    with pytest.raises(ValueError, match="could call himself by any"):
        Keys(pair.public, pair.secret, {"*": pair.public, "b": other.public})
