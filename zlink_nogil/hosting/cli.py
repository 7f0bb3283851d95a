"""The `zlink-nogil` command line."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback

import click

from zlink_nogil._interpreter import FREE_THREADED
from zlink_nogil.binding import Keys
from zlink_nogil.errors import ZLinkError
from zlink_nogil.hosting.calling import call
from zlink_nogil.hosting.demo.command import demo
from zlink_nogil.hosting.host import Host
from zlink_nogil.messaging.peers import checked_name

__all__ = ["main"]


def main() -> None:
    """Entry point; on a free-threaded build re-executes itself once with the GIL forced off, unless `-X gil` was given."""
    forced_off = os.environ.get("PYTHON_GIL") == "0" and not sys.flags.ignore_environment
    if FREE_THREADED and not forced_off and "gil" not in sys._xoptions:
        os.execv(sys.executable, [sys.executable, "-X", "gil=0", *sys.orig_argv[1:]])
    commands()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """zlink_nogil: stateful server code in parallel on free-threaded CPython."""


@commands.command()
@click.argument("target", metavar="MODULE:HOST")
def serve(target: str) -> None:
    """Run the host that MODULE:HOST names (a Host, or a function that makes one) until SIGTERM or Ctrl-C, then drain."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.path.insert(0, "")
    host = _load(target)
    try:
        host.start()
    except (OSError, ValueError, ZLinkError) as error:
        raise click.ClickException(f"{target} cannot start: {error}") from None
    host.serve_forever(lambda: _announce(host))


def _announce(host: Host) -> None:
    for mesh in host.meshes:
        click.echo(f"node {mesh.node_id} of mesh {mesh.name} at {mesh.endpoint}", err=True)
    for server in host.servers:
        click.echo(f"server {server.node_id} of channel {server.name} at {server.endpoint}", err=True)


def _load(target: str) -> Host:
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise click.UsageError(f"expected MODULE:HOST, as in my_node:host, not {target!r}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does while it is imported
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"there is no module {error.name!r}") from None
        raise click.UsageError(f"module {module_name!r} cannot be imported: {_told(error)}") from None
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise click.UsageError(f"module {module_name!r} has no {attribute!r}") from None
    try:
        host = found if isinstance(found, Host) or not callable(found) else found()
    except Exception as error:  # the user's function
        raise click.UsageError(f"{target} does not make a Host: {_told(error)}") from None
    if not isinstance(host, Host):
        raise click.UsageError(f"{target} is {type(host).__name__}, not a Host or a function that makes one")
    return host


def _told(error: Exception) -> str:
    """What happened, and where: in one line."""
    told = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return told  # names the place itself
    return f"{told} ({frames[-1].filename}, line {frames[-1].lineno})"


@commands.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--name", default="node", show_default=True, help="The node's id, for the line to give to others.")
def keygen(file: str, name: str) -> None:
    """Make a pair of keys: the secret goes to FILE, for its owner only; the line to give to others is printed."""
    try:
        keys = Keys.generate({})
        keys.save(file, checked_name("a node id", name))
    except (OSError, ValueError, ZLinkError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(keys.line(name))


commands.add_command(call)
commands.add_command(demo)
